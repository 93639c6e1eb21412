"""The replica's end of an HTTP connection: uvicorn's, for which a request is a request whatever else it offers."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from common.http_upgrade import without_upgrade


class PlainProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_body = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data if self._in_body else without_upgrade(data))

    def on_headers_complete(self) -> None:
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()
