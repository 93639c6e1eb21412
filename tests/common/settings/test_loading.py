"""Four sources become one tree, and every fault in them one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.settings import Loaded, load, public_values, validated
from tests.common.settings.example import Example


def example(*argv: str, env: dict[str, str] | None = None, file: str | None = None, at: Path | None = None) -> Example:
    """An Example from a command line, an environment and the text of a file."""
    return loaded(*argv, env=env, file=file, at=at).settings


def loaded(
    *argv: str, env: dict[str, str] | None = None, file: str | None = None, at: Path | None = None
) -> Loaded[Example]:
    if file is not None:
        assert at is not None
        (at / "c.yaml").write_text(file)
        argv = ("--config", str(at / "c.yaml"), *argv)
    return load(Example, argv, env or {}, prog="example")


def fault(*argv: str, **sources: Any) -> str:
    """What the user is told."""
    with pytest.raises(UserError) as error:
        example(*argv, **sources)
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


def test_each_source_beats_the_one_below(tmp_path: Path) -> None:
    env = {"CANOPY_COUNT": "3", "CANOPY_MODE": "slow"}
    result = loaded("--count", "2", env=env, file="count: 9\nmode: fast\nname: n\n", at=tmp_path)
    assert (result.settings.name, result.settings.mode, result.settings.count) == ("n", "slow", 2)
    assert result.sources == {"name": "config file", "mode": "environment", "count": "command line"}


def test_every_spelling_is_the_same_setting(tmp_path: Path) -> None:
    assert example("--title", "t").name == example(env={"CANOPY_TITLE": "t"}).name == "t"
    assert example(file="title: t", at=tmp_path).name == "t"


def test_lists_grow_with_each_flag() -> None:
    assert example("--name", "n", "--words", "a", "b", "--words", "c").words == ["a", "b", "c"]
    assert example("--name", "n", "--words", "d").words == ["d"]  # nothing is left of another command line
    assert example("--name", "n", "--words", "d", env={"CANOPY_WORDS": "e"}).words == ["d"]


def test_short_forms_of_flags_are_not_taken() -> None:
    assert fault("--name", "n", "--verb") == "--verb is not a flag of example; did you mean --verbose?"


def test_old_names_work_and_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert example("--name=n", "--manner=slow", "--no-paint").mode == "slow"
    assert capsys.readouterr().err.splitlines() == [
        "example: --manner is an old name; use --mode.",
        "example: --paint is an old name; use --colour.",
    ]
    assert example(file="{name: n, manner: slow}", at=tmp_path).mode == "slow"
    assert "--manner is an old name" in capsys.readouterr().err
    assert example("--name=n", env={"CANOPY_MANNER": "slow"}).mode == "slow"
    assert "--manner is an old name" in capsys.readouterr().err
    assert example("--name=n", "--mode=slow").mode == "slow"
    assert capsys.readouterr().err == ""


def test_switches() -> None:
    for argv, value in (
        (["--verbose"], True),
        (["--no-verbose"], False),
        (["--verbose", "false"], False),
        (["--verbose=true"], True),
        (["--verbose", "--no-verbose"], False),
    ):
        assert example("--name", "n", *argv).verbose is value
    assert example("--verbose", "--name", "n").verbose is True
    assert fault("--name=n", "--verbose=perhaps") == "--verbose must be true or false (got 'perhaps')."
    assert fault("--name=n", "--no-verbose=true") == "--no-verbose takes no value; leave 'true' out."
    assert fault("--name=n", "--verbose", "perhaps") == "'perhaps' belongs to no flag; see example --help."


def test_lists_and_objects(tmp_path: Path) -> None:
    given_everywhere = [
        example("--name=n", "--sizes", "1", "2", "--words", "a", "b", '--extra={"k": [1]}'),
        example("--name=n", env={"CANOPY_SIZES": "1, 2", "CANOPY_WORDS": "a,b", "CANOPY_EXTRA": '{"k": [1]}'}),
        example(file="name: n\nsizes: [1, 2]\nwords: [a, b]\nextra: {k: [1]}\n", at=tmp_path),
        example(file="name: n\nsizes:\n- 1\n- '2'\nwords: [a, b]\nextra: '{\"k\": [1]}'\n", at=tmp_path),
    ]
    for settings in given_everywhere:
        assert (settings.sizes, settings.words, settings.extra) == ([1, 2], ["a", "b"], {"k": [1]})
    assert example(file="{name: n, sizes: 4, words: one}", at=tmp_path).sizes == [4]


def test_a_word_without_a_flag() -> None:
    for argv in (["w"], ["--verbose", "w"], ["w", "--count", "2"], ["--name", "w"]):
        assert load(Example, argv, {}, prog="example", positional="name").settings.name == "w"
    for argv, sentence in (
        ([], "NAME is missing; give example a what it is called."),
        (["w", "x"], "'x' belongs to no flag; see example --help."),
        (["--name", "w", "x"], "'x' belongs to no flag; see example --help."),
        (["w", "--what", "x"], "--what is not a flag of example; see example --help."),
    ):
        with pytest.raises(UserError) as error:
            load(Example, argv, {}, prog="example", positional="name")
        assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "--name is required."),
        (["--name"], "--name: expected one argument; see example --help."),
        (["--name", ""], "--name must not be empty (got '')."),
        (["--count", "0"], "--count must be at least 1 (got '0')."),
        (["--count", "x"], "--count must be a whole number (got 'x')."),
        (["--count", "1.5"], "--count must be a whole number (got '1.5')."),
        (["--count", "1.0005k"], "--count is refused: 1.0005k is not a whole number (got '1.0005k')."),
        (["--count", "2000000000"], "--count must be at most 1000000000 (got '2000000000')."),
        (["--ratio", "1"], "--ratio must be below 1 (got '1')."),
        (["--ratio", "nan"], "--ratio must be a finite number (got 'nan')."),
        (["--mode", "odd"], "--mode must be fast or slow (got 'odd')."),
        (["--sizes", "1", "b"], "--sizes must be a whole number (got 'b')."),
        (["--extra", "{"], "--extra is refused: this is not JSON:"),
        (["--extra", "[1]"], "--extra is refused: give a JSON object: {...} (got '[1]')."),
        (["--cuont", "1"], "--cuont is not a flag of example; did you mean --count?"),
        (["--no-colours"], "--no-colours is not a flag of example; did you mean --no-colour?"),
        (["--mode", "slow", "--count", "101"], "--mode slow goes up to --count 100; lower it."),
        (["--wings", "2"], "--wings 2 is not built yet: walk."),
        (["--pinions", "2"], "--wings 2 is not built yet: walk."),
        (["--magic"], "--magic is not built yet: think."),
        (["--config", "a.yaml", "--config", "a.yaml"], "--config was given twice; merge the files and give one."),
        (["--stop"], "--stop is not a flag of example; see example --help."),
        (["--config", ""], "--config must not be empty; name a YAML file."),
        (["--config"], "--config: expected one argument; see example --help."),
    ],
)
def test_faults_of_the_command_line(argv: list[str], sentence: str) -> None:
    named = [] if not argv or argv[0] == "--name" else ["--name", "n"]
    assert fault(*named, *argv).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- 1", "--config: the root of {} must be a mapping of settings."),
        ("just text", "--config: the root of {} must be a mapping of settings."),
        (
            "a:\n  [",
            "--config: {} is not valid YAML: while parsing a flow node, expected the node content, but found "
            "'<stream end>' (line 2).",
        ),
        ("a: !!python/object/apply:os.getcwd []", "--config: {} is not valid YAML: "),
        ("name: 2024-13-45", "--config: {} is not valid YAML: month must be in 1..12."),
        ("count: !!int x", "--config: {} is not valid YAML: "),
        ("extra: " + "[" * 3000, "--config: {} is not valid YAML: "),
        ("a: 1\n---\nb: 2", "--config: {} is not valid YAML: expected a single document"),
        ("cuont: 1", "--config: {} has the unknown key 'cuont'; did you mean count?"),
        ("5: 1", "--config: {} has the unknown key '5'; --help lists the known ones."),
        ("count: 1\ncount: 2", "--config: {} sets count twice; keep one of the two."),
        ("name: n\ntitle: n", "--config: {} sets name twice; keep one of the two."),
        ("count: true", "count in {} must be a number (got true)."),
        ("sizes: [1, false]", "sizes in {} must be a number (got false)."),
        ("count: 1.5", "count in {} must be a whole number (got 1.5)."),
        ("count: [1]", "count in {} must be a whole number (got [1])."),
        ("count:", "count in {} must be a whole number (got None)."),
        ("ratio: .nan", "ratio in {} must be a finite number (got nan)."),
        ("name: 5", "name in {} must be text, in a YAML file between quotes (got 5)."),
        ("words: [5]", "words in {} must be text, in a YAML file between quotes (got 5)."),
        ("words: {a: b}", "words in {} must be a list (got {{'a': 'b'}})."),
        ("verbose: 7", "verbose in {} must be true or false (got 7)."),
        ("extra: [1]", "extra in {} must be a JSON object or a mapping (got [1])."),
        ("wings: 2", "--wings 2 is not built yet: walk."),
    ],
)
def test_faults_of_the_file(text: str, sentence: str, tmp_path: Path) -> None:
    named = [] if "name" in text else ["--name", "n"]
    assert fault(*named, file=text, at=tmp_path).startswith(sentence.format(tmp_path / "c.yaml"))


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n", "{}"])
def test_an_empty_file_sets_nothing(text: str, tmp_path: Path) -> None:
    assert example("--name", "n", file=text, at=tmp_path) == example("--name", "n")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("name: \u00e9".encode("latin-1"))
    (tmp_path / "folder.yml").mkdir()
    for name, sentence in (
        ("c.json", "must end in .yaml or .yml."),
        ("c", "must end in .yaml or .yml."),
        ("none.yaml", "cannot read {}: No such file or directory."),
        ("folder.yml", "cannot read {}: Is a directory."),
        ("latin.yaml", "{} is not UTF-8 text; save it as UTF-8."),
    ):
        path = tmp_path / name
        assert sentence.format(path) in fault("--config", str(path))


def test_faults_of_the_environment_name_the_variable() -> None:
    assert fault("--name=n", env={"CANOPY_COUNT": "0"}) == "CANOPY_COUNT must be at least 1 (got '0')."
    assert fault(env={"CANOPY_TITLE": "n", "CANOPY_VERBOSE": "x"}) == "CANOPY_VERBOSE must be true or false (got 'x')."
    assert fault("--name=n", env={"CANOPY_PINIONS": "2"}) == "CANOPY_PINIONS 2 is not built yet: walk."
    sentence = "--mode slow goes up to CANOPY_COUNT 100; lower it."
    assert fault("--name=n", "--mode=slow", env={"CANOPY_COUNT": "101"}) == sentence
    assert example("--name=n", env={"CANOPY_COUNT": "", "OTHER": "x"}).count == 4


def test_a_misspelt_variable_is_refused_and_others_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "CANOPY_VERBOS is not a setting of example; did you mean CANOPY_VERBOSE?"
    assert fault("--name=n", env={"CANOPY_VERBOS": "true"}) == sentence
    example("--name=n", env={"CANOPY_REPLICAS": "2", "CANOPY_CACHE": "/tmp/x", "CANOPY_TRACES": "/t", "CANOPY_X": ""})
    assert capsys.readouterr().err == "example: CANOPY_REPLICAS: no setting of example, ignored.\n"


def test_what_kubernetes_sets_beside_a_service_is_no_setting(capsys: pytest.CaptureFixture[str]) -> None:
    names = [
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_HTTP",
        "PORT_80_TCP",
        "PORT_80_TCP_ADDR",
        "COUNT_SERVICE_HOST",
    ]
    env = {f"CANOPY_{name}": "10.0.0.1" for name in names} | {"CANOPY_COUNT_PORT": "tcp://10.0.0.1:80"}
    assert example("--name=n", env=env | {"CANOPY_COUNT": "7"}).count == 7
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(": set by Kubernetes for a service of that name, ignored.")
    assert all(name in line for name in env) and "CANOPY_COUNT," not in line


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a")
    (tmp_path / "b.yaml").write_text("name: b")
    env = {"CANOPY_CONFIG": str(tmp_path / "a.yaml")}
    assert example(env=env).name == "a"
    assert example("--config", str(tmp_path / "b.yaml"), env=env).name == "b"
    assert fault(env={"CANOPY_CONFIG": "c"}) == "CANOPY_CONFIG: c must end in .yaml or .yml."


def test_secrets_are_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert fault("--name=n", "--key=ab") == "--key must have at least 3 characters."
    assert fault("--name=n", "--spell=hocus") == "--spell is not built yet: speak."
    settings = example("--name=n", "--key=open sesame")
    assert "sesame" not in repr(settings) and settings.key == "open sesame"
    assert "key" not in public_values(settings) and public_values(settings)["name"] == "n"
    with pytest.raises(SystemExit) as end:
        load(Example, ["--name=n", "--key=open sesame", "--print-config"], {}, prog="example")
    shown = capsys.readouterr().out
    assert end.value.code == 0 and "sesame" not in shown and "# key: set, not shown  # command line" in shown


def test_values_from_code_have_the_same_rules() -> None:
    with pytest.raises(UserError, match="^--count must be at least 1"):
        validated(Example, {"name": "n", "count": 0})
    with pytest.raises(UserError, match="^'colours' is not a setting."):
        validated(Example, {"name": "n", "colours": 0})


def test_print_config_names_every_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        loaded("--count=8k", "--print-config", env={"CANOPY_WORDS": "a"}, file="name: n", at=tmp_path)
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[:3] == ["# Main", "name: n  # config file", "count: 8000  # command line"]
    assert "words: [a]  # environment" in lines and "ratio: null  # default" in lines
    assert "wings" not in text and "magic" not in text and "Magic" not in text


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    st.fixed_dictionaries(
        {"name": TEXT},
        optional={
            "count": st.integers(1, 100),
            "ratio": st.floats(0, 1, exclude_min=True, exclude_max=True) | st.none(),
            "mode": st.sampled_from(["fast", "slow"]),
            "verbose": st.booleans(),
            "sizes": st.lists(st.integers()) | st.none(),
            "words": st.lists(TEXT),
            "extra": st.dictionaries(TEXT, st.lists(TEXT) | st.booleans() | st.integers()),
        },
    )
)
def test_print_config_is_a_config_file(values: dict[str, Any]) -> None:
    from common.settings.show import as_yaml

    settings = validated(Example, values)
    text = as_yaml(settings, dict.fromkeys(values, "config file"))
    assert validated(Example, {key.replace("-", "_"): value for key, value in yaml.safe_load(text).items()}) == settings
