"""Answers held to schemas, expressions, grammars and tags by xgrammar, on real models."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.helpers.json_schemas import SCHEMAS
from worker import Engine

pytest.importorskip("xgrammar", reason="xgrammar is not installed")

TOOL = {"type": "object", "properties": {"q": {"type": "string", "maxLength": 8}}, "required": ["q"]}


@pytest.fixture(scope="module")
def engine(chat_model: Path) -> Iterator[Engine]:
    """A random model: nothing but the grammar gives its answers a form. Small enough for retractions."""
    with Engine(model_path=str(chat_model), max_total_tokens=1500, cpu_threads=1) as engine:
        yield engine


def answer(engine: Engine, prompt: str = "hello", **params: Any) -> dict[str, Any]:
    found = engine.generate(prompt, sampling_params={"max_new_tokens": 300, "sampling_seed": 1} | params)
    assert isinstance(found, dict)
    return found


def completed(found: dict[str, Any]) -> bool:
    return bool(found["meta_info"]["finish_reason"]["type"] == "stop")


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1.0}, {"temperature": 2.0, "top_k": 5}])
def test_an_answer_follows_its_expression(engine: Engine, params: dict[str, Any]) -> None:
    found = answer(engine, regex="[a-c]{2,4}-\\d{3}(é|漢)", **params)
    assert re.fullmatch("[a-c]{2,4}-[0-9]{3}(é|漢)", found["text"]), found["text"]
    assert completed(found)


def test_an_answer_follows_its_grammar(engine: Engine) -> None:
    ebnf = 'root ::= "(" root ")" | digit\ndigit ::= [0-9]'
    for seed in range(5):
        found = answer(engine, ebnf=ebnf, sampling_seed=seed)
        text = found["text"]
        depth = text.count("(")
        assert not completed(found) or re.fullmatch(f"\\({{{depth}}}[0-9]\\){{{depth}}}", text), text


def test_json_objects_and_schemas(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "integer"}}, "required": ["a"]}
    for given_as in (schema, json.dumps(schema)):
        found = answer(engine, json_schema=given_as, max_new_tokens=400)
        if completed(found):
            jsonschema.validate(json.loads(found["text"]), schema)


def test_tags_hold_what_stands_between_them(engine: Engine) -> None:
    """In both forms; a trigger that the model never writes changes nothing."""
    tag = {"begin": "<f>", "schema": TOOL, "end": "</f>"}
    free = answer(engine, temperature=0, structural_tag={"structures": [tag], "triggers": ["<f>"]}, max_new_tokens=20)
    assert free["text"] == answer(engine, temperature=0, max_new_tokens=20)["text"]
    content = {"type": "json_schema", "json_schema": TOOL}
    whole = {"type": "structural_tag", "format": {"type": "tag", "begin": "<f>", "content": content, "end": "</f>"}}
    found = answer(engine, structural_tag=whole)
    assert completed(found) and found["text"].startswith("<f>") and found["text"].endswith("</f>")
    jsonschema.validate(json.loads(found["text"][3:-4]), TOOL)


def test_copies_and_neighbours_do_not_mix(engine: Engine) -> None:
    """n answers, a batch of different grammars beside free ones, and the same alone."""
    params: list[dict[str, Any]] = [
        {"regex": "[ab]{30}"},
        {},
        {"regex": "[0-9]{30}"},
        {"ebnf": 'root ::= "yes" | "no"'},
    ]
    each = [{"max_new_tokens": 40, "sampling_seed": 3, "n": 2} | wish for wish in params]
    together = engine.generate(["hello"] * 4, sampling_params=each)
    alone = [engine.generate("hello", sampling_params=wish) for wish in each]
    assert [a["text"] for a in together] == [a["text"] for pair in alone for a in pair]  # type: ignore[index]
    texts = [a["text"] for a in together]  # type: ignore[index]
    assert re.fullmatch("[ab]{30}", texts[0]) and re.fullmatch("[ab]{30}", texts[1]) and texts[0] != texts[1]
    assert re.fullmatch("[0-9]{30}", texts[4]) and texts[6] in ("yes", "no")


def test_slow_masks_change_no_answer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks that are filled beside the loop; equal expressions are compiled once, so these differ in their names."""
    wishes: list[dict[str, Any]] = [{}, {"regex": "([ab]{1,3} ){9}"}, {"regex": "[0-9]{30}", "min_new_tokens": 4}]
    each = [{"max_new_tokens": 40, "sampling_seed": 3, "n": 2} | wish for wish in wishes]
    fast = [answer["text"] for answer in engine.generate(["hello"] * 3, sampling_params=each)]  # type: ignore[index]
    monkeypatch.setattr("worker.grammar.compiler.SLOW_FILL_S", -1.0)
    for wish in each[1:]:
        wish["regex"] = f"(?:{wish['regex']})"
    slow = [answer["text"] for answer in engine.generate(["hello"] * 3, sampling_params=each)]  # type: ignore[index]
    assert slow == fast
    assert re.fullmatch("[0-9]{30}", slow[4])


def test_a_grammar_out_of_proportion_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.grammar.compiler.MAX_FILL_S", -1.0)
    reason = answer(engine, regex="[ab]{31}")["meta_info"]["finish_reason"]
    assert (reason["type"], reason["status_code"]) == ("abort", 400)
    assert "too slow to follow" in reason["message"]


def test_stops_and_least_lengths_work_within_a_grammar(engine: Engine) -> None:
    stopped = answer(engine, regex="[ab]{5}STOP[ab]{5}", stop="STOP")
    assert re.fullmatch("[ab]{5}", stopped["text"])
    long = answer(engine, regex="[a-z]*", min_new_tokens=25, max_new_tokens=60)
    assert long["meta_info"]["completion_tokens"] >= 25
    short = answer(engine, regex="[ab]{2}", min_new_tokens=25)  # the grammar has the last word
    assert re.fullmatch("[ab]{2}", short["text"]) and completed(short)


def test_scores_are_those_of_the_model_not_of_the_mask(engine: Engine) -> None:
    found = engine.generate(
        "hello", sampling_params={"regex": "[0-9]{4}", "max_new_tokens": 8}, return_logprob=True, top_logprobs_num=1
    )
    assert isinstance(found, dict)
    info = found["meta_info"]
    assert any(
        best[0][1] != own[1]
        for own, best in zip(info["output_token_logprobs"], info["output_top_logprobs"], strict=True)
    )


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"regex": "(a"}, "parenthesis"),
        ({"regex": "(?=a)b"}, "Lookahead"),
        ({"ebnf": "root ::= nothing"}, "not defined"),
        ({"ebnf": "root ::= root"}, "no answer"),
        ({"json_schema": {"$ref": "#/$defs/none"}}, "none"),
        (
            {"structural_tag": {"type": "structural_tag", "format": {"type": "what"}}},
            "followed: Invalid",
        ),
    ],
)
def test_grammars_that_cannot_be_followed_say_why(engine: Engine, params: dict[str, Any], words: str) -> None:
    for _ in range(2):  # compiled, and as it is remembered
        reason = answer(engine, **params)["meta_info"]["finish_reason"]
        assert (reason["type"], reason["status_code"]) == ("abort", 400)
        assert words in reason["message"] and "/project/" not in reason["message"]


@pytest.mark.parametrize("broken", ["_compiled", "_Grammar.fill"])
def test_what_goes_wrong_with_one_grammar_ends_one_request(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("begin")

    monkeypatch.setattr(f"worker.grammar.compiler.{broken}", fails)
    reason = answer(engine, regex=f"never compiled before {broken}")["meta_info"]["finish_reason"]
    assert (reason["type"], reason["status_code"]) == ("abort", 400)
    assert "log says why" in reason["message"] and "begin" not in reason["message"]
    monkeypatch.undo()
    assert answer(engine, regex="[a-c]{3}")["text"]


def random_schemas(count: int) -> list[dict[str, Any]]:
    """The same ones each time."""
    schemas: list[dict[str, Any]] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(SCHEMAS)
    def collect(schema: dict[str, Any]) -> None:
        jsonschema.Draft202012Validator.check_schema(schema)
        schemas.append(schema)

    collect()
    return schemas[:count]


def check_random_schemas(engine: Engine, schemas: list[dict[str, Any]]) -> tuple[int, int, float]:
    """None is refused, and every answer that ends by itself validates. Returns how many did, the tokens of all
    answers, and the seconds they took together, compiling included."""
    params = [
        {"json_schema": schema, "max_new_tokens": 160, "temperature": 0.8, "sampling_seed": i}
        for i, schema in enumerate(schemas)
    ]
    started_s = time.perf_counter()
    found = engine.generate(["Give me an example in JSON: "] * len(schemas), sampling_params=params)
    seconds = time.perf_counter() - started_s
    assert isinstance(found, list)
    for schema, one in zip(schemas, found, strict=True):
        assert one["meta_info"]["finish_reason"]["type"] != "abort", (schema, one["meta_info"])
        if completed(one):
            jsonschema.validate(json.loads(one["text"]), schema)
    return sum(map(completed, found)), sum(len(one["output_ids"]) for one in found), seconds


def test_some_random_schemas(engine: Engine) -> None:
    ended, _, _ = check_random_schemas(engine, random_schemas(8))
    assert ended > 2


@pytest.mark.clients
@pytest.mark.timeout(3000)
def test_200_random_schemas_on_the_demo_model(demo_model_dir: Path) -> None:
    """Prints what an answer's token costs with a grammar and without."""
    schemas = random_schemas(200)
    assert len(schemas) == 200
    with Engine(model_path=str(demo_model_dir), max_total_tokens=30_000, max_running_requests=50) as engine:
        answer(engine, json_schema={"type": "string"}, max_new_tokens=8)  # loads the compiler
        ended, tokens, seconds = check_random_schemas(engine, schemas)
        length = tokens // 200
        params = {"max_new_tokens": length, "ignore_eos": True}
        started_s = time.perf_counter()
        engine.generate(["Give me an example in JSON: "] * 200, sampling_params=params)
        free_seconds = time.perf_counter() - started_s
    print(f"\n200 schemas, {ended} answers complete, all of them valid; {tokens} tokens: ", end="")
    print(f"{seconds * 1000 / tokens:.2f} ms a token with grammars (compiling included), ", end="")
    print(f"{free_seconds * 1000 / (200 * length):.2f} ms without")
    assert ended > 100
