"""How a worker is chosen. docs/routing.md says what each policy does and how the price is made."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from pydantic import field_validator, model_validator

from common.settings import Settings, option

POLICIES = (
    "cache_aware",
    "longest_prefix",
    "least_load",
    "power_of_two",
    "round_robin",
    "random",
    "consistent_hashing",
    "prefix_hash",
    "manual",
    "bucket",
)
PREFIX_POLICIES = ("cache_aware", "longest_prefix")  # that look at what workers hold
_POLICY_ALIASES = {"consistent_hash": "consistent_hashing", "sticky": "manual"}

_option = partial(option, category="Routing")


class RoutingSettings(Settings):
    """The policy, and what the policies can be told."""

    policy: str = _option("cache_aware", f"how a worker is chosen: {', '.join(POLICIES)}")
    shadow_policy: str | None = _option(
        None,
        "policy that is asked as well and not obeyed: metrics tell what it would have hit; takes as much memory again",
    )
    prefix_index_bytes: int = _option(
        256 * 2**20, "bytes of memory for the prefix index, all workers together", ge=2**20
    )
    max_tree_size: int = _option(2**26, "bytes of prompt text that the prefix index remembers for one worker", ge=256)
    eviction_interval_s: float = _option(
        120,
        "seconds between two sweeps of idle keys (manual); the prefix index needs none, it is bounded at all times",
        aliases=["eviction-interval", "eviction-interval-secs"],
        gt=0,
    )
    cache_threshold: float = _option(
        0,
        "cache_aware: share of a prompt below which a matching prefix counts for nothing",
        ge=0,
        le=1,
    )
    balance_abs_threshold: int = _option(
        64,
        "requests over the mean (bucket: over the least) that make a worker too busy to be chosen for its prefix; "
        "both thresholds must be passed",
        ge=0,
    )
    balance_rel_threshold: float = _option(1.5, "times the mean (bucket: the least) of requests, likewise", ge=1)
    assignment_mode: Literal["random", "min_load", "min_group"] = _option(
        "random", "manual: how a new key gets its worker"
    )
    sticky_idle_s: float = _option(
        4 * 3600,
        "manual: seconds without a request after which a key is forgotten",
        aliases=["max-idle-secs"],
        gt=0,
    )

    @field_validator("policy", "shadow_policy", mode="before")
    @classmethod
    def _plain_policy_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        name = value.replace("-", "_")
        return _POLICY_ALIASES.get(name, name)

    @model_validator(mode="after")
    def _check_policies(self) -> RoutingSettings:
        for flag, policy in (("--policy", self.policy), ("--shadow-policy", self.shadow_policy)):
            if policy is not None and policy not in POLICIES:
                raise ValueError(f"{flag} {policy!r} is unknown; choose one of {', '.join(POLICIES)}.")
        return self
