"""Every flag of a replica, of the gateway and of `canopy serve`, from the trees themselves: default, spellings, file,
environment, command line, order of strength, bad values. A new flag is tested as soon as it exists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin

import pytest
import yaml

from common.errors import UserError
from common.settings import ENV_PREFIX, Settings, load, settings_of
from common.settings.tree import Setting
from deploy.serve_settings import FleetSettings
from gateway.config import GatewaySettings
from tests.helpers.setting_values import COMPANIONS, in_variable, on_command_line, other_value
from tests.worker.settings.known_flags import KNOWN, MUST_WORK
from worker.config import WorkerSettings

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
        wrong.append(f"{float(number) + beyond:.12g}")
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
            assert sentence.startswith(next(iter(env), setting.flag)) and "\n" not in sentence
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
