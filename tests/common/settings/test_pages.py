"""The page of --help and the reference page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import load, settings_of
from common.settings.help_page import help_page
from common.settings.reference import reference
from deploy.serve_settings import combined_settings
from tests.common.settings.example import Example
from worker.config import WorkerSettings

ROOT = Path(__file__).parents[3]

PAGE = """\
usage: example --name TEXT [flags]

Do something small.

Each flag may also be a key of the YAML file of --config, or a variable CANOPY_NAME. The command
line is the strongest, then come the environment, the file, the default. --no-X switches X off.

  --config FILE
      YAML file with settings
  --print-config
      show the settings and where each comes from, then end
  -h, --help
      this page

Main:
  --name, --title TEXT
      what it is called (required)
  --count INT
      tokens (at least 1, at most 1000000000, default 4)
  --ratio NUMBER
      share; without it a rule (above 0, below 1)
  --mode fast|slow
      how (default fast)

Talk:
  --verbose
      say more (default off)
  --[no-]colour
      in colours (default on)
  --sizes INT ...
      sizes
  --words TEXT ...
      words
  --extra JSON
      more
  --key TEXT
      a key
  not built yet: --wings --pinions

Magic:
  not built yet: --magic --spell
"""


def test_help_page() -> None:
    assert help_page(Example, "example", width=100) == PAGE


def test_help_leaves_with_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load(Example, ["--help"], {}, prog="example")
    assert end.value.code == 0 and "--name, --title TEXT" in capsys.readouterr().out


def test_a_word_without_a_flag_is_in_the_usage() -> None:
    assert help_page(combined_settings(), "canopy serve", "model_path").startswith(
        "usage: canopy serve MODEL [flags]\n"
    )


def test_every_flag_of_a_replica_is_on_its_help_page() -> None:
    page = help_page(WorkerSettings, "canopy worker", width=80)
    assert all(len(line) <= 80 for line in page.splitlines())
    for setting in settings_of(WorkerSettings):
        assert setting.flag in page or f"--[no-]{setting.spellings[0]}" in page


def test_reference_page() -> None:
    text = reference(Example)
    assert "| `--name`, `--title` | TEXT | required | what it is called |\n" in text
    assert "| `--mode`, `--manner` (old) | fast\\|slow | `fast` | how |\n" in text
    assert "| `--colour`, `--paint` (old) | switch | on | in colours |\n" in text
    assert "| `--wings`, `--pinions` | wings | walk |\n" in text
    assert "### Magic\n\n| not built yet |" in text


def test_the_check_of_the_reference_page_sees_changes(tmp_path: Path) -> None:
    """On a copy of the page, as others may be working on the tree."""
    script = (
        "import sys; from pathlib import Path; import docs.list_settings as it; it.TARGET = Path(sys.argv[1]);"
        "sys.exit(it.main(sys.argv[2:]))"
    )

    def run(*flags: str) -> int:
        return subprocess.run([sys.executable, "-c", script, tmp_path / "page.md", *flags], cwd=ROOT).returncode

    (tmp_path / "page.md").write_text((ROOT / "docs" / "server-arguments.md").read_text())
    assert run() == 0 and run("--check") == 0
    page = (tmp_path / "page.md").read_text()
    (tmp_path / "page.md").write_text(page.replace("| `--page-size` |", "| `--page-length` |"))
    assert run("--check") == 1
