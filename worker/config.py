"""Every setting of one replica, with its unit. Built once at the edge by `common.settings.load`, passed down whole."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from common.settings import Settings, option

MODEL = "Model and tokenizer"
HTTP = "HTTP server"
MEMORY = "Memory and scheduling"
OPTIMIZATION = "Optimization"
OBSERVABILITY = "Observability"
PROCESS = "Process"


class WorkerSettings(Settings):
    """Serve one model from one engine over HTTP."""

    model_path: str = option(
        ..., "directory, .gguf file or hub id of the model", category=MODEL, aliases=["model"], min_length=1
    )
    tokenizer_path: str | None = option(None, "tokenizer, if not the model's own", category=MODEL)
    served_model_name: str | None = option(
        None, "name clients use; without it the last part of the model path", category=MODEL
    )
    chat_template: str | None = option(None, "Jinja file to use in place of the model's own template", category=MODEL)
    sampling_defaults: Literal["model", "openai"] = option(
        "model", "model = what generation_config.json says; openai = temperature 1, top_p 1", category=MODEL
    )
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = option(
        "auto", "where weights come from; dummy = random", category=MODEL
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "compute type; auto = float32 on CPU, the checkpoint's own on a GPU", category=MODEL
    )
    context_length: int | None = option(
        None, "longest prompt + answer in tokens; without it the model's", category=MODEL, ge=8
    )
    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto = cuda if a GPU is found", category=PROCESS)

    host: str = option("127.0.0.1", "address to bind", category=HTTP)
    port: int = option(30000, "port to bind; 0 = any free one", category=HTTP, ge=0, le=65535)
    max_body_bytes: int = option(64 * 2**20, "largest request body", category=HTTP, ge=1024)
    stream_interval: int = option(1, "tokens per stream event", category=HTTP, ge=1)
    enable_cache_report: bool = option(True, "cached_tokens in OpenAI usage", category=HTTP)
    allow_auto_truncate: bool = option(False, "cut an over-long prompt instead of answering 400", category=HTTP)

    mem_fraction_static: float | None = option(
        None, "(weights + KV pool) / GPU memory; without it a rule by GPU size", category=MEMORY, gt=0, lt=1
    )
    max_total_tokens: int | None = option(
        None,
        "KV pool size in tokens; without it from memory",
        category=MEMORY,
        aliases=["max-total-num-tokens"],
        ge=16,
    )
    max_running_requests: int | None = option(None, "bound on running requests", category=MEMORY, ge=1)
    max_queued_requests: int | None = option(None, "bound on waiting requests; more get 503", category=MEMORY, ge=1)
    chunked_prefill_size: int | None = option(
        None, "prompt tokens a step computes at most; -1 = no chunks", category=MEMORY, ge=-1
    )
    max_prefill_tokens: int = option(16384, "prompt tokens of one prefill batch", category=MEMORY, ge=1)
    enable_mixed_chunk: bool = option(True, "prefill chunks and decodes share a step", category=MEMORY)
    page_size: int | None = option(None, "tokens in a KV page; without it 1 on CPU, 16 on a GPU", category=MEMORY, ge=1)
    schedule_policy: Literal["fcfs", "lpm"] = option("fcfs", "order of the waiting queue", category=MEMORY)
    schedule_conservativeness: float = option(
        1.0, "scales the output a running request is expected to still need", category=MEMORY, ge=0
    )
    disable_radix_cache: bool = option(False, "no prefix reuse", category=MEMORY)

    disable_overlap_schedule: bool = option(
        False, "handle a step's results before launching the next", category=OPTIMIZATION
    )
    disable_cuda_graph: bool = option(False, "launch decodes kernel by kernel", category=OPTIMIZATION)
    cuda_graph_max_bs: int | None = option(
        None,
        "largest decode batch with a CUDA graph; without it by GPU memory",
        category=OPTIMIZATION,
        aliases=["cuda-graph-max-bs-decode"],
        ge=1,
    )
    cuda_graph_bs: list[int] | None = option(
        None, "decode batch sizes with a CUDA graph; without it a list up to the largest", category=OPTIMIZATION
    )
    disable_cuda_graph_padding: bool = option(
        False, "a CUDA graph for every batch size instead of padding", category=OPTIMIZATION
    )
    disable_cascade_attention: bool = option(
        False, "read a cached prefix once for each running request that shares it", category=OPTIMIZATION
    )
    cpu_threads: int | None = option(
        None, "compute threads on a CPU; without it all cores", category=OPTIMIZATION, ge=1
    )

    log_level: Literal["debug", "info", "warning", "error"] = option("info", "log level", category=OBSERVABILITY)
    decode_log_interval: int = option(40, "decode steps between log lines", category=OBSERVABILITY, ge=1)

    random_seed: int | None = option(None, "seed of unseeded requests; without it random", category=PROCESS, ge=0)
    watchdog_timeout_s: float = option(
        300, "seconds a step may take before the replica gives up", category=PROCESS, aliases=["watchdog-timeout"], gt=0
    )
    shutdown_grace_s: float = option(
        30,
        "seconds running requests may take to finish after SIGTERM or Ctrl-C; then they are dropped",
        category=PROCESS,
        ge=0,
    )
    ready_file: str | None = option(
        None, "JSON file to write, in one piece, when the replica serves: address, pids, capacity", category=PROCESS
    )
    incarnation: str | None = option(
        None, "id of this life of the replica; without it random", category=PROCESS, min_length=1
    )

    @model_validator(mode="after")
    def _combinations(self) -> WorkerSettings:
        chunk, page = self.chunked_prefill_size, self.page_size
        if chunk == 0:
            raise ValueError("--chunked-prefill-size must be positive, or -1 for no chunks.")
        if chunk is not None and chunk > 0 and page is not None and chunk % page:
            raise ValueError(
                f"--chunked-prefill-size {chunk} must be a multiple of --page-size {page}; change one of the two."
            )
        if self.served_model_name is not None and ":" in self.served_model_name:
            raise ValueError("--served-model-name must not hold a colon; choose another name.")
        return self

    @property
    def model_name(self) -> str:
        """The name clients use."""
        return self.served_model_name or self.model_path.rstrip("/").rsplit("/", 1)[-1]
