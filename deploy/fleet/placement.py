"""Where Ray puts a replica: the options of its actor, the placement group of several GPUs, and what room there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from common.fleet import RAY_NAMESPACE
from deploy.fleet.messages import Life, ReplicaSpec
from deploy.fleet.specs import Cluster, Node

_GROUP_PREFIX = "canopy-gpus:"


def actor_options(life: Life, spec: ReplicaSpec) -> dict[str, Any]:
    """Ray options that reserve what a replica needs. Several GPUs are reserved together, on one node or not at all."""
    whole = int(spec.num_gpus) if spec.num_gpus > 1 else spec.num_gpus
    reserved: dict[str, Any] = {"num_cpus": spec.num_cpus, "num_gpus": whole}
    if spec.num_gpus > 1:
        group = _reserve(life, spec)
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        return {**reserved, "scheduling_strategy": strategy}
    if spec.labels:
        reserved["label_selector"] = spec.labels
    return {**reserved, "scheduling_strategy": "SPREAD" if spec.spread else "DEFAULT"}


def release(life: Life) -> None:
    """Give up the placement group of a life that is over, if it had one."""
    try:
        remove_placement_group(get_placement_group(_group_name(life)))
    except ValueError:
        return  # it had none


def cluster() -> Cluster:
    """The machines that are alive, and what they may become. Blocking."""
    from ray._private.state import state  # no public way to ask for the limits

    limits = state.get_max_resources_from_cluster_config()
    return Cluster(
        nodes=[node_of(node["NodeManagerAddress"], node) for node in ray.nodes() if node["Alive"]],
        limits=Node(address="", cpus=limits.get("CPU", 0), gpus=limits.get("GPU", 0)) if limits else None,
    )


def head_node_id() -> str:
    """Of the node where Ray's head runs. Blocking."""
    return str(next(node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"]))


def has_room(spec: ReplicaSpec) -> bool:
    """Whether one more replica would find a place on some node at once. Blocking."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    alive = {node["NodeID"]: node_of("", node) for node in ray.nodes() if node["Alive"]}
    return any(
        spec.labels.items() <= node.labels.items()
        and free.get(node_id, {}).get("CPU", 0.0) >= spec.num_cpus
        and free.get(node_id, {}).get("GPU", 0.0) >= spec.num_gpus
        for node_id, node in alive.items()
    )


def node_of(address: str, node: Mapping[str, Any]) -> Node:
    """From what `ray.nodes()` tells of it."""
    resources = node["Resources"]
    labels = {str(k): str(v) for k, v in node.get("Labels", {}).items()}
    return Node(address=address, cpus=resources.get("CPU", 0.0), gpus=resources.get("GPU", 0.0), labels=labels)


def _reserve(life: Life, spec: ReplicaSpec) -> PlacementGroup:
    """One bundle, because one process starts all ranks: Ray shows an actor the GPUs of its own bundle only."""
    return placement_group(
        [{"GPU": spec.num_gpus, "CPU": spec.num_cpus}],
        strategy="STRICT_PACK",
        name=_group_name(life),
        lifetime="detached",
        bundle_label_selector=[spec.labels] if spec.labels else None,
    )


def _group_name(life: Life) -> str:
    return f"{_GROUP_PREFIX}{RAY_NAMESPACE}:{life.incarnation}"
