"""What the user may write as --model-path."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError
from worker.models.paths import resolve_model_path


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_model_path(str(tmp_path), tmp_path / "cache") == tmp_path


def test_a_gguf_file_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.gguf"
    file.touch()
    asked: list[tuple[Path, Path]] = []
    monkeypatch.setattr(
        "worker.models.paths.ensure_converted", lambda path, cache, progress: asked.append((path, cache)) or tmp_path
    )
    assert resolve_model_path(str(file), tmp_path / "cache") == tmp_path
    assert asked == [(file, tmp_path / "cache")]


@pytest.mark.parametrize("path", ["nothing-here", "/no/such/dir", "../a/b/c", "./x/y", "a/b/c.gguf"])
def test_what_does_not_exist(path: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"--model-path {path} does not exist"):
        resolve_model_path(path, tmp_path)


def test_another_kind_of_file(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.touch()
    with pytest.raises(UserError, match=r"not a \.gguf one"):
        resolve_model_path(str(file), tmp_path)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("unreachable", "the hub cannot be reached"),
        ("absent", "nor a model of the hub"),
        ("gated", "HF_TOKEN"),
        ("revision", "no branch"),
    ],
)
def test_hub_faults(error: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx
    from huggingface_hub import errors

    response = httpx.Response(404, request=httpx.Request("GET", "https://hub.invalid"))
    faults = {
        "unreachable": errors.LocalEntryNotFoundError("offline"),
        "absent": errors.RepositoryNotFoundError("404", response=response),
        "gated": errors.GatedRepoError("403", response=response),
        "revision": errors.RevisionNotFoundError("404", response=response),
    }

    def download(*_: object, **__: object) -> str:
        raise faults[error]

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(UserError, match=message):
        resolve_model_path("someone/model-7b", tmp_path)


def test_a_hub_model_is_its_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda hub_id, **_: str(tmp_path / hub_id))
    assert resolve_model_path("someone/model-7b", tmp_path) == tmp_path / "someone/model-7b"


def test_revision_and_download_directory_go_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def download(hub_id: str, **options: object) -> str:
        asked.append(options)
        return str(tmp_path / hub_id)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    resolve_model_path("someone/model-7b", tmp_path, "v2", str(tmp_path / "models"))
    (options,) = asked
    assert (options["revision"], options["cache_dir"]) == ("v2", str(tmp_path / "models"))
    with pytest.raises(UserError, match=r"--revision v2 is for models of the hub, but .* is on disk"):
        resolve_model_path(str(tmp_path), tmp_path, "v2")
