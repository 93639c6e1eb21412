"""Batch lines in and out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.batch.lines import LineFault, answer_line, error_line, parse, response_of, written_id

GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def test_a_request_keeps_the_bytes_of_its_body() -> None:
    request = parse(b'{"custom_id": "a", "url": "/v1/chat/completions", "body": {"b" : 1,\t"a":[2.50]}, "more": 1}\n')
    assert (request.custom_id, request.url) == ("a", "/v1/chat/completions")
    assert request.body == b'{"b" : 1,\t"a":[2.50]}'


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"custom_id": None}, "the field custom_id has the wrong type"),
        ({"custom_id": ""}, "custom_id must have 1 to 512 characters"),
        ({"custom_id": "x" * 513}, "custom_id must have 1 to 512 characters"),
        ({"method": "GET"}, 'method must be "POST"'),
        ({"url": "/v1/models"}, "url must be one of"),
        ({"url": 3}, "the field url has the wrong type"),
        ({"body": "x"}, "body must be an object"),
        ({"body": [1]}, "body must be an object"),
        ({"body": {"stream": True}}, "body.stream must be false"),
        ({"body": {"stream": "yes"}}, "its stream true or false"),
    ],
)
def test_faults(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LineFault, match=sentence):
        parse(json.dumps(GOOD | change).encode())


@pytest.mark.parametrize("field", ["custom_id", "url", "body"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(LineFault, match=f"the field {field} is missing"):
        parse(json.dumps({k: v for k, v in GOOD.items() if k != field}).encode())


@given(st.binary(max_size=80))
def test_any_bytes_are_a_request_or_a_fault(line: bytes) -> None:
    with pytest.raises(LineFault):
        parse(line)


@pytest.mark.parametrize("line", [b"[]", b"3", b"null", b"{", b'{"custom_id": "\xff"}', b"[" * 5000])
def test_what_is_no_object(line: bytes) -> None:
    with pytest.raises(LineFault):
        parse(line)


def test_an_answer_is_one_line_with_the_body_as_it_came() -> None:
    line = answer_line("a\n", "r1", 200, b'{"x": 1.50}')
    response = b'{"status_code":200,"request_id":"r1","body":{"x": 1.50}}'
    assert line == b'{"id":"batch_req_a\\n","custom_id":"a\\n","response":' + response + b',"error":null}\n'
    assert written_id(line) == "a\n"


@pytest.mark.parametrize(("body", "seen"), [(b'{\n"x": 1}', {"x": 1}), (b"<html>\n", "<html>\n"), (b"\xff", "\ufffd")])
def test_bodies_that_are_no_line(body: bytes, seen: object) -> None:
    line = answer_line("a", "", 200, body)
    assert line.count(b"\n") == 1
    assert json.loads(line)["response"]["body"] == seen


def test_errors() -> None:
    assert json.loads(error_line(None, "invalid_line", "line 3: no", line=3)) == {
        "id": "batch_req_line_3",
        "custom_id": None,
        "response": None,
        "error": {"code": "invalid_line", "message": "line 3: no", "line": 3},
    }
    failed = json.loads(error_line("a", "http_400", "It said 400.", response=response_of("r", 400, b"{}")))
    assert failed["response"] == {"status_code": 400, "request_id": "r", "body": {}}


def test_what_no_batch_wrote() -> None:
    with pytest.raises(LineFault):
        written_id(b"text")
