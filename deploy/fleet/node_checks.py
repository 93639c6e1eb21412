"""What only a node itself can tell before anything is changed: whether models are there, whether the port is free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from common.errors import UserError
from common.process import bind_port
from common.settings import validated
from deploy.fleet.description import FleetDescription
from deploy.fleet.placement import head_node_id, node_of
from deploy.fleet.specs import may_run
from deploy.model_source import find_model
from gateway.config import GatewaySettings

_TIMEOUT_S = 60.0


def check_nodes(fleet: FleetDescription, *, port_is_ours: bool) -> None:
    """Raise UserError for a model that a node which may run it does not have, and for a gateway port that is taken.

    Asks all nodes at once, by a small task on each; the first takes seconds, while Ray starts a process for it.
    """
    alive = {node["NodeID"]: node_of(node["NodeManagerAddress"], node) for node in ray.nodes() if node["Alive"]}
    has_gpus = any(node.gpus for node in alive.values())
    asked = []
    for node_id, node in alive.items():
        if sources := [model.model for model in fleet.models if may_run(model, node, has_gpus=has_gpus)]:
            asked.append((node.address, _on(node_id, look_for_models, sources)))
    gateway = validated(GatewaySettings, fleet.gateway)
    if not port_is_ours:
        asked.append(("", _on(head_node_id(), look_at_port, gateway.host, gateway.port)))
    for address, call in asked:
        try:
            fault = ray.get(call, timeout=_TIMEOUT_S)
        except (RayError, TimeoutError) as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise UserError(f"Node {address or 'of the head'} cannot run canopy: {reason}") from None
        if fault:
            raise UserError(f"Node {address}: {fault}" if address else f"gateway: {fault}")


def look_for_models(sources: Sequence[str]) -> str:
    """The first fault of a model on this node, or nothing."""
    for source in sources:
        try:
            find_model(source)
        except UserError as error:
            return str(error)
    return ""


def look_at_port(host: str, port: int) -> str:
    """Why the port cannot be had on this node, or nothing."""
    try:
        bind_port(host, port).close()
    except UserError as error:
        return str(error)
    return ""


def _on(node_id: str, function: Any, *args: object) -> Any:
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=strategy, max_retries=0).remote(*args)
