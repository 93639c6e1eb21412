"""`ray up` with real sshd and systemd on machines of their own: three nodes serve, reboots heal, nothing is left."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.helpers.machines import Lab, Machine, missing_for_machines
from tests.helpers.processes import wait_until
from tests.helpers.ray_up import GATEWAY_PORT, TOKEN, VENV, RayUpCluster, fleet_file
from tests.helpers.text_models import save_tiny_chat_model

pytestmark = [pytest.mark.ray_cluster, pytest.mark.timeout(1500)]

UP_LIMIT_S = 400.0
DOWN_LIMIT_S = 150.0  # workers notice after a minute that their head is gone
RAY_PORTS = {*range(6379, 6386), 8265, 44217, 44227, *range(10001, 20000)}
OTHER_ADDRESS = "10.88.0.11"  # the head's public side, so to say

Before = dict[str, set[tuple[str, int]]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayUpCluster]:
    if reason := missing_for_machines():
        pytest.skip(reason)
    model = save_tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat")
    with Lab(tmp_path_factory.mktemp("lab")) as lab:
        yield RayUpCluster.prepared(lab, model)


@pytest.fixture(scope="module")
def ports_before(cluster: RayUpCluster) -> Before:
    return {node.name: node.listening() for node in cluster.nodes}


def wait_for_three_nodes(cluster: RayUpCluster, unlike: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Three ready replicas, one on each node, none of the lives in `unlike`, and the gateway answers."""
    addresses = {node.address for node in cluster.nodes}

    def all_there() -> bool:
        if cluster.ready_workers() < len(addresses):
            return False
        ready = cluster.replicas()
        are_new = not {record["incarnation"] for record in ready} & unlike
        return {record["node"] for record in ready} == addresses and are_new and cluster.serves()

    wait_until(all_there, UP_LIMIT_S, "a ready replica on each of three nodes")


def test_after_ray_up_three_nodes_serve(cluster: RayUpCluster, ports_before: Before) -> None:
    began_s = time.monotonic()
    output = cluster.ray("up -y", timeout_s=UP_LIMIT_S)
    head_s = time.monotonic() - began_s
    assert "will not be started" not in output and "will not launch" not in output
    wait_for_three_nodes(cluster)
    print(f"ray up: head up after {head_s:.0f} s, three nodes serve after {time.monotonic() - began_s:.0f} s")
    served = {cluster.chat(f"question {n} " * 50)["id"] for n in range(12)}
    assert len(served) == 12


def test_status_is_there_through_ray_exec(cluster: RayUpCluster) -> None:
    output = cluster.ray("exec", "canopy status --json --address auto")
    assert all(f'"replica-{number}"' in output for number in range(3)), output


def apply(cluster: RayUpCluster, replicas: int) -> None:
    """As docs/clusters.md tells to."""
    cluster.laptop.put({"project/deploy/fleet.yaml": fleet_file(replicas)})
    cluster.ray("rsync-up", "deploy/fleet.yaml", "~/canopy/fleet.yaml")
    cluster.ray("exec", "sudo systemctl reload canopy-fleet@$USER", timeout_s=UP_LIMIT_S)


def test_a_changed_fleet_file_changes_only_what_differs(cluster: RayUpCluster) -> None:
    before = {record["incarnation"] for record in cluster.replicas()}
    apply(cluster, replicas=2)
    fewer = {record["incarnation"] for record in cluster.replicas()}
    assert len(fewer) == 2 and fewer < before
    apply(cluster, replicas=3)
    wait_for_three_nodes(cluster)
    assert fewer < {record["incarnation"] for record in cluster.replicas()}


def test_the_token_is_the_owners_alone(cluster: RayUpCluster) -> None:
    for node in cluster.nodes:
        assert node.run("stat -c '%a %U' ~/canopy/secrets ~/canopy/secrets/ray-token").split() == [
            *("700", "canopy"),
            *("600", "canopy"),
        ]
        assert not [line for line in node.processes().values() if TOKEN in line]


def test_a_stranger_is_turned_away(cluster: RayUpCluster) -> None:
    cluster.laptop.put({"wrong-token": "0" * 64})
    for stranger in ("RAY_AUTH_MODE=disabled", "RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=~/wrong-token"):
        ask = f"{stranger} {VENV}/bin/canopy status --address {cluster.head.address}:6379; echo code $?"
        said, code = cluster.laptop.run(ask, check=False).splitlines()
        assert said.startswith(f"canopy: Cannot ask the Ray at {cluster.head.address}:6379: ")
        assert code == "code 2"


def test_a_container_beside_a_node_attaches_to_it(cluster: RayUpCluster) -> None:
    """As a pod's gateway does on Kubernetes: mounts of its own; network, process ids and /tmp shared with Ray."""
    ask = f". /etc/profile.d/canopy.sh; canopy status --json --address {cluster.head.address}:6379"
    container = f"sudo unshare --mount --fork su --login canopy --command '{ask}'"
    (fleet,) = json.loads(cluster.workers[0].run(container))
    assert len(fleet["replicas"]) == 3


def can_connect(machine: Machine, host: str, port: int) -> bool:
    code = machine.run(f"timeout 2 bash -c '</dev/tcp/{host}/{port}' 2> /dev/null; echo $?", check=False)
    return code.strip() == "0"


def test_ray_answers_on_the_private_address_only(cluster: RayUpCluster) -> None:
    head, laptop = cluster.head, cluster.laptop
    head.run(f"sudo ip addr add {OTHER_ADDRESS}/24 dev eth0")
    laptop.run("sudo ip addr add 10.88.0.10/24 dev eth0")
    everywhere = {port for host, port in head.listening() if host in ("*", "0.0.0.0", "::")} & RAY_PORTS
    assert 6379 in everywhere, "Ray has learnt to bind: the firewall is no longer needed"
    assert {port for host, port in head.listening() if port == 8265 and host != "127.0.0.1"} == set()
    for port in sorted(everywhere):
        assert not can_connect(laptop, OTHER_ADDRESS, port), f"port {port} answers on the other address"
    assert can_connect(laptop, head.address, 6379)
    assert can_connect(laptop, OTHER_ADDRESS, GATEWAY_PORT)


def test_a_rebooted_worker_joins_again(cluster: RayUpCluster) -> None:
    worker = cluster.workers[0]
    lost = {record["incarnation"] for record in cluster.replicas() if record["node"] == worker.address}
    worker.cut_power()
    began_s = time.monotonic()
    assert cluster.serves(), "two nodes go on"
    worker.boot()
    wait_for_three_nodes(cluster, unlike=lost)
    print(f"worker rebooted: serves again after {time.monotonic() - began_s:.0f} s")


def test_a_rebooted_head_brings_the_fleet_back(cluster: RayUpCluster) -> None:
    lost = {record["incarnation"] for record in cluster.replicas()}
    cluster.head.cut_power()
    began_s = time.monotonic()
    cluster.head.boot()
    wait_until(lambda: cluster.ready_workers() and cluster.serves(), UP_LIMIT_S, "the gateway answers again")
    first_s = time.monotonic() - began_s
    wait_for_three_nodes(cluster, unlike=lost)
    print(f"head rebooted: answers after {first_s:.0f} s, three nodes after {time.monotonic() - began_s:.0f} s")


def test_ray_down_leaves_nothing(cluster: RayUpCluster, ports_before: Before) -> None:
    began_s = time.monotonic()
    cluster.ray("down -y", timeout_s=DOWN_LIMIT_S)

    def leftovers() -> list[str]:
        return [
            line
            for node in cluster.nodes
            for line in node.processes().values()
            if any(word in line for word in ("ray", "canopy serve", "gateway", "worker", "deploy.guard", str(VENV)))
        ]

    wait_until(lambda: not leftovers(), DOWN_LIMIT_S, "nothing of the cluster runs")
    print(f"ray down: nothing left after {time.monotonic() - began_s:.0f} s")
    for node in cluster.nodes:
        assert node.listening() == ports_before[node.name]
        assert "canopy_ray" not in node.run("sudo nft list tables")
