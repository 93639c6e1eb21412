"""`canopy serve` flags reach exactly the program that owns them."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError
from common.settings import Settings, settings_of
from common.settings.environment import MISSPELT_RATIO
from common.settings.sentences import most_similar
from common.settings.tree import Setting, by_spelling
from deploy.serve_settings import (
    GATEWAY_ONLY,
    HUB,
    LAUNCHERS,
    MUTUAL_TLS,
    PUBLIC,
    SHARED,
    combined_settings,
    load_serve_settings,
)
from deploy.status import StatusSettings
from gateway.config import GatewaySettings
from tests.helpers.setting_values import COMPANIONS, on_command_line, other_value
from worker.config import WorkerSettings


def test_every_setting_that_both_programs_have_has_a_declared_owner() -> None:
    both = GatewaySettings.model_fields.keys() & WorkerSettings.model_fields.keys()
    assert both == GATEWAY_ONLY | SHARED | MUTUAL_TLS
    for name in SHARED:
        assert GatewaySettings.model_fields[name].annotation == WorkerSettings.model_fields[name].annotation
    assert GatewaySettings.model_fields.keys() | WorkerSettings.model_fields.keys() >= LAUNCHERS


def test_flags_go_to_their_owner() -> None:
    flags = "--replicas 3 --port 81 --policy random --page-size 4 --log-level debug --chunked-prefill-size 64"
    argv = ["m", *flags.split()]
    settings = load_serve_settings(argv, {})
    assert settings.fleet.replicas == 3
    assert settings.gateway_values == {"port": 81, "policy": "random", "log_level": "debug"}
    assert settings.worker_values == {
        "model_path": "m",
        "page_size": 4,
        "log_level": "debug",
        "chunked_prefill_size": 64,
    }


def test_exact_mode_makes_replicas_publish() -> None:
    settings = load_serve_settings(["m", "--routing-mode", "exact"], {})
    assert settings.worker_values["kv_events_config"] == {"publisher": "zmq"}
    given = ["m", "--routing-mode", "exact", "--kv-events-config", '{"topic": "kv"}']
    assert load_serve_settings(given, {}).worker_values["kv_events_config"] == {"topic": "kv"}
    assert "kv_events_config" not in load_serve_settings(["m"], {}).worker_values
    several = load_serve_settings(["m", "--gateway-processes", "2"], {}).worker_values["kv_events_config"]
    assert several == {"publisher": "null", "load_endpoint": "auto"}  # they learn of each other's requests by it
    with pytest.raises(UserError, match="--routing-mode exact is of no use to --policy random"):
        load_serve_settings(["m", "--routing-mode", "exact", "--policy", "random"], {})


@pytest.mark.parametrize(
    "setting",
    [setting for setting in settings_of(WorkerSettings) if setting.name not in LAUNCHERS],
    ids=lambda setting: setting.name,
)
def test_every_flag_of_a_replica_reaches_the_replicas_or_is_refused(setting: Setting) -> None:
    argv = ["m"] if setting.name != "model_path" else []
    argv += COMPANIONS.get(setting.name, []) + on_command_line(setting.spellings[0], other_value(setting))
    if setting.not_built is not None or setting.name in HUB | PUBLIC - GATEWAY_ONLY:
        with pytest.raises(UserError, match="is not built yet: "):
            load_serve_settings(argv, {})
        return
    settings = load_serve_settings(argv, {})
    owner = settings.gateway_values if setting.name in GATEWAY_ONLY else settings.worker_values
    assert owner[setting.name] in (other_value(setting), [other_value(setting)])  # the gateway takes several keys
    assert (setting.name in settings.worker_values) == (setting.name not in GATEWAY_ONLY)


def test_paths_work_from_every_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replicas run somewhere else; names that are no paths stay as they are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jinja").touch()
    (tmp_path / "tokenizer").mkdir()
    argv = ["m", "--chat-template", "t.jinja", "--tokenizer-path=tokenizer", "--device=sim", "--sim-profile=fast"]
    settings = load_serve_settings(argv, {})
    assert settings.worker_values == {
        "model_path": "m",
        "chat_template": str(tmp_path / "t.jinja"),
        "tokenizer_path": str(tmp_path / "tokenizer"),
        "device": "sim",
        "sim_profile": "fast",
    }
    assert settings.worker.chat_template == str(tmp_path / "t.jinja")


def test_environment_and_bounds_are_those_of_the_owner() -> None:
    assert load_serve_settings(["m"], {"CANOPY_REPLICAS": "4"}).fleet.replicas == 4
    with pytest.raises(UserError, match="--port must be at most 65535"):
        load_serve_settings(["m", "--port", "70000"], {})
    with pytest.raises(UserError, match="--replicas must be at least 1"):
        load_serve_settings(["m", "--replicas", "0"], {})


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "MODEL is missing; give canopy serve a directory, .gguf file or hub id of the model."),
        (["m", "--quickness", "9"], "--quickness is not a flag of canopy serve; see canopy serve --help."),
        (["m", "--incarnation", "x"], "--incarnation is not a flag of canopy serve"),
        (["m", "--worker-urls", "http://a:1"], "--worker-urls is not a flag of canopy serve"),
        (["m", "n"], "'n' belongs to no flag"),
        (["--model-path", "m", "n"], "'n' belongs to no flag"),
        (["m", "--chunked-prefill-size", "10", "--page-size", "4"], "must be a multiple of --page-size 4"),
        (["m", "--policy", "nearest"], "--policy 'nearest' is unknown"),
    ],
)
def test_faults_are_one_sentence(argv: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as fault:
        load_serve_settings(argv, {})
    assert sentence in str(fault.value)
    assert "\n" not in str(fault.value)


def test_what_the_launcher_decides_is_not_offered() -> None:
    assert not combined_settings().model_fields.keys() & LAUNCHERS


@pytest.mark.parametrize("flag", ["--replicas", "--dp", "--dp-size", "--data-parallel-size"])
def test_data_parallelism_is_replicas(flag: str) -> None:
    settings = load_serve_settings(["m", flag, "3"], {})
    assert settings.fleet.replicas == 3 and settings.worker_values == {"model_path": "m"}


def test_every_flag_means_one_thing() -> None:
    spellings = [spelling for setting in settings_of(combined_settings()) for spelling in setting.spellings]
    assert len(spellings) == len(set(spellings))


def test_no_program_takes_the_variable_of_another_for_a_misspelt_one_of_its_own() -> None:
    programs: list[type[Settings]] = [GatewaySettings, WorkerSettings, StatusSettings, combined_settings()]
    names = [set(by_spelling(program)) for program in programs]
    for own in names:
        for other in set().union(*names) - own:
            assert most_similar(other, own, MISSPELT_RATIO) is None, other
