"""A gateway that is started anew knows the fleet before its controller answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.fleet import KEPT_FLEET_VARIABLE
from gateway.fleet.discovery import FleetLost
from gateway.fleet.kept_fleet import KeptFleetWatch, kept_by_parent


class FakeWatch:
    """Gives its answers one by one; afterwards the controller is away."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []
        self.closed = False

    async def watch(self, version: int, timeout_s: float) -> bytes:
        self.asked.append(version)
        if not self.answers:
            raise FleetLost("away")
        return self.answers.pop(0)

    async def close(self) -> None:
        self.closed = True


async def test_the_first_answer_after_a_restart_is_the_last_one_before_it(tmp_path: Path) -> None:
    file = tmp_path / "fleet"
    first = KeptFleetWatch(FakeWatch(b"one", b"two", b"two"), file)
    assert [await first.watch(version, 1.0) for version in (0, 1, 2)] == [b"one", b"two", b"two"]
    behind = FakeWatch(b"three")
    second = KeptFleetWatch(behind, file)
    assert await second.watch(0, 1.0) == b"two"
    assert behind.asked == []
    assert await second.watch(2, 1.0) == b"three"
    assert behind.asked == [2]
    assert file.read_bytes() == b"three"
    assert list(tmp_path.iterdir()) == [file]
    await second.close()
    assert behind.closed


async def test_a_file_that_is_no_fleet_is_left_for_the_controllers_answer(tmp_path: Path) -> None:
    file = tmp_path / "fleet"
    file.write_bytes(b"garbage")
    watch = KeptFleetWatch(FakeWatch(b"one"), file)
    assert await watch.watch(0, 1.0) == b"garbage"  # whoever decodes it asks again for version 0
    assert await watch.watch(0, 1.0) == b"one"


async def test_a_fleet_that_cannot_be_kept_is_still_told(tmp_path: Path) -> None:
    watch = KeptFleetWatch(FakeWatch(b"one"), tmp_path / "no such directory" / "fleet")
    assert await watch.watch(0, 1.0) == b"one"


async def test_a_lost_controller_is_told(tmp_path: Path) -> None:
    with pytest.raises(FleetLost):
        await KeptFleetWatch(FakeWatch(), tmp_path / "fleet").watch(0, 1.0)


def test_only_a_parent_asks_for_it(tmp_path: Path) -> None:
    behind = FakeWatch()
    assert kept_by_parent(behind, {}) is behind
    assert isinstance(kept_by_parent(behind, {KEPT_FLEET_VARIABLE: str(tmp_path / "f")}), KeptFleetWatch)
