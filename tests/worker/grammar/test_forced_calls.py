"""The grammar of a forced call, by the real compiler: what it allows, and that the parser reads it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.tool_models import TIME, WEATHER, tool_tokenizer
from worker.grammar.compiler import _compiled
from worker.server.parsers.base import CallStart, Part
from worker.server.parsers.choose import Families
from worker.server.tool_fields import Tool
from worker.server.tools import ToolUse

TOOLS = [Tool.model_validate(WEATHER), Tool.model_validate(TIME)]


@pytest.fixture(scope="module")
def compiler() -> Any:
    xgrammar = pytest.importorskip("xgrammar", reason="canopy-serve[structured] is not installed")
    tokenizer = tool_tokenizer().hugging_face
    tokens = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=301, stop_token_ids=[2])
    return xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("inside", [True, False], ids=["reasoning", "plain"])
@pytest.mark.parametrize("family", ["hermes", "llama3", None])
def test_calls_and_nothing_else(compiler: Any, family: Any, inside: bool, parallel: bool) -> None:
    import xgrammar

    families = Families(family, "qwen3" if inside else None)
    use = ToolUse.of(TOOLS, "required", parallel, families)
    asked = use.grammar(families, inside=inside)
    assert asked is not None
    grammar = _compiled(compiler, asked, {})

    def allows(text: str) -> bool:
        return bool(xgrammar.GrammarMatcher(grammar).accept_string(text))

    thought = "Hm: 5 < 6 </thi\n</think>\n\n" if inside else ""
    opening, closing, between = ("<tool_call>\n", "\n</tool_call>", "\n") if family == "hermes" else ("", "", "; ")
    key = "parameters" if family == "llama3" else "arguments"
    calls = [
        f'{opening}{{"name": "{name}", "{key}": {arguments}}}{closing}'
        for name, arguments in (("weather", '{"city": "Bonn"}'), ("time", "{}"))
    ]
    assert allows(thought + calls[0])
    assert allows(thought + between.join(calls)) == parallel
    assert not allows(f"{thought}Hello")
    assert not allows(thought + calls[0].replace("weather", "whether"))
    assert not allows(thought + calls[0].replace("city", "town"))
    parser = use.forced_parser(families, reasoning=True, inside=inside)
    parts: list[Part] = [*parser.push(thought + between.join(calls)), *parser.finish()]
    assert [part.name for part in parts if isinstance(part, CallStart)] == ["weather", "time"]
