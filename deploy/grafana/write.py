"""`python -m deploy.grafana.write [--check]`: the dashboards as JSON files, or whether the files are those."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana import fleet, gateway, replica, tuning
from deploy.grafana.panels import Board

FOLDER = Path(__file__).parent / "dashboards"
BOARDS: tuple[Board, ...] = (fleet.BOARD, replica.BOARD, gateway.BOARD, tuning.BOARD)


def files() -> dict[Path, str]:
    """What each file must be."""
    return {
        FOLDER / f"{board.uid}.json": JSONEncoder(sort_keys=True, indent=1).encode(board.build()) + "\n"
        for board in BOARDS
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a file is not current")
    check = parser.parse_args().check
    old = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    if check:
        for path in old:
            print(f"{path.name} is not what deploy/grafana makes; run `make docs`.")
        return 1 if old else 0
    for path in old:
        path.write_text(files()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
