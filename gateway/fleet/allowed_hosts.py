"""Which hosts may be registered as workers over HTTP (--allowed-worker-hosts)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

_NOT_IN_NAMES = frozenset("/:@ ")
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AllowedHosts:
    """Host names with * and ?, addresses, and networks. Without any, all hosts are allowed.

    A name is compared as it is written: it is not looked up, so that what it points to later does not matter. Raises
    ValueError for what can be none of them.
    """

    def __init__(self, rules: Sequence[str]) -> None:
        self._networks: list[_Network] = []
        self._patterns: list[str] = []
        for rule in rules:
            try:
                self._networks.append(ipaddress.ip_network(rule, strict=False))
            except ValueError:
                if not rule or _NOT_IN_NAMES & set(rule):
                    raise ValueError(
                        f"{rule!r} is no host; give names with * and ?, addresses, or networks as in 10.0.0.0/8"
                    ) from None
                self._patterns.append(rule.lower())

    def allow(self, url: str) -> bool:
        """Whether a worker may be at `url`, in the normal form of `check_url`."""
        if not self._networks and not self._patterns:
            return True
        host = urlsplit(url).hostname or ""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return any(fnmatchcase(host, pattern) for pattern in self._patterns)
        return any(address in network for network in self._networks)
