"""The page of --help: settings by category, those without a feature behind them in one list at each category's end."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from common.settings.tree import ENV_PREFIX, Setting, Settings, settings_of

_INDENT = "      "
_WIDEST = 110


def help_page(cls: type[Settings], prog: str, positional: str | None = None, width: int | None = None) -> str:
    """The whole page, `width` characters wide; without it as wide as the terminal, within reason."""
    columns = width if width is not None else min(shutil.get_terminal_size().columns, _WIDEST)
    settings = settings_of(cls)
    required = "".join(f" {s.flag} {kind_of(s)}" for s in settings if s.required and s.name != positional)
    required += f" {metavar(positional)}" if positional is not None else ""
    lines = [f"usage: {prog}{required} [flags]", "", first_line(cls.__doc__), ""]
    lines += textwrap.wrap(
        f"Each flag may also be a key of the YAML file of --config, or a variable {ENV_PREFIX}NAME. The command line "
        "is the strongest, then come the environment, the file, the default. --no-X switches X off.",
        columns,
    )
    lines += ["", "  --config FILE", f"{_INDENT}YAML file with settings", "  --print-config"]
    lines += [f"{_INDENT}show the settings and where each comes from, then end", "  -h, --help", f"{_INDENT}this page"]
    for category, members in by_category(cls):
        lines += ["", f"{category}:"]
        lines += [line for setting in members if setting.not_built is None for line in _entry(setting, columns)]
        lines += _not_built([setting for setting in members if setting.not_built is not None], columns)
    return "\n".join(lines) + "\n"


def metavar(positional: str) -> str:
    """How the help page calls a field that needs no flag."""
    return positional.removesuffix("_path").upper()


def by_category(cls: type[Settings]) -> list[tuple[str, list[Setting]]]:
    """Settings by category, both in the order of the tree."""
    found: dict[str, list[Setting]] = {}
    for setting in settings_of(cls):
        found.setdefault(setting.category, []).append(setting)
    return list(found.items())


def kind_of(setting: Setting) -> str:
    """What a setting takes, in a word: INT, NUMBER, TEXT, JSON, a|b|c; nothing for a switch."""
    return "|".join((_word(setting.item_kind), *setting.words)) + (" ..." if setting.is_list else "")


def default_of(setting: Setting) -> str:
    """The default in words; nothing if the help text says what happens without a value."""
    if setting.required:
        return "required"
    if setting.default is None or setting.default in ([], {}, ""):
        return ""
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    return str(setting.default)


def first_line(text: str | None) -> str:
    """The first line of a docstring."""
    return (text or "").strip().partition("\n")[0]


def _entry(setting: Setting, columns: int) -> Iterator[str]:
    prefix = "[no-]" if setting.kind is bool and setting.default else ""
    flags = ", ".join(f"--{prefix}{spelling}" for spelling in (setting.spellings[0], *setting.aliases))
    yield f"  {flags} {kind_of(setting)}".rstrip()
    facts = [*setting.bounds(), *([f"default {default_of(setting)}"] if default_of(setting) else [])]
    if setting.required:
        facts = ["required"]
    text = setting.help_text + (f" ({', '.join(facts)})" if facts else "")
    yield from textwrap.wrap(text, columns, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _not_built(settings: list[Setting], columns: int) -> list[str]:
    if not settings:
        return []
    flags = " ".join(f"--{spelling}" for each in settings for spelling in (each.spellings[0], *each.aliases))
    return textwrap.wrap(
        f"not built yet: {flags}",
        columns,
        initial_indent="  ",
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _word(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    origin = get_origin(kind) or kind
    return {bool: "", int: "INT", float: "NUMBER", str: "TEXT", dict: "JSON"}[origin]
