"""The command line of a settings class, as argparse reads it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, NoReturn

from common.errors import UserError
from common.settings.help_page import help_page
from common.settings.sentences import did_you_mean
from common.settings.tree import Setting, Settings, by_spelling, settings_of

_ALIASES = re.compile(r"^(--[\w-]+)(/--[\w-]+)+")
_TRUTHS = frozenset(["true", "false", "yes", "no", "on", "off", "1", "0"])


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command line sets: field name -> text or texts, the names used, and the options that are no settings."""

    values: dict[str, Any]
    spellings: list[str]
    config: str | None
    print_config: bool


def parse(cls: type[Settings], argv: Sequence[str], *, prog: str, positional: str | None) -> CommandLine:
    """Read the flags of `cls`; a word without a flag is the value of the field `positional`, if there is one.

    Raises UserError; --help prints the page and leaves by SystemExit.
    """
    found, rest = _parser(cls, prog, positional).parse_known_args(_with_values(argv, cls))
    values = vars(found)
    config, print_config = values.pop("config", []), values.pop("print_config", False)
    if len(config) > 1:
        raise UserError("--config was given twice; merge the files and give one.")
    for flag in rest:
        if flag.startswith("-"):
            raise UserError(_unknown(flag.partition("=")[0], cls, prog))
    if rest and positional is not None and positional not in values:
        values[positional] = rest.pop(0)
    if rest:
        raise UserError(f"{rest[0]!r} belongs to no flag; see {prog} --help.")
    return CommandLine(values, _spellings(argv), config[0] if config else None, print_config)


class _Parser(argparse.ArgumentParser):
    def __init__(self, cls: type[Settings], prog: str, positional: str | None) -> None:
        super().__init__(prog=prog, allow_abbrev=False, argument_default=argparse.SUPPRESS)
        self._page = partial(help_page, cls, prog, positional)

    def format_help(self) -> str:
        return self._page()

    def error(self, message: str) -> NoReturn:
        text = _ALIASES.sub(r"\1", message.removeprefix("argument "))
        raise UserError(f"{text[:1].upper()}{text[1:]}; see {self.prog} --help.")


@cache
def _parser(cls: type[Settings], prog: str, positional: str | None) -> _Parser:
    parser = _Parser(cls, prog, positional)
    parser.add_argument("--config", action="append")
    parser.add_argument("--print-config", action="store_true")
    for setting in settings_of(cls):
        _add_flag(parser, setting)
    return parser


class _Switch(argparse.Action):
    """`--x`, `--no-x`, `--x true`, `--x false`."""

    def __init__(self, on_flags: Sequence[str], **rest: Any) -> None:
        self._on_flags = on_flags
        super().__init__(nargs="?", **rest)

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        if option_string in self._on_flags:
            values = "true" if values is None else values
        elif values is None:
            values = "false"
        else:
            raise UserError(f"{option_string} takes no value; leave {values!r} out.")
        setattr(namespace, self.dest, values)


def _add_flag(parser: argparse.ArgumentParser, setting: Setting) -> None:
    flags = ["--" + spelling for spelling in setting.spellings]
    if setting.kind is bool:
        parser.add_argument(*flags, *_off_flags(setting), action=_Switch, on_flags=flags, dest=setting.name)
    elif setting.is_list:
        parser.add_argument(*flags, nargs="+", action="extend", dest=setting.name)
    else:
        parser.add_argument(*flags, dest=setting.name)


def _off_flags(setting: Setting) -> list[str]:
    return ["--no-" + spelling for spelling in setting.spellings]


def _with_values(argv: Sequence[str], cls: type[Settings]) -> list[str]:
    """Switches without a word of truth behind them get one, so that they do not take what follows."""
    on_flags = {"--" + spelling for name in settings_of(cls) if name.kind is bool for spelling in name.spellings}
    return [
        f"{token}=true" if token in on_flags and behind.lower() not in _TRUTHS else token
        for token, behind in pairwise([*argv, ""])
    ]


def _spellings(argv: Sequence[str]) -> list[str]:
    flags = (token.partition("=")[0].removeprefix("--") for token in argv if token.startswith("--"))
    return [flag.removeprefix("no-") for flag in flags]


def _unknown(flag: str, cls: type[Settings], prog: str) -> str:
    known = [f"--{spelling}" for spelling in by_spelling(cls)]
    known += [off for setting in settings_of(cls) if setting.kind is bool for off in _off_flags(setting)]
    return f"{flag} is not a flag of {prog}{did_you_mean(flag, known) or f'; see {prog} --help.'}"
