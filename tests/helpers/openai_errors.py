"""The error object that every HTTP surface answers with."""

from __future__ import annotations

import httpx


def check_error(response: httpx.Response, status: int, param: str | None) -> str:
    """The answer is OpenAI's error object; its message."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert error["param"] == param
    message = error["message"]
    assert isinstance(message, str) and message.endswith(".")
    return message
