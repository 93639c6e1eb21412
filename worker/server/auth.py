"""Who may call a route: everybody, clients with the API key, or administrators with theirs."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from enum import Enum

from worker.server.errors import RequestFault


class Access(Enum):
    """What a route asks of its caller."""

    OPEN = "open"
    CLIENT = "client"
    ADMIN = "admin"


class Keys:
    """The keys of one replica. Without an admin key the API key opens admin routes; the admin key opens every route."""

    def __init__(self, api_key: str | None, admin_api_key: str | None) -> None:
        admin = admin_api_key or api_key
        self._accepted: Mapping[Access, list[bytes]] = {
            Access.OPEN: [],
            Access.CLIENT: [key.encode() for key in (api_key, admin_api_key) if key] if api_key else [],
            Access.ADMIN: [admin.encode()] if admin else [],
        }

    def check(self, access: Access, authorization: str | None) -> None:
        """Raise RequestFault (401) unless the Authorization header holds a key for `access`, if it needs one.

        Takes the same time whichever key is wrong, and wherever it is.
        """
        accepted = self._accepted[access]
        if not accepted:
            return
        scheme, _, token = (authorization or "").partition(" ")
        given = token.strip().encode() if scheme.lower() == "bearer" else b""
        matches = [hmac.compare_digest(given, key) for key in accepted]
        if not any(matches):
            what = "the admin key" if access is Access.ADMIN else "an API key"
            text = f"This needs {what}: send it as `Authorization: Bearer KEY`."
            raise RequestFault(401, text, code="invalid_api_key")
