"""What is refused before anything is loaded, and what is not judged yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from tests.helpers.tiny_models import build_tiny
from worker import preflight
from worker.config import WorkerSettings
from worker.preflight import check_before_loading


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny("llama", tmp_path_factory.mktemp("models") / "tiny").path


def check(path: Path | str, **settings: Any) -> None:
    check_before_loading(WorkerSettings(model_path=str(path), **settings))


def test_what_is_good_or_not_to_be_judged_yet(model: Path, tmp_path: Path) -> None:
    check(model, chat_template="chatml", tokenizer_path=str(model), context_length=16)
    check("someone/model", tokenizer_path="someone/tokenizer")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Unheard"]}))
    check(tmp_path, context_length=10**9)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"context_length": 10**6}, "--context-length 1000000 exceeds the "),
        ({"chat_template": "nope"}, "--chat-template: 'nope' is no file and no built-in template"),
        ({"tokenizer_path": "/nope"}, "--tokenizer-path /nope does not exist; name a directory with a tokenizer.json."),
        ({"default_chat_template_kwargs": {"messages": 1}}, "--default-chat-template-kwargs: messages belongs to"),
        (
            {"preferred_sampling_params": {"temperature": -1}},
            "--preferred-sampling-params: temperature: must be at least 0.",
        ),
        ({"preferred_sampling_params": {"stop_token_ids": [1.5]}}, "--preferred-sampling-params: stop_token_ids[0]: "),
        ({"revision": "main"}, "--revision main is for models of the hub"),
    ],
)
def test_faults_beside_the_model(settings: dict[str, Any], sentence: str, model: Path) -> None:
    with pytest.raises(UserError) as fault:
        check(model, **settings)
    assert str(fault.value).startswith(sentence)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/no/model", "--model-path /no/model does not exist."),
        ("demo", "--model-path demo does not exist; the demo model is for `canopy serve demo`."),
    ],
)
def test_models_that_are_not_there(path: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as fault:
        check(path)
    assert str(fault.value) == sentence


def test_a_gpu_needs_a_driver(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_DRIVER", "libno-such-driver.so.1")
    with pytest.raises(UserError, match="^--device cuda: this machine has no NVIDIA driver; .* use --device cpu"):
        check(model, device="cuda")
    check(model, device="auto")
