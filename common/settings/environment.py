"""Environment variables as settings: CANOPY_ and the name in capitals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from common.errors import UserError
from common.settings.sentences import most_similar
from common.settings.tree import ENV_PREFIX, Setting, Settings, by_spelling, settings_of

CONFIG_VARIABLE = ENV_PREFIX + "CONFIG"
# Read elsewhere: where converted models and logs are kept; where tests find recorded traces.
_NO_SETTINGS = frozenset({"CANOPY_CACHE", "CANOPY_TRACES", CONFIG_VARIABLE})
# What Kubernetes gives to every pod beside a service whose name begins with `canopy`.
_SERVICE_NAME = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
# One's own setting misspelt, surely: no program has a name that resembles another's so much (a test checks that).
MISSPELT_RATIO = 0.87


class Variables(NamedTuple):
    """Field name -> variable and value, and what is to be told about variables that set nothing."""

    found: dict[str, tuple[str, Any]]
    warnings: list[str]


def read_environment(cls: type[Settings], env: Mapping[str, str], prog: str) -> Variables:
    """An empty variable sets nothing; a list is separated by commas. Raises UserError for a misspelt name."""
    ours = {name: value for name, value in env.items() if name.startswith(ENV_PREFIX) and value}
    kubernetes = {name for name, value in ours.items() if _of_kubernetes(name, value)}
    known = [_variable(spelling) for spelling in by_spelling(cls)]
    unknown = sorted(ours.keys() - kubernetes - _NO_SETTINGS - set(known))
    for name in unknown:
        if close := most_similar(name, known, MISSPELT_RATIO):
            raise UserError(f"{name} is not a setting of {prog}; did you mean {close}?")
    warnings = [f"{', '.join(unknown)}: no setting of {prog}, ignored."] if unknown else []
    if kubernetes:
        warnings.append(f"{', '.join(sorted(kubernetes))}: set by Kubernetes for a service of that name, ignored.")
    found: dict[str, tuple[str, Any]] = {}
    for setting in settings_of(cls):
        for variable in map(_variable, reversed(setting.spellings)):
            if variable in ours and variable not in kubernetes:
                found[setting.name] = (variable, _split_if_list(setting, ours[variable]))
    return Variables(found, warnings)


def _variable(spelling: str) -> str:
    return ENV_PREFIX + spelling.replace("-", "_").upper()


def _of_kubernetes(name: str, value: str) -> bool:
    is_address = name.endswith("_PORT") and _SERVICE_ADDRESS.match(value) is not None
    return is_address or _SERVICE_NAME.fullmatch(name) is not None


def _split_if_list(setting: Setting, value: str) -> Any:
    return [item.strip() for item in value.split(",")] if setting.is_list else value
