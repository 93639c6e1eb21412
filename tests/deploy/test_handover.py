"""An heir gets the listening socket, says when it listens, and may go without."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from deploy.handover import Inheritance, Offer, inherit


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def heir_of(offer: Offer, path: Path) -> Inheritance:
    """Both sides of the first step."""
    heirs: list[Inheritance | None] = []
    thread = threading.Thread(target=lambda: heirs.append(inherit(path)))
    thread.start()
    assert not offer.attend()
    thread.join()
    assert heirs[0] is not None
    return heirs[0]


def test_an_heir_listens_on_the_same_socket_and_says_so(tmp_path: Path, listening: socket.socket) -> None:
    with closing(Offer(tmp_path / "offer", listening.fileno())) as offer:
        patience_s = offer.patience_s
        heir = heir_of(offer, tmp_path / "offer")
        assert offer.patience_s > patience_s  # a gateway needs its time to start
        assert heir.listening is not None
        with heir.listening as sock:
            assert sock.getsockname() == listening.getsockname()
        heir.listens()
        assert offer.attend()


def test_an_heir_that_dies_leaves_room_for_the_next(tmp_path: Path) -> None:
    with closing(Offer(tmp_path / "offer", None)) as offer:
        patience_s = offer.patience_s
        heir = heir_of(offer, tmp_path / "offer")
        assert heir.listening is None
        heir._connection.close()
        assert not offer.attend()
        assert offer.patience_s == patience_s
        heir_of(offer, tmp_path / "offer").listens()
        assert offer.attend()


def test_without_an_offer_nothing_is_inherited(tmp_path: Path) -> None:
    assert inherit(tmp_path / "offer") is None
    Offer(tmp_path / "offer", None).close()  # its guard has died and left the file
    assert inherit(tmp_path / "offer") is None
