"""What is taken out of a request, and what is not."""

from __future__ import annotations

import pytest

from common.http_upgrade import without_upgrade

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"
OFFER = b"connection: Upgrade\r\n"


@pytest.mark.parametrize(
    "line", [b"Upgrade: h2c\r\n", b"upgrade: websocket\r\n", b"UPGRADE:h2c\r\n", b"uPgRADE: a\r\nUpgrade: b\r\n"]
)
@pytest.mark.parametrize("body", [b"", b"a\r\nupgrade: b\r\n\r\nupgrade: c"])
def test_upgrade_lines_of_the_head_go(line: bytes, body: bytes) -> None:
    assert without_upgrade(HEAD + line + OFFER + b"\r\n" + body) == HEAD + OFFER + b"\r\n" + body
    assert without_upgrade(HEAD + OFFER + line + b"\r\n" + body) == HEAD + OFFER + b"\r\n" + body


def test_a_head_that_is_not_complete() -> None:
    assert without_upgrade(HEAD + b"upgrade: h2c\r\nacc") == HEAD + b"acc"


@pytest.mark.parametrize(
    "data", [b"", HEAD + OFFER + b"\r\n", HEAD + b"x-upgrade: 1\r\n\r\n", b"GET /upgrade: HTTP/1.1\r\n\r\n"]
)
def test_other_requests_stay_as_they_are(data: bytes) -> None:
    assert without_upgrade(data) == data
