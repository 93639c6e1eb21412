"""Writes the list of files in docs/architecture.md from the first line of each module's docstring: `make docs`.

With --check it only says whether the list is up to date, for `make lint`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- files: begin, written by make docs -->\n", "<!-- files: end -->\n"
FOLDERS = ("common", "gateway", "worker", "deploy", "benchmarks", "tests/helpers")


def main(argv: list[str]) -> int:
    """Rewrite or check the list. Returns 1 if a check fails."""
    old = TARGET.read_text()
    head, _, rest = old.partition(BEGIN)
    _, _, tail = rest.partition(END)
    new = head + BEGIN + "".join(_sections()) + END + tail
    if "--check" in argv:
        if new != old:
            print("docs/architecture.md does not list the files as they are; run `make docs`.", file=sys.stderr)
        return int(new != old)
    TARGET.write_text(new)
    return 0


def _sections() -> Iterator[str]:
    listed = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = sorted(path for path in map(Path, listed.stdout.split()) if path.suffix == ".py" and (ROOT / path).exists())
    for folder, files in groupby(sorted(paths, key=lambda p: (p.parent.parts, p.name)), key=lambda p: p.parent):
        yield f"\n### {folder}/\n\n"
        about = _first_line(folder / "__init__.py")
        if about:
            yield f"{about}\n\n"
        yield "| file | what lives there |\n|---|---|\n"
        yield from (f"| `{path.name}` | {_first_line(path)} |\n" for path in files if path.name != "__init__.py")


def _first_line(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text())) if (ROOT / path).exists() else None
    return " ".join((docstring or "").partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
