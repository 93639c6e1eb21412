"""The fleet file: what it may say, and one sentence for everything it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from common.errors import UserError
from deploy.fleet.description import AutoscalingDescription, FleetDescription, ReplicaBounds
from deploy.fleet.description_file import read_fleet

SAMPLE = Path(__file__).parents[3] / "deploy" / "fleet.yaml"
CHAT: dict[str, Any] = {"name": "chat", "model": "demo"}


def write(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


def fault(tmp_path: Path, content: Any) -> str:
    path = write(tmp_path, content)
    with pytest.raises(UserError) as caught:
        read_fleet(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(path, "fleet.yaml")


def test_the_sample_is_valid_and_survives_the_wire() -> None:
    fleet = read_fleet(str(SAMPLE))
    (chat,) = fleet.models
    assert (chat.name, chat.replicas) == ("chat", ReplicaBounds(min=2, max=4))
    assert chat.engine == {"schedule_policy": "lpm"}
    assert chat.autoscaling == AutoscalingDescription(ttft_s=2.0)
    assert fleet.gateway == {"host": "0.0.0.0", "port": 8000, "policy": "cache_aware"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fleet), type=FleetDescription) == fleet


def test_a_number_of_replicas_is_a_fixed_number(tmp_path: Path) -> None:
    fleet = read_fleet(write(tmp_path, {"models": [{**CHAT, "replicas": 3}, {"name": "b", "model": "demo"}]}))
    assert [model.replicas for model in fleet.models] == [ReplicaBounds(min=3, max=3), ReplicaBounds(min=1, max=1)]
    assert fleet.model("b") is fleet.models[1]
    assert fleet.model("c") is None


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    monkeypatch.chdir(tmp_path)
    fleet = read_fleet(write(tmp_path, {"models": [{"name": "a", "model": "weights"}]}))
    assert fleet.models[0].model == str(tmp_path / "weights")


def test_exact_routing_makes_workers_publish_their_caches(tmp_path: Path) -> None:
    fleet = read_fleet(write(tmp_path, {"models": [CHAT], "gateway": {"routing-mode": "exact"}}))
    assert fleet.models[0].engine == {"kv_events_config": {"publisher": "zmq"}}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "fleet.yaml has no models; list at least one under `models:`."),
        ("- a", "--cluster: the root of fleet.yaml must be a mapping of settings."),
        ("models: [", "--cluster: fleet.yaml is not valid YAML: "),
        ({"models": [CHAT], "gatewy": {}}, "fleet.yaml has the unknown key 'gatewy'; did you mean gateway?"),
        ({"models": [{**CHAT, "replcas": 1}]}, "fleet.yaml: model chat has the unknown key 'replcas'; did you mean"),
        ({"models": [{"model": "demo"}]}, "fleet.yaml: a model needs the key name."),
        ({"models": [{"name": "chat"}]}, "fleet.yaml: model chat needs the key model."),
        ({"models": {"name": "chat"}}, "fleet.yaml: models must be a list of mappings"),
        ({"models": [{**CHAT, "replicas": 0}]}, "fleet.yaml: model chat: replicas.min must be a whole number >= 1."),
        ({"models": [{**CHAT, "replicas": True}]}, "fleet.yaml: model chat: replicas must be a mapping, got bool."),
        (
            {"models": [{**CHAT, "replicas": {"min": 3, "max": 2}}]},
            "fleet.yaml: model chat: replicas: min (3) must be at most max (2).",
        ),
        (
            {"models": [{**CHAT, "replicas": {"min": 3, "max": 4, "now": 3}}]},
            "fleet.yaml: model chat: replicas has the unknown key 'now'; there are min, max.",
        ),
        (
            {"models": [{**CHAT, "autoscaling": {"down_delay": 3}}]},
            "fleet.yaml: model chat: autoscaling has the unknown key 'down_delay'; did you mean down_delay_s?",
        ),
        (
            {"models": [{**CHAT, "replicas": 2, "autoscaling": {}}]},
            "fleet.yaml: model chat: autoscaling needs replicas with min below max.",
        ),
        ({"models": [{**CHAT, "resources": {"gpus": 1.5}}]}, "resources: gpus (1.5) must be whole above 1."),
        ({"models": [CHAT, CHAT]}, "fleet.yaml: two models are called 'chat'."),
        (
            {"models": [{**CHAT, "engine": {"schedule-polcy": "lpm"}}]},
            "fleet.yaml: model chat: engine has the unknown key 'schedule-polcy'; did you mean schedule-policy?",
        ),
        (
            {"models": [{**CHAT, "engine": {"schedule-policy": "best"}}]},
            "schedule-policy in fleet.yaml: model chat: engine must be ",
        ),
        (
            {"models": [{**CHAT, "engine": {"port": 1}}]},
            "port in fleet.yaml: model chat: engine is decided by the fleet; leave it out.",
        ),
        ({"models": [{**CHAT, "engine": {"tp-size": 2}}]}, "--tp-size 2 is not built yet: a replica uses one GPU"),
        ({"models": [CHAT], "gateway": {"polcy": "x"}}, "fleet.yaml: gateway has the unknown key"),
        ({"models": [CHAT], "gateway": {"worker-urls": ["x"]}}, "is decided by the fleet; leave it out."),
        ("models: [{name: a, model: demo}]\nmodels: []", "fleet.yaml sets models twice; keep one of the two."),
    ],
)
def test_a_fault_is_one_sentence(tmp_path: Path, content: Any, sentence: str) -> None:
    assert sentence in fault(tmp_path, content)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--cluster: cannot read .*fleet.yaml: No such file"):
        read_fleet(str(tmp_path / "fleet.yaml"))
