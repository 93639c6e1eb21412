"""Number formats of weights, activations and KV cache."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from common.settings import Settings, option

_option = partial(option, category="Quantization and data type")

_SHORT_NAMES = {"half": "float16", "float": "float32"}


def _long_name(value: Any) -> Any:
    return _SHORT_NAMES.get(value, value) if isinstance(value, str) else value


class QuantizationSettings(Settings):
    """Quantization and data type."""

    dtype: Annotated[Literal["auto", "float32", "float16", "bfloat16"], BeforeValidator(_long_name)] = _option(
        "auto", "compute type; auto = float32 on CPU, the checkpoint's own on a GPU; half and float are understood"
    )

    quantization: str | None = _option(
        None, "weight quantization", not_built="leave it out to serve the weights as they are"
    )
    kv_cache_dtype: str = _option(
        "auto", "number format of the KV cache", not_built="leave it out, the cache has the compute type"
    )
    quantization_param_path: str | None = _option(
        None, "JSON file with scales of the KV cache", not_built="leave it out"
    )
    enable_fp32_lm_head: bool = _option(False, "logits in float32", not_built="use --dtype float32")
    torchao_config: str = _option("", "weight-only quantization by torchao", not_built="leave it out")
