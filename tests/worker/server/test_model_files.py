"""What the frontend reads from a model's directory: sampling defaults, tokenizer, chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.errors import UserError
from tests.helpers.text_models import byte_level_backend
from worker.config import WorkerSettings
from worker.server.errors import RequestFault
from worker.server.sampling import SamplingDefaults
from worker.server.service import ModelFiles
from worker.server.tokenizer import Tokenizer

HI = [{"role": "user", "content": "hi"}]


def defaults_of(folder: Path, content: object) -> SamplingDefaults:
    (folder / "generation_config.json").write_text(json.dumps(content))
    return SamplingDefaults.load(folder)


def test_a_generation_config_sets_what_it_names(tmp_path: Path) -> None:
    assert SamplingDefaults.load(tmp_path) == SamplingDefaults()
    content = {"temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": [1, 2], "do_sample": True}
    assert defaults_of(tmp_path, content) == SamplingDefaults(temperature=0.6, top_k=20)
    assert defaults_of(tmp_path, {"top_k": 0, "repetition_penalty": 1.1}) == SamplingDefaults(repetition_penalty=1.1)


@pytest.mark.parametrize("content", [{"temperature": -1}, {"top_p": "high"}, {"top_k": 1.5}, [1]])
def test_a_generation_config_that_is_wrong_is_told(tmp_path: Path, content: object) -> None:
    with pytest.raises(UserError, match=r"generation_config\.json.*--sampling-defaults openai\.$"):
        defaults_of(tmp_path, content)


def test_openai_defaults_ignore_the_model(tokenizer_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    for choice, temperature in (("model", 0.6), ("openai", 1.0)):
        settings = WorkerSettings(model_path="x", tokenizer_path=str(tokenizer_dir), sampling_defaults=choice)
        assert ModelFiles.load(str(tmp_path), settings).sampling_defaults.temperature == temperature


def test_a_chat_template_file_replaces_the_models(tokenizer_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{% for m in messages %}[{{ m.content }}|{{ mood }}]{% endfor %}")
    tokenizer = Tokenizer.load(str(tokenizer_dir), chat_template=str(file))
    assert tokenizer.render_chat(HI, continue_final_message=False, variables={"mood": "glad"}) == "[hi|glad]"
    with pytest.raises(UserError, match="--chat-template: .* is no file and no built-in template"):
        Tokenizer.load(str(tokenizer_dir), chat_template=str(tmp_path / "none"))


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=byte_level_backend()).save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(str(tmp_path))
    with pytest.raises(RequestFault, match="no chat template"):
        tokenizer.encode_chat(HI, continue_final_message=False, variables={})


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--tokenizer-path"):
        Tokenizer.load(str(tmp_path))


def test_no_text_has_fewer_tokens_than_its_bound(tokenizer: Tokenizer) -> None:
    for text in ("the answer is the answer", "x", "", "[é added][é added]", "漢字" * 50):
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))
