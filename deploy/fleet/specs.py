"""From what the owner of a fleet wants to how each replica is run, and whether the cluster can hold that. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from common.errors import UserError
from deploy.fleet.description import FleetDescription, ModelDescription
from deploy.fleet.messages import ReplicaSpec

_NO_GPU = ("cpu", "sim")


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What replicas need to know of where they run, beside their description."""

    command: list[str]
    log_dir: str
    host: str = ""  # address workers bind; empty: that of their node
    runs_gateway: bool = True  # the fleet runs its gateway itself
    cpu_threads: int = 0  # of a replica, where all share one machine without counting CPUs; 0: as many as its CPUs


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of the cluster, with all that it has, used or not."""

    address: str
    cpus: float
    gpus: float
    labels: dict[str, str] = {}


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that are there. `limits`: all that Ray's autoscaler may make of them; None where nobody adds any."""

    nodes: list[Node]
    limits: Node | None = None

    @property
    def has_gpus(self) -> bool:
        """Whether a replica that runs on whatever there is gets a GPU."""
        return any(node.gpus for node in self.whole)

    @property
    def whole(self) -> list[Node]:
        """All that may be used, in the end."""
        return self.nodes if self.limits is None else [self.limits]


def specs_of(fleet: FleetDescription, around: Surroundings, *, has_gpus: bool) -> dict[str, ReplicaSpec]:
    """By model name. `has_gpus`: whether any node has, for models that run on whatever there is."""
    return {model.name: _spec_of(model, around, has_gpus=has_gpus) for model in fleet.models}


def gpus_of(model: ModelDescription, *, has_gpus: bool) -> float:
    """GPUs that one replica reserves: those asked for, else one for each tensor-parallel rank."""
    if model.resources.gpus is not None:
        return model.resources.gpus
    device = model.engine.get("device", "auto")
    if device in _NO_GPU or (device == "auto" and not has_gpus):
        return 0.0
    return float(model.engine.get("tp_size", 1))


def may_run(model: ModelDescription, node: Node, *, has_gpus: bool) -> bool:
    """Whether a replica of the model would find a place on this node if nothing else were on it."""
    return (
        model.placement.labels.items() <= node.labels.items()
        and node.gpus >= gpus_of(model, has_gpus=has_gpus)
        and node.cpus >= _cpus_of(model)
    )


def check_room(specs: Mapping[str, ReplicaSpec], wanted: Mapping[str, int], cluster: Cluster) -> None:
    """Raise UserError if the cluster, with nothing else on it, cannot hold `wanted` replicas of each model."""
    if cluster.limits is None:  # what a node to come looks like is not known
        for name, spec in specs.items():
            _check_one(name, spec, cluster.nodes)
    gpus = {name: spec.num_gpus * wanted[name] for name, spec in specs.items()}
    cpus = {name: spec.num_cpus * wanted[name] for name, spec in specs.items()}
    _check_sum("GPU", gpus, sum(node.gpus for node in cluster.whole))
    _check_sum("CPU", cpus, sum(node.cpus for node in cluster.whole))


def _cpus_of(model: ModelDescription) -> float:
    return 1.0 if model.resources.cpus is None else model.resources.cpus


def _spec_of(model: ModelDescription, around: Surroundings, *, has_gpus: bool) -> ReplicaSpec:
    cpus = _cpus_of(model)
    threads = around.cpu_threads or max(1, int(cpus))
    return ReplicaSpec(
        model=model.name,
        source=model.model,
        settings={"cpu_threads": threads, **model.engine, "port": 0, "served_model_name": model.name},
        log_dir=around.log_dir,
        command=around.command,
        host=around.host,
        num_cpus=0.0 if around.cpu_threads else cpus,
        num_gpus=gpus_of(model, has_gpus=has_gpus),
        spread=model.placement.strategy == "spread",
        labels=model.placement.labels,
        start_timeout_s=model.start_timeout_s,
        drain_timeout_s=model.drain_timeout_s,
    )


def _check_one(name: str, spec: ReplicaSpec, nodes: Sequence[Node]) -> None:
    fitting = [node for node in nodes if spec.labels.items() <= node.labels.items()]
    if not fitting:
        labels = ", ".join(f"{key}={value}" for key, value in spec.labels.items())
        raise UserError(f"No node of the cluster has the labels {labels}, which model {name} asks for.")
    if all(node.gpus < spec.num_gpus for node in fitting):
        most = max(node.gpus for node in fitting)
        raise UserError(
            f"A replica of model {name} needs {_count(spec.num_gpus, 'GPU')} on one node and no node has more than "
            f"{most:g}: {spec.num_gpus - most:g} missing."
        )
    if all(node.cpus < spec.num_cpus for node in fitting):
        most = max(node.cpus for node in fitting)
        raise UserError(
            f"A replica of model {name} needs {_count(spec.num_cpus, 'CPU')} on one node and no node has more than "
            f"{most:g}: {spec.num_cpus - most:g} missing."
        )


def _check_sum(what: str, needs: Mapping[str, float], there: float) -> None:
    needed = sum(needs.values())
    if needed > there:
        each = ", ".join(f"{name} {need:g}" for name, need in needs.items() if need)
        raise UserError(
            f"The fleet needs {_count(needed, what)} ({each}), the cluster has {there:g}: {needed - there:g} missing; "
            "add nodes or lower replicas."
        )


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}" if number == 1 else f"{number:g} {what}s"
