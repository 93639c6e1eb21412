"""A tokenizer whose chat template knows tools and reasoning, and what a model writes to call them."""

from __future__ import annotations

import json
from typing import Any

from tests.helpers.text_models import byte_level_backend
from worker.server.tokenizer import Tokenizer

TEMPLATE = (
    "{% if tools %}<s>tools: {{ tools | tojson }} write <tool_call></s>{% endif %}"
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments.city }}</tool_call>"
    "{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% if effort %}<think>{% endif %}{% endif %}"
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}


def tool_tokenizer() -> Tokenizer:
    """Its `<think>` in a prompt is asked for by the template variable `effort`."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_backend(), unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = TEMPLATE
    return Tokenizer(tokenizer)


def written_call(name: str, **arguments: object) -> str:
    """As Hermes writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
