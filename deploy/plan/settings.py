"""Settings of `canopy plan`: the load, the targets, and the settings of replicas and gateway that change the answer."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from pydantic import create_model

from common.errors import UserError
from common.settings import Settings, load, option, settings_of, validated
from deploy.plan.fleet import FleetSpec
from deploy.plan.planning import Variant
from deploy.plan.targets import Target, parse_targets
from gateway.config import GatewaySettings
from gateway.settings.routing import RoutingSettings
from worker.config import WorkerSettings
from worker.engine.sim.profile import load_profile
from worker.models.config import ModelConfig
from worker.settings.memory import MemorySettings
from worker.settings.optimization import OptimizationSettings

_LOAD, _ANSWER = "Load", "Answer"
_DEVICE = ("sim_profile", "sim_speed", "context_length")  # of WorkerSettings
_WITHOUT_EFFECT = frozenset({"cpu_threads", "grammar_backend", "disable_prefill_cuda_graph"})
_DEFAULT_CONTEXT = 131_072
_SIZES = re.compile(r"(\d+)(?:-(\d+))?")


class PlanSettings(Settings):
    """How many replicas a load needs: canopy plan [TRACE] [flags]. TRACE: Mooncake's JSON lines, or Azure's CSV."""

    trace_speed: float = option(1.0, "times faster than the trace", category=_LOAD, gt=0)
    trace_rounds: int = option(1, "the trace so many times in a row", category=_LOAD, ge=1)
    trace_requests: int | None = option(None, "first requests of the trace only", category=_LOAD, ge=1)
    rate: float | None = option(None, "requests a second, as a Poisson process", category=_LOAD, gt=0)
    hours: float = option(1.0, "how long the described load lasts", category=_LOAD, gt=0)
    prompt_tokens: str = option(
        "1024", "its prompts: 1000, 200-2000 (uniform) or p50=900,p90=2700 (log-normal)", category=_LOAD
    )
    output_tokens: str = option("256", "its answers, likewise", category=_LOAD)
    shared_prefix_share: float = option(
        0.0, "share of each of its prompts that is one of --shared-prefixes", category=_LOAD, ge=0, le=1
    )
    shared_prefixes: int = option(8, "different shared beginnings", category=_LOAD, ge=1, le=4096)
    slo: list[str] = option([], "targets, all to be kept: ttft_p90=2s, tpot_p99=50ms, e2e_p50=30s", category=_ANSWER)
    replicas: str = option("1-64", "sizes to choose from, or one size", category=_ANSWER)
    vary: list[str] = option(
        [],
        "settings to try in all combinations: policy=cache_aware,random chunked-prefill-size=2048,8192",
        category=_ANSWER,
    )
    sample_requests: int = option(
        16_000, "of a longer load run slices with so many requests in all; 0 = run everything", category=_ANSWER, ge=0
    )
    jobs: int | None = option(None, "processes; without it one for each CPU", category=_ANSWER, ge=1)
    seed: int = option(1, "of everything that is drawn", category=_ANSWER, ge=0)
    plot: str | None = option(
        None, "SVG file: replicas against the share of requests in time", category=_ANSWER, min_length=1, path=True
    )
    json_output: bool = option(False, "print JSON instead of a table", category=_ANSWER, aliases=["json"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What the user asked, read. `low` and `high` are the sizes to choose from."""

    own: PlanSettings
    targets: tuple[Target, ...]
    low: int
    high: int
    jobs: int
    variants: list[Variant]


def read_request(argv: Sequence[str], env: Mapping[str, str]) -> PlanRequest:
    """Parse the flags. Raises UserError for any fault."""
    loaded = load(_combined(), argv, env, prog="canopy plan")
    values = {name: getattr(loaded.settings, name) for name in loaded.sources}
    own = validated(PlanSettings, _those_of(PlanSettings, values))
    low, high = _sizes(own.replicas)
    targets = parse_targets(own.slo)
    if not targets and low != high:
        raise UserError("--slo is missing: say what must be kept, such as --slo ttft_p90=2s, or give one --replicas.")
    jobs = own.jobs or len(os.sched_getaffinity(0))
    return PlanRequest(own=own, targets=targets, low=low, high=high, jobs=jobs, variants=_variants(own.vary, values))


@cache
def _combined() -> type[Settings]:
    """One class for the parser and the help page."""
    fields: dict[str, Any] = {}
    worker_only = [each for each in settings_of(WorkerSettings) if each.name in _DEVICE]
    others = [*settings_of(MemorySettings), *settings_of(OptimizationSettings), *settings_of(RoutingSettings)]
    for setting in (*settings_of(PlanSettings), *worker_only, *others):
        if setting.not_built is None and setting.name not in _WITHOUT_EFFECT:
            fields[setting.name] = (setting.field.annotation, setting.field)
    return create_model("CombinedPlanSettings", __base__=Settings, __doc__=PlanSettings.__doc__, **fields)


def _those_of(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in cls.model_fields}


def _sizes(text: str) -> tuple[int, int]:
    found = _SIZES.fullmatch(text)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < low <= high:
        raise UserError(f"--replicas {text!r} is no size; write 16, or 1-64 to choose from.")
    return low, high


def _variants(vary: Sequence[str], values: Mapping[str, Any]) -> list[Variant]:
    choices = [_choices(text) for text in vary]
    return [
        Variant(" ".join(f"{name}={value}" for name, value in chosen), _spec({**values, **dict(chosen)}))
        for chosen in product(*choices)
    ]


def _choices(text: str) -> list[tuple[str, str]]:
    """(setting, value) for each value of one --vary."""
    flag, _, listed = text.partition("=")
    spellings = {spelling: each for each in settings_of(_combined()) for spelling in each.spellings}
    setting = spellings.get(flag.removeprefix("--").replace("_", "-"))
    if setting is None or setting.name in PlanSettings.model_fields or not listed:
        raise UserError(f"--vary {text!r}: write SETTING=VALUE,VALUE with a setting of replicas, gateway or device.")
    return [(setting.name, value) for value in listed.split(",")]


def _spec(values: Mapping[str, Any]) -> FleetSpec:
    worker = validated(WorkerSettings, {**_those_of(WorkerSettings, values), "model_path": "plan", "device": "sim"})
    return FleetSpec(
        worker=worker,
        gateway=validated(GatewaySettings, _those_of(GatewaySettings, values)),
        config=model_of(worker.context_length or _DEFAULT_CONTEXT),
        profile=load_profile(worker.sim_profile),
    )


def model_of(context_len: int) -> ModelConfig:
    """A model of which only the context counts: what it costs is the profile's."""
    return ModelConfig(
        architecture="plan",
        vocab_size=1,  # bounds answers only, which are all one token
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=1,
        context_len=context_len,
        eos_token_ids=(),
        dtype="bfloat16",
    )
