"""The device and the processes of one replica: seed, time-outs, start and end."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field, model_validator

from common.settings import Settings, flag_of, option

_option = partial(option, category="Device and process")

_VISIBLE = "set CUDA_VISIBLE_DEVICES instead; canopy serve does it for its replicas"


class ProcessSettings(Settings):
    """Device and process."""

    device: Literal["auto", "cpu", "cuda", "sim"] = _option(
        "auto", "auto = cuda if a GPU is found, else cpu; sim = a simulated accelerator"
    )
    sim_profile: str = _option(
        "h200-llama3-8b",
        "speed and memory of the simulated accelerator: a built-in name or a JSON file",
        min_length=1,
        path=True,
    )
    sim_speed: float = _option(1.0, "how many times faster than life the simulated accelerator runs", gt=0)
    random_seed: int | None = _option(None, "seed of unseeded requests; without it random", ge=0)
    watchdog_timeout_s: float = _option(
        300, "seconds a step may take before the replica gives up", aliases=["watchdog-timeout"], gt=0
    )
    shutdown_grace_s: float = _option(
        30, "seconds running requests may take to finish after SIGTERM or Ctrl-C; then they are dropped", ge=0
    )
    gc_threshold: list[Annotated[int, Field(ge=0)]] | None = _option(
        None,
        "new objects between garbage collections, one to three numbers; without it 50000 in the scheduler",
        min_length=1,
        max_length=3,
    )
    sleep_on_idle: bool = _option(False, "no busy waiting; there is none, so this changes nothing")
    ready_file: str | None = _option(
        None,
        "JSON file to write, in one piece, when the replica serves: address, pids, capacity",
        min_length=1,
        path=True,
    )
    incarnation: str | None = _option(None, "id of this life of the replica; without it random", min_length=1)

    soft_watchdog_timeout: float | None = _option(
        None,
        "seconds a step may take before stacks are written",
        not_built="use --watchdog-timeout, it writes them too",
    )
    base_gpu_id: int = _option(0, "first GPU", not_built=_VISIBLE)
    gpu_id_step: int = _option(1, "distance between GPUs", not_built=_VISIBLE)
    numa_node: list[int] | None = _option(None, "memory nodes of the ranks", not_built="start it under numactl")
    cpu_offload_gb: int = _option(
        0, "weights kept in host memory, GiB", not_built="pick a model that fits the GPU's memory"
    )
    enable_memory_saver: bool = _option(
        False, "give GPU memory back while paused", not_built="stop the replica instead"
    )
    use_ray: bool = _option(False, "run ranks as Ray actors", not_built="canopy serve runs replicas on Ray by itself")

    @model_validator(mode="after")
    def _check_simulation(self) -> ProcessSettings:
        for name in ("sim_profile", "sim_speed"):
            if self.device != "sim" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{flag_of(name)} needs --device sim; add that, or leave it out.")
        return self
