"""Every flag of a replica, of the gateway and of `canopy serve`, from the trees themselves: default, spellings, file,
environment, command line, order of strength, bad values. A new flag is tested as soon as it exists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from common.errors import UserError
from common.settings import ENV_PREFIX, Settings, load, settings_of
from common.settings.tree import Setting
from deploy.serve_settings import FleetSettings
from gateway.config import GatewaySettings
from tests.worker.settings.known_flags import KNOWN, MUST_WORK
from worker.config import WorkerSettings

# What a value needs beside it, so that the whole is no contradiction.
COMPANIONS: dict[str, list[str]] = {
    "retraction_policy": ["--enable-priority-scheduling"],
    "ssl_keyfile": ["--ssl-certfile=cert.pem"],
    "ssl_certfile": ["--ssl-keyfile=key.pem"],
    "ssl_ca_certs": ["--ssl-keyfile=key.pem", "--ssl-certfile=cert.pem"],
    "ssl_keyfile_password": ["--ssl-keyfile=key.pem", "--ssl-certfile=cert.pem"],
}
# Values that rules beyond their type ask for.
VALUES: dict[str, Any] = {
    "fastapi_root_path": "/prefix",
    "schedule_policy": "lof",
    "retraction_policy": "priority",
    "policy": "random",
    "worker_urls": ["http://a:1"],
}
CLASSES = (WorkerSettings, GatewaySettings, FleetSettings)
CASES = [
    pytest.param(cls, setting, id=f"{cls.__name__.removesuffix('Settings').lower()}-{setting.name}")
    for cls in CLASSES
    for setting in settings_of(cls)
]
BUILT = [case for case in CASES if case.values[1].not_built is None]
NOT_BUILT = [case for case in CASES if case.values[1].not_built is not None]


def outcome(
    cls: type[Settings], setting: Setting, *argv: str, env: Mapping[str, str] | None = None
) -> tuple[Any, str | None]:
    """The setting's value and where it came from, with what is required or needed beside it."""
    needed = ["--model-path=m"] if cls is WorkerSettings and setting.name != "model_path" else []
    loaded = load(cls, [*needed, *COMPANIONS.get(setting.name, []), *argv], env or {}, prog="prog")
    return getattr(loaded.settings, setting.name), loaded.sources.get(setting.name)


def other_value(setting: Setting) -> Any:
    """A valid value that is not the default."""
    if setting.name in VALUES:
        return VALUES[setting.name]
    if setting.is_list:
        return [_other(setting.item_kind, None, setting)]
    return _other(setting.kind, setting.default, setting)


def _other(kind: Any, default: Any, setting: Setting) -> Any:
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != default)
    if kind is bool:
        return not default
    if kind is str:
        return "other.text"
    if kind in (int, float):
        return _number(default, list(setting.bounds()), kind)
    return {"other": 1}


def _number(default: Any, bounds: list[str], kind: type) -> Any:
    """One that the bounds allow, given as the words of the help page."""
    limits = {word: float(number) for word, _, number in (text.rpartition(" ") for text in bounds)}
    if kind is float and "below" in limits:
        return (limits["below"] + limits["above"]) / 2
    number = limits.get("at least", 0) + 3
    return kind(number if number != default else number + 1) if "at most" not in limits else kind(limits["at most"])


def on_command_line(spelling: str, value: Any) -> list[str]:
    """Flag and value, as one types them."""
    if isinstance(value, bool):
        return [f"--{spelling}" if value else f"--no-{spelling}"]
    if isinstance(value, list):
        return [f"--{spelling}", *map(str, value)]
    return [f"--{spelling}", json.dumps(value) if isinstance(value, dict) else str(value)]


def in_variable(value: Any) -> str:
    """A value as an environment variable holds it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict | bool) else str(value)


def in_file(path: Path, **content: Any) -> str:
    """--config with a file of this content."""
    path.write_text(yaml.safe_dump(content))
    return f"--config={path}"


@pytest.mark.parametrize(("cls", "setting"), BUILT)
def test_every_way_to_say_it(cls: type[Settings], setting: Setting, tmp_path: Path) -> None:
    value = other_value(setting)
    assert value != setting.default
    for spelling in setting.spellings:
        underscored = spelling.replace("-", "_")
        variable = {ENV_PREFIX + underscored.upper(): in_variable(value)}
        assert outcome(cls, setting, *on_command_line(spelling, value)) == (value, "command line")
        assert outcome(cls, setting, env=variable) == (value, "environment")
        for key in (spelling, underscored):
            file = in_file(tmp_path / "c.yaml", **{key: value})
            assert outcome(cls, setting, file) == (value, "config file")


@pytest.mark.parametrize(("cls", "setting"), [case for case in BUILT if not case.values[1].required])
def test_default(cls: type[Settings], setting: Setting) -> None:
    needed = ["--model-path=m"] if cls is WorkerSettings else []
    assert getattr(load(cls, needed, {}, prog="prog").settings, setting.name) == setting.default


@pytest.mark.parametrize(("cls", "setting"), BUILT)
def test_the_stronger_source_wins(cls: type[Settings], setting: Setting, tmp_path: Path) -> None:
    """What is overridden is not even looked at."""
    value = other_value(setting)
    file = in_file(tmp_path / "c.yaml", **{setting.name: "overridden"})
    env = {ENV_PREFIX + setting.name.upper(): in_variable(value)}
    assert outcome(cls, setting, file, env=env) == (value, "environment")
    line = on_command_line(setting.spellings[0], value)
    env = {ENV_PREFIX + setting.name.upper(): "overridden"}
    assert outcome(cls, setting, file, *line, env=env) == (value, "command line")


@pytest.mark.parametrize(("cls", "setting"), [case for case in BUILT if case.values[1].kind is bool])
def test_switches_can_be_switched_off(cls: type[Settings], setting: Setting, tmp_path: Path) -> None:
    on = in_file(tmp_path / "c.yaml", **{setting.name: True})
    assert outcome(cls, setting, on) == (True, "config file")
    for off in ([f"--no-{setting.spellings[0]}"], [setting.flag, "false"], [f"{setting.flag}=false"]):
        assert outcome(cls, setting, on, *off) == (False, "command line")
    assert outcome(cls, setting, f"--no-{setting.spellings[0]}", setting.flag) == (True, "command line")


@pytest.mark.parametrize(("cls", "setting"), BUILT)
def test_bad_values_are_refused_in_one_sentence(cls: type[Settings], setting: Setting, tmp_path: Path) -> None:
    for value in bad_values(setting):
        file = in_file(tmp_path / "c.yaml", **{setting.name: value})
        variable = ENV_PREFIX + setting.name.upper()
        tries: list[tuple[str, list[str], dict[str, str]]] = [(f"{setting.name} in {tmp_path}", [file], {})]
        if isinstance(value, str):
            tries += [(setting.flag, [f"{setting.flag}={value}"], {}), (variable, [], {variable: value})]
        for called, argv, env in tries:
            with pytest.raises(UserError) as fault:
                pytest.fail(f"{argv or env} gave {outcome(cls, setting, *argv, env=env)}")
            sentence = str(fault.value)
            assert called in sentence or setting.flag in sentence
            assert "\n" not in sentence and sentence.endswith(".")
            assert setting.not_built is None and "is not built" not in sentence


def bad_values(setting: Setting) -> list[Any]:
    """Of the wrong type, or out of bounds."""
    kind = setting.item_kind
    wrong: list[Any] = [{"a": {"b": 1}}] if get_origin(kind) is not dict else [["a"]]
    if kind is not str:
        wrong.append("nonsense!")
    if kind in (int, float):
        wrong += [True, ".inf", "nan"]
    if kind is int:
        wrong.append("1.5")
    if kind is str:
        wrong.append(7)
    step = 1 if kind is int else 0.0
    for word, _, number in (text.rpartition(" ") for text in setting.bounds()):
        below = word in ("at least", "above")
        beyond = (-1 if below else 1) * (step or (1e-6 if word.startswith("at") else 0.0))
        wrong.append(f"{float(number) + beyond:g}")
    return wrong


@pytest.mark.parametrize(("cls", "setting"), NOT_BUILT)
def test_what_is_not_built_says_so_and_what_to_do(cls: type[Settings], setting: Setting, tmp_path: Path) -> None:
    assert setting.not_built
    value = other_value(setting)
    for spelling in setting.spellings:
        for argv, env in (
            (on_command_line(spelling, value), {}),
            ([in_file(tmp_path / "c.yaml", **{spelling: value})], {}),
            ([], {ENV_PREFIX + spelling.replace("-", "_").upper(): in_variable(value)}),
        ):
            with pytest.raises(UserError) as fault:
                outcome(cls, setting, *argv, env=env)
            sentence = str(fault.value)
            assert sentence.startswith(setting.flag) and "\n" not in sentence
            assert sentence.endswith(f" is not built yet: {setting.not_built}.")


@pytest.mark.parametrize(("cls", "setting"), NOT_BUILT)
def test_what_is_not_built_may_have_its_default(cls: type[Settings], setting: Setting, tmp_path: Path) -> None:
    file = in_file(tmp_path / "c.yaml", **{setting.name: setting.default})
    assert outcome(cls, setting, file) == (setting.default, "config file")


@pytest.mark.parametrize(("spelled", "default"), KNOWN.items())
def test_flags_that_operators_bring_along(spelled: str, default: Any) -> None:
    main, *others = spelled.split()
    setting = next(setting for setting in settings_of(WorkerSettings) if setting.spellings[0] == main)
    assert set(others) <= set(setting.spellings)
    assert setting.required if default is ... else setting.default == default


def test_what_the_guides_tell_operators_to_use_is_built() -> None:
    built = {name for setting in settings_of(WorkerSettings) if setting.not_built is None for name in setting.spellings}
    assert set(MUST_WORK) - built == {"config"}


def test_flags_mean_one_thing() -> None:
    for cls in CLASSES:
        spellings = [spelling for setting in settings_of(cls) for spelling in setting.spellings]
        switches = [s for setting in settings_of(cls) if setting.kind is bool for s in setting.spellings]
        flags = [*spellings, *(f"no-{s}" for s in switches), "config", "print-config", "help"]
        assert len(flags) == len(set(flags))


def test_every_setting_is_explained() -> None:
    for cls in CLASSES:
        for setting in settings_of(cls):
            assert setting.help_text and not setting.help_text.endswith("."), setting.name
            assert setting.default is not None or setting.help_text, setting.name
