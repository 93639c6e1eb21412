"""The reference page of a settings class in Markdown: tables by category, and what is not built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from common.settings.help_page import by_category, default_of, kind_of
from common.settings.tree import Setting, Settings

_HEAD = "| flag | takes | default | what it does |\n|---|---|---|---|\n"
_NOT_BUILT_HEAD = "| not built yet | what it would be | what to do instead |\n|---|---|---|\n"


def reference(cls: type[Settings]) -> str:
    """A section for each category, as a part of a larger page."""
    return "".join(_section(category, members) for category, members in by_category(cls))


def _section(category: str, members: Iterable[Setting]) -> str:
    built = [setting for setting in members if setting.not_built is None]
    others = [setting for setting in members if setting.not_built is not None]
    text = f"\n### {category}\n"
    if built:
        text += "\n" + _HEAD + "".join(map(_row, built))
    if others:
        text += "\n" + _NOT_BUILT_HEAD + "".join(map(_not_built_row, others))
    return text


def _row(setting: Setting) -> str:
    takes = ", ".join(filter(None, [kind_of(setting), *setting.bounds()])) or "switch"
    default = default_of(setting)
    shown = f"`{default}`" if default not in ("", "required", "on", "off") else default
    return f"| {_flags(setting)} | {_cell(takes)} | {_cell(shown)} | {_cell(setting.help_text)} |\n"


def _not_built_row(setting: Setting) -> str:
    return f"| {_flags(setting)} | {_cell(setting.help_text)} | {_cell(setting.not_built or '')} |\n"


def _flags(setting: Setting) -> str:
    return ", ".join(_spelled(setting))


def _spelled(setting: Setting) -> Iterator[str]:
    for spelling in (setting.spellings[0], *setting.aliases):
        yield f"`--{spelling}`"
    for spelling in setting.deprecated:
        yield f"`--{spelling}` (old)"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
