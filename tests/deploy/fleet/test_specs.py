"""What replicas reserve, what makes a new version of them, and what a cluster cannot hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from common.errors import UserError
from deploy.fleet.description import FleetDescription, PlacementDescription, ResourcesDescription
from deploy.fleet.specs import Cluster, Node, check_room, may_run, specs_of
from tests.helpers.fleets import AROUND, fleet, model, specs


@pytest.mark.parametrize(
    ("engine", "gpus", "has_gpus", "reserved"),
    [
        ({}, None, True, 1),
        ({}, None, False, 0),
        ({"tp_size": 4}, None, True, 4),
        ({"device": "cuda"}, None, False, 1),  # nodes with GPUs may still come
        ({"device": "cpu"}, None, True, 0),
        ({"device": "sim"}, None, True, 0),
        ({}, 0.5, True, 0.5),
        ({}, 2, False, 2),
    ],
)
def test_a_replica_reserves_a_gpu_for_each_rank(
    engine: dict[str, object], gpus: float | None, has_gpus: bool, reserved: float
) -> None:
    description = fleet(model(engine=engine, resources=ResourcesDescription(gpus=gpus)))
    assert specs(description, has_gpus=has_gpus)["m"].num_gpus == reserved


@pytest.mark.parametrize(
    ("asked", "node", "is_possible"),
    [
        ({}, Node(address="", cpus=8, gpus=0), False),  # others have GPUs, and a replica takes one
        ({}, Node(address="", cpus=8, gpus=1), True),
        ({}, Node(address="", cpus=0, gpus=1), False),
        ({"resources": ResourcesDescription(cpus=0)}, Node(address="", cpus=0, gpus=1), True),
        ({"engine": {"device": "cpu"}}, Node(address="", cpus=1, gpus=0), True),
        ({"placement": PlacementDescription(labels={"zone": "a"})}, Node(address="", cpus=8, gpus=8), False),
    ],
)
def test_a_node_without_what_a_replica_takes_need_not_have_its_model(
    asked: dict[str, Any], node: Node, is_possible: bool
) -> None:
    assert may_run(model(**asked), node, has_gpus=True) is is_possible


def test_threads_follow_the_reserved_cpus_or_the_shared_machine() -> None:
    description = fleet(model(resources=ResourcesDescription(cpus=2.5)))
    spec = specs(description)["m"]
    assert (spec.num_cpus, spec.settings["cpu_threads"]) == (2.5, 2)
    shared = msgspec.structs.replace(AROUND, cpu_threads=3)
    spec = specs_of(description, shared, has_gpus=False)["m"]
    assert (spec.num_cpus, spec.settings["cpu_threads"]) == (0, 3)


def test_the_version_is_that_of_what_a_process_is_started_with() -> None:
    plain = model(engine={"schedule_policy": "lpm", "page_size": 16})
    version = specs(fleet(plain))["m"].version
    same = [
        msgspec.structs.replace(plain, engine={"page_size": 16, "schedule_policy": "lpm"}),
        msgspec.structs.replace(plain, start_timeout_s=5.0, drain_timeout_s=5.0),
        model(replicas=7, engine=plain.engine),
    ]
    other = [
        msgspec.structs.replace(plain, engine={}),
        msgspec.structs.replace(plain, model="/models/other"),
        msgspec.structs.replace(plain, resources=ResourcesDescription(cpus=2)),
        msgspec.structs.replace(plain, placement=PlacementDescription(labels={"zone": "a"})),
    ]
    assert {specs(fleet(each))["m"].version for each in same} == {version}
    assert len({specs(fleet(each))["m"].version for each in other} | {version}) == 5


@dataclass(frozen=True)
class Case:
    """A fleet that does not fit, and why."""

    description: FleetDescription
    sentence: str
    nodes: list[Node] = field(
        default_factory=lambda: [Node(address="a", cpus=8, gpus=2), Node(address="b", cpus=8, gpus=2)]
    )


@pytest.mark.parametrize(
    "case",
    [
        Case(
            fleet(model("chat", 3, engine={"device": "cuda", "tp_size": 2})),
            "The fleet needs 6 GPUs (chat 6), the cluster has 4: 2 missing; add nodes or lower replicas.",
        ),
        Case(
            fleet(model("a", 3), model("b", 2)),
            "The fleet needs 5 GPUs (a 3, b 2), the cluster has 4: 1 missing; add nodes or lower replicas.",
        ),
        Case(
            fleet(model("chat", 1, engine={"tp_size": 4})),
            "A replica of model chat needs 4 GPUs on one node and no node has more than 2: 2 missing.",
        ),
        Case(
            fleet(model("chat", 1, resources=ResourcesDescription(cpus=9))),
            "A replica of model chat needs 9 CPUs on one node and no node has more than 8: 1 missing.",
        ),
        Case(
            fleet(model("chat", 1, placement=PlacementDescription(labels={"zone": "z"}))),
            "No node of the cluster has the labels zone=z, which model chat asks for.",
        ),
    ],
)
def test_a_fleet_that_does_not_fit_says_what_is_missing(case: Case) -> None:
    wanted = {m.name: m.replicas.min for m in case.description.models}
    with pytest.raises(UserError) as caught:
        check_room(specs(case.description, has_gpus=True), wanted, Cluster(nodes=case.nodes))
    assert str(caught.value) == case.sentence


def test_a_cluster_that_grows_by_itself_is_judged_by_what_it_may_become() -> None:
    description = fleet(model("chat", 3, engine={"device": "cuda"}))
    head = Node(address="head", cpus=4, gpus=0)
    growing = Cluster(nodes=[head], limits=Node(address="", cpus=100, gpus=4))
    assert growing.has_gpus
    check_room(specs(description), {"chat": 4}, growing)
    with pytest.raises(UserError, match="needs 5 GPUs .* 1 missing"):
        check_room(specs(description), {"chat": 5}, growing)
