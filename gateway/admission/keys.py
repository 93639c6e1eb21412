"""API keys: who a caller is, what it may call, and how much of the gateway it may use.

Only digests under a secret of this process are kept and compared, so that no comparison's time tells about a key.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from common.errors import HttpFault, UserError

Headers = Iterable[tuple[bytes, bytes]]
_AUTHORIZATION = b"authorization"
_API_KEY = b"x-api-key"


class Access(Enum):
    """What a route asks of its caller."""

    OPEN = "open"
    CLIENT = "client"
    KNOWN = "known"  # any key, if there are keys, also if clients need none
    ADMIN = "admin"


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of the key file, or a key of the command line.

    `priority`: of its requests, and the most they may ask for; None: 0, and any. The others: None = the gateway's
    --key-... setting.
    """

    key: str
    name: str = ""
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    max_concurrent_requests: Annotated[int, Meta(ge=-1)] | None = None
    requests_per_second: Annotated[float, Meta(ge=0)] | None = None


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who sent a request. `priority`: see KeyLimits. None of the limits: any number."""

    name: str
    priority: int | None = None
    max_concurrent: int | None = None
    requests_per_s: float | None = None
    admin: bool = False


ANYBODY = Caller("")


class Keyring:
    """The keys of one gateway. Without an admin key every key opens admin routes; the admin key opens every route."""

    def __init__(self, keys: Sequence[tuple[str, Caller]], admin_key: str | None = None) -> None:
        self._secret = secrets.token_bytes(32)
        self._callers = {self._digest(key.encode()): caller for key, caller in keys}
        self._clients_need_keys = bool(self._callers)
        self._has_admin = admin_key is not None
        if admin_key is not None:
            self._callers[self._digest(admin_key.encode())] = Caller("admin", admin=True)

    @property
    def guards_clients(self) -> bool:
        """Whether clients need a key."""
        return self._clients_need_keys

    @property
    def guards_anything(self) -> bool:
        """Whether there is a key at all."""
        return bool(self._callers)

    @property
    def has_limits(self) -> bool:
        """Whether some key may not do as much as it likes."""
        return any(c.max_concurrent is not None or c.requests_per_s is not None for c in self._callers.values())

    def caller(self, headers: Headers) -> Caller | None:
        """Whose key is in the Authorization header; None if there is none that we know."""
        return self._callers.get(self._digest(_token(headers)))

    def fault(self, access: Access, headers: Headers) -> HttpFault | None:
        """Why this caller may not do this: 401 without a key that is known, 403 if it opens less; None: it may."""
        if access is Access.OPEN or (access is Access.CLIENT and not self._clients_need_keys):
            return None
        if not self._callers:
            return None
        caller = self.caller(headers)
        if caller is not None:
            if access is not Access.ADMIN or caller.admin or not self._has_admin:
                return None
            return _no_admin()
        if access is Access.ADMIN and self._has_admin and not _token(headers):
            return _no_admin()
        return HttpFault(401, "This needs an API key: send it as `Authorization: Bearer KEY`.", code="invalid_api_key")

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()


def _no_admin() -> HttpFault:
    text = "This needs the admin key: send it as `Authorization: Bearer KEY`."
    return HttpFault(403, text, code="admin_key_required")


def _token(headers: Headers) -> bytes:
    """The bearer token, or x-api-key as Anthropic's clients send it; empty if there is none."""
    for name, value in headers:
        if name == _API_KEY:
            return value.strip()
        if name == _AUTHORIZATION:
            scheme, _, token = value.partition(b" ")
            return token.strip() if scheme.lower() == b"bearer" else b""
    return b""


def read_key_file(path: str) -> list[KeyLimits]:
    """The keys of --api-key-file. Raises UserError, which names no key."""
    try:
        keys = msgspec.yaml.decode(Path(path).expanduser().read_bytes(), type=list[KeyLimits])
    except OSError as error:
        raise UserError(f"--api-key-file {path} cannot be read: {(error.strerror or str(error)).lower()}.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(f"--api-key-file {path} is not a YAML list of keys: {_first_line(error)}.") from None
    if not keys or any(not key.key for key in keys):
        raise UserError(f"--api-key-file {path} has no keys, or an empty one; write `- key: ...` for each.")
    if len({key.key for key in keys}) < len(keys):
        raise UserError(f"--api-key-file {path} has a key twice; remove one.")
    return keys


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
