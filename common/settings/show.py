"""The text of --print-config: the settings as YAML that --config takes back, with the source of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from common.settings.help_page import by_category
from common.settings.tree import Settings

_NO_BREAK = 10**9


def as_yaml(settings: Settings, sources: Mapping[str, str]) -> str:
    """Settings by category. Secrets are only said to be set; those without a feature behind them are left out."""
    return "\n".join(_lines(settings, sources)) + "\n"


def _lines(settings: Settings, sources: Mapping[str, str]) -> Iterator[str]:
    for category, members in by_category(type(settings)):
        shown = [setting for setting in members if setting.not_built is None]
        if shown:
            yield f"# {category}"
        for setting in shown:
            key, value = setting.spellings[0], getattr(settings, setting.name)
            source = sources.get(setting.name, "default")
            if setting.secret:
                yield f"# {key}: {'not set' if value in (None, []) else 'set, not shown'}  # {source}"
            else:
                yield f"{key}: {_inline(value)}  # {source}"


def _inline(value: Any) -> str:
    """One line of YAML."""
    text = _dumped(value, allow_unicode=True)
    return text if text.isprintable() else _dumped(value, default_style='"')


def _dumped(value: Any, **options: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=_NO_BREAK, **options)
    return text.removesuffix("\n").removesuffix("\n...")
