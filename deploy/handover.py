"""A guarded process that outlives its parent until a new parent has a successor of it that listens.

The guard of a gateway offers the gateway's listening socket at a Unix socket. When the parent dies, the gateway goes on
for a while. A new parent *inherits*: it gets the listening socket, starts its own gateway on it, and says so; the old
one then finishes what it has. A client notices nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

_LINGER_S = 15.0  # time for Ray to start an actor anew, and for that to inherit
_SUCCESSOR_S = 90.0  # time for a gateway to listen, beyond which its actor gives up
_TIMEOUT_S = 2.0
_HELLO, _LISTENS = b"h", b"l"


class Offer:
    """The old side, in the guard. Owner of the Unix socket; whoever offers last at a path is the one that is found."""

    def __init__(self, path: Path, listening_fd: int | None) -> None:
        """`listening_fd`: None where each gateway process binds the port for itself."""
        self._fds = [] if listening_fd is None else [listening_fd]
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        self._server.bind(str(path))
        self._server.listen(1)
        self._heir: socket.socket | None = None

    def fileno(self) -> int:
        """What becomes readable when there is something to `attend` to."""
        return (self._heir or self._server).fileno()

    def attend(self) -> bool:
        """An heir has come, has gone, or has a gateway that listens: returns True for the last."""
        if self._heir is None:
            self._heir, _ = self._server.accept()
            with contextlib.suppress(OSError):  # it has gone again
                socket.send_fds(self._heir, [_HELLO], self._fds)
            return False
        try:
            listens = self._heir.recv(1) == _LISTENS
        except OSError:
            listens = False
        self._heir.close()
        self._heir = None
        return listens

    def close(self) -> None:
        """Offer no longer."""
        self._server.close()
        if self._heir is not None:
            self._heir.close()

    @property
    def patience_s(self) -> float:
        """How long to wait for the next event."""
        return _LINGER_S if self._heir is None else _SUCCESSOR_S


class Inheritance:
    """The new side. Owner of the connection to the old guard, and of the listening socket until it is taken."""

    def __init__(self, connection: socket.socket, listening: socket.socket | None) -> None:
        self._connection = connection
        self.listening = listening

    def listens(self) -> None:
        """Our gateway takes connections: let the old one finish."""
        with contextlib.suppress(OSError):  # it has ended meanwhile
            self._connection.sendall(_LISTENS)
        self._connection.close()


def inherit(path: Path) -> Inheritance | None:
    """What a guard offers at `path`; None where there is no such guard. Blocks, at most two seconds."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_TIMEOUT_S)
    try:
        connection.connect(str(path))
        hello, fds, _, _ = socket.recv_fds(connection, 1, 1)
    except OSError:
        hello, fds = b"", []
    if hello != _HELLO:
        connection.close()
        return None
    for fd in fds:
        os.set_inheritable(fd, False)
    return Inheritance(connection, socket.socket(fileno=fds[0]) if fds else None)
