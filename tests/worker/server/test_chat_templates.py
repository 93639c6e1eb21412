"""Which chat template a model is served with: built-in ones, files, one of several, and their variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.chat_templates import BUILT_IN, chosen_template, named_template
from common.errors import UserError
from tests.helpers.replica_app import serving
from tests.helpers.text_models import CHAT_TEMPLATE, byte_level_backend
from worker.config import WorkerSettings
from worker.server.errors import RequestFault
from worker.server.service import ModelFiles
from worker.server.tokenizer import Tokenizer

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]
SEVERAL = {"default": "plain {{ messages[0].content }}", "tool_use": "tools {{ messages[0].content }}"}


def render(tokenizer: Tokenizer, chat: list[dict[str, str]] = CHAT, **options: Any) -> str:
    return tokenizer.render_chat(chat, continue_final_message=False, variables={}, **options)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "chatml",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama-2",
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] Bye [/INST]",
        ),
        (
            "llama-3",
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "zephyr",
            "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello.</s>\n"
            "<|user|>\nBye</s>\n<|assistant|>\n",
        ),
        (
            "gemma",
            "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
            "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        ),
    ],
)
def test_built_in_templates(name: str, expected: str, tokenizer_dir: Path) -> None:
    assert render(Tokenizer.load(str(tokenizer_dir), chat_template=name)) == expected


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_later_turn_extends_the_earlier_prompt(name: str, tokenizer_dir: Path) -> None:
    """Else the prefix cache would miss at every turn. What the model wrote stands where its prompt ended."""
    tokenizer = Tokenizer.load(str(tokenizer_dir), chat_template=name)
    first, second = render(tokenizer, CHAT[:2]), render(tokenizer)
    assert second.startswith(first)
    assert second[len(first) :].lstrip().startswith("Hello.")


def test_a_role_that_a_template_does_not_know_is_the_clients_fault(tokenizer_dir: Path) -> None:
    tokenizer = Tokenizer.load(str(tokenizer_dir), chat_template="llama-2")
    with pytest.raises(RequestFault, match="system, user and assistant only") as caught:
        render(tokenizer, [{"role": "tool", "content": "1"}])
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_a_file_that_is_no_template_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.jinja"
    file.write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
    with pytest.raises(UserError, match=r"--chat-template: .*broken\.jinja is no Jinja template \(line 2: .*mend it"):
        named_template(str(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="--chat-template: cannot read"):
        named_template(str(file))
    with pytest.raises(UserError, match=r"'chatlm' is no file and no built-in template \(chatml, llama-2, .*\); name"):
        named_template("chatlm")


def test_one_of_several_templates() -> None:
    assert chosen_template(None, None) is None
    assert chosen_template("one", None) == "one"
    assert chosen_template(SEVERAL, None) == SEVERAL["default"]
    assert chosen_template({"a": "x", "b": "y"}, None) is None
    assert chosen_template(SEVERAL, "tool_use") == SEVERAL["tool_use"]


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (SEVERAL, "--hf-chat-template-name rag: the tokenizer's templates are default, tool_use; name one."),
        ("one", "--hf-chat-template-name rag: the tokenizer has one template without a name; leave it out."),
        (None, "--hf-chat-template-name rag: the tokenizer has no chat template; use --chat-template."),
    ],
)
def test_a_template_name_that_does_not_exist(own: str | dict[str, str] | None, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        chosen_template(own, "rag")
    assert str(caught.value) == sentence


@pytest.fixture(scope="module")
def several_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer saved with two templates, in the way Transformers does that."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("several")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_backend(), bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = SEVERAL
    tokenizer.save_pretrained(folder)
    return folder


def files(folder: Path, **settings: Any) -> ModelFiles:
    return ModelFiles.load(str(folder), WorkerSettings(model_path="m", **settings))


async def prompt_of(folder: Path, **settings: Any) -> str:
    """What the scheduler gets for a chat over HTTP."""
    tokenizer = files(folder, **settings).tokenizer
    assert isinstance(tokenizer, Tokenizer)
    async with serving(tokenizer, **settings) as app:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        response = await app.post("/v1/chat/completions", **body)
        assert response.status_code == 200, response.text
        (request,) = app.scheduler.requests
        return tokenizer.decode(request.input_ids, skip_special_tokens=False)


async def test_the_flags_over_http(several_dir: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    assert await prompt_of(several_dir) == "plain Hi"
    assert await prompt_of(several_dir, hf_chat_template_name="tool_use") == "tools Hi"
    assert await prompt_of(several_dir, chat_template="zephyr") == "<|user|>\nHi</s>\n<|assistant|>\n"
    assert await prompt_of(tokenizer_dir) == "<s>user: Hi</s><s>assistant: "
    file = tmp_path / "mood.jinja"
    file.write_text("{{ mood }} {{ messages[0].content }}")
    kwargs = {"mood": "glad"}
    assert await prompt_of(tokenizer_dir, chat_template=str(file), default_chat_template_kwargs=kwargs) == "glad Hi"


async def test_a_requests_own_variables_go_before_the_defaults(tokenizer_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "mood.jinja"
    file.write_text("{{ mood }}/{{ tone }}/{{ messages[0].content }}")
    settings = {"chat_template": str(file), "default_chat_template_kwargs": {"mood": "glad", "tone": "low"}}
    tokenizer = files(tokenizer_dir, **settings).tokenizer
    assert isinstance(tokenizer, Tokenizer)
    async with serving(tokenizer, **settings) as app:
        chat = [{"role": "user", "content": "Hi"}]
        await app.post("/v1/chat/completions", messages=chat, chat_template_kwargs={"mood": "sad"}, max_tokens=4)
        (request,) = app.scheduler.requests
        assert tokenizer.decode(request.input_ids) == "sad/low/Hi"
        tokens = (await app.post("/tokenize", messages=chat)).json()["tokens"]
        assert tokenizer.decode(tokens) == "glad/low/Hi"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"chat_template": "nope"}, "no built-in template"),
        ({"hf_chat_template_name": "rag"}, "--hf-chat-template-name rag"),
        ({"default_chat_template_kwargs": {"messages": []}}, "messages belongs to the server"),
        ({"tokenizer_path": "/nowhere/at/all"}, "--tokenizer-path"),
    ],
)
def test_bad_values_are_told_at_the_start(several_dir: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        files(several_dir, **settings)


def test_the_models_own_template_is_kept_where_nothing_is_said(tokenizer_dir: Path) -> None:
    tokenizer = files(tokenizer_dir).tokenizer
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.hugging_face.chat_template == CHAT_TEMPLATE
