"""One line of a batch file in, one line of its output or of its error file out, in OpenAI's batch format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/generate")
FAULT = "invalid_line"
MAX_CUSTOM_ID = 512  # characters


class LineFault(ValueError):
    """A line that is no request, in one sentence. `custom_id`: where it has one."""

    def __init__(self, sentence: str, custom_id: str | None = None) -> None:
        super().__init__(sentence)
        self.custom_id = custom_id


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `body` is sent as it stands in the file."""

    custom_id: str
    url: str
    body: bytes


class _Line(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _Stream(msgspec.Struct):
    stream: bool | None = None


class _Written(msgspec.Struct):
    """What is read back of output and error lines."""

    custom_id: str | None = None


_LINE = msgspec.json.Decoder(_Line)
_STREAM = msgspec.json.Decoder(_Stream)
_WRITTEN = msgspec.json.Decoder(_Written)


def parse(line: bytes) -> Request:
    """Read one line. Raises LineFault."""
    try:
        found = _LINE.decode(line)
    except msgspec.ValidationError as error:
        raise LineFault(_sentence(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LineFault("it is not valid JSON") from None
    if not 0 < len(found.custom_id) <= MAX_CUSTOM_ID:
        raise LineFault(f"custom_id must have 1 to {MAX_CUSTOM_ID} characters")
    if found.method != "POST":
        raise LineFault('method must be "POST"', found.custom_id)
    if found.url not in URLS:
        raise LineFault(f"url must be one of {', '.join(URLS)}", found.custom_id)
    body = bytes(found.body)
    try:
        if _STREAM.decode(body).stream:
            raise LineFault("body.stream must be false: a batch has whole answers", found.custom_id)
    except (msgspec.ValidationError, msgspec.DecodeError):
        raise LineFault("body must be an object, and its stream true or false", found.custom_id) from None
    return Request(found.custom_id, found.url, body)


def written_id(line: bytes) -> str | None:
    """custom_id of a line that we wrote. Raises LineFault if it is not one."""
    try:
        return _WRITTEN.decode(line).custom_id
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError):
        raise LineFault("it is not a line of a batch's output") from None


def answer_line(custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
    """A line of the output file."""
    return _encoded(custom_id, response_of(request_id, status, body), None)


def error_line(
    custom_id: str | None, code: str, message: str, *, line: int | None = None, response: dict[str, Any] | None = None
) -> bytes:
    """A line of the error file. `line`: number in the input, from 1, where that is all that is known."""
    error: dict[str, Any] = {"code": code, "message": message}
    return _encoded(custom_id, response, error if line is None else error | {"line": line})


def _encoded(custom_id: str | None, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bytes:
    name = custom_id if custom_id is not None else f"line_{(error or {}).get('line')}"
    fields = {"id": f"batch_req_{name}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(fields) + b"\n"


def response_of(request_id: str, status: int, body: bytes) -> dict[str, Any]:
    """The `response` of an output or error line."""
    return {"status_code": status, "request_id": request_id, "body": _one_line(body)}


def _one_line(body: bytes) -> Any:
    """The body as it came; parsed first if it has line breaks or is not JSON."""
    try:
        if b"\n" in body or b"\r" in body:
            return msgspec.json.decode(body)
        msgspec.json.decode(body, type=msgspec.Raw)
        return msgspec.Raw(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode(errors="replace")


def _sentence(error: msgspec.ValidationError) -> str:
    text = str(error)
    if "Object missing required field" in text:
        return f"the field {text.split('`')[1]} is missing"
    if " - at `$." in text:
        field = text.split("`$.")[1].rstrip("`")
        return f"the field {field} has the wrong type"
    return "it is not a JSON object"
