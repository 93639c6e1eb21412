"""CUDA graphs, kernels and overlap."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field, model_validator

from common.settings import Settings, option
from common.settings.types import JsonObject

_option = partial(option, category="Optimization")

_COMPILE = "canopy brings its own fused kernels and CUDA graphs, leave it out"
_PREFILL_GRAPH = "only decodes run as CUDA graphs, leave it out"
_KERNELS = "canopy chooses its kernels by device, leave it out"


class OptimizationSettings(Settings):
    """Optimization."""

    cuda_graph_max_bs: int | None = _option(
        None,
        "largest decode batch with a CUDA graph; without it by GPU memory",
        aliases=["cuda-graph-max-bs-decode"],
        ge=1,
    )
    cuda_graph_bs: list[Annotated[int, Field(ge=1)]] | None = _option(
        None,
        "decode batch sizes with a CUDA graph; without it a list up to the largest",
        aliases=["cuda-graph-bs-decode"],
        min_length=1,
    )
    disable_cuda_graph: bool = _option(False, "launch decodes kernel by kernel", aliases=["disable-decode-cuda-graph"])
    disable_cuda_graph_padding: bool = _option(False, "a CUDA graph for every batch size instead of padding")
    disable_overlap_schedule: bool = _option(False, "handle a step's results before launching the next")
    disable_cascade_attention: bool = _option(
        False, "read a cached prefix once for each running request that shares it"
    )
    cpu_threads: int | None = _option(None, "compute threads on a CPU; without it all cores", ge=1)

    disable_prefill_cuda_graph: bool = _option(
        False, "no CUDA graphs for prefill; there are none, so this changes nothing"
    )
    cuda_graph_max_bs_prefill: int | None = _option(None, "largest prefill with a CUDA graph", not_built=_PREFILL_GRAPH)
    cuda_graph_bs_prefill: list[int] | None = _option(None, "prefill sizes with a CUDA graph", not_built=_PREFILL_GRAPH)
    cuda_graph_backend_decode: str = _option(
        "auto", "how decode graphs are captured", not_built="use --disable-cuda-graph to do without graphs"
    )
    cuda_graph_backend_prefill: str = _option("auto", "how prefill graphs are captured", not_built=_PREFILL_GRAPH)
    cuda_graph_config: JsonObject | None = _option(
        None, "all graph options as JSON", not_built="use --cuda-graph-max-bs and --cuda-graph-bs"
    )
    enable_torch_compile: bool = _option(False, "compile the model with torch.compile", not_built=_COMPILE)
    torch_compile_max_bs: int = _option(32, "largest compiled batch", not_built=_COMPILE)
    attention_backend: str = _option("auto", "attention kernels", not_built=_KERNELS)
    prefill_attention_backend: str | None = _option(None, "attention kernels of prefill", not_built=_KERNELS)
    decode_attention_backend: str | None = _option(None, "attention kernels of decode", not_built=_KERNELS)
    sampling_backend: str = _option("auto", "sampling kernels", not_built=_KERNELS)
    grammar_backend: Literal["auto", "xgrammar", "none"] = _option(
        "auto", "library for structured output; auto is xgrammar, none refuses it"
    )
    enable_deterministic_inference: bool = _option(
        False,
        "the same tokens whatever else runs",
        not_built="for repeatable sampling give requests a seed and run one at a time",
    )

    @model_validator(mode="after")
    def _check_graph_sizes(self) -> OptimizationSettings:
        largest, sizes = self.cuda_graph_max_bs, self.cuda_graph_bs or []
        if largest is not None and sizes and max(sizes) > largest:
            raise ValueError(
                f"--cuda-graph-bs {max(sizes)} is above --cuda-graph-max-bs {largest}; change one of the two."
            )
        return self
