"""Writes the tables of docs/server-arguments.md from the settings trees: `make docs`.

With --check it only says whether they are up to date, for `make lint`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from common.settings.reference import reference
from deploy.fleet.apply import ApplySettings
from deploy.fleet.scale import ScaleSettings
from deploy.serve_settings import FleetSettings
from gateway.config import GatewaySettings
from worker.config import WorkerSettings

TARGET = Path(__file__).parent / "server-arguments.md"
BEGIN, END = "<!-- settings: begin, written by make docs -->\n", "<!-- settings: end -->\n"
PROGRAMS = (
    ("canopy worker", WorkerSettings),
    ("canopy gateway", GatewaySettings),
    ("canopy serve", FleetSettings),
    ("canopy serve --cluster", ApplySettings),
    ("canopy scale", ScaleSettings),
)


def main(argv: list[str]) -> int:
    """Rewrite or check the tables. Returns 1 if a check fails."""
    old = TARGET.read_text()
    head, _, rest = old.partition(BEGIN)
    _, _, tail = rest.partition(END)
    tables = "".join(f"\n## {program}\n{reference(cls)}" for program, cls in PROGRAMS)
    new = head + BEGIN + tables + END + tail
    if "--check" in argv:
        if new != old:
            print("docs/server-arguments.md does not list the settings as they are; run `make docs`.", file=sys.stderr)
        return int(new != old)
    TARGET.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
