"""Which checkpoints make embeddings and how, by their files, and what is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from tests.helpers.embedding_models import MEAN, write_steps
from worker.models.config import LlamaConfig, load_model_config
from worker.models.embedding import Pooling

BODY: dict[str, Any] = {
    "architectures": ["Qwen3Model"],
    "model_type": "qwen3",
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
POOLING = "1_Pooling/config.json"


def folder(path: Path, *, steps: bool = True, **changes: Any) -> Path:
    (path / "config.json").write_text(json.dumps(BODY | changes))
    if steps:
        write_steps(path)
    return path


def test_a_decoder_without_a_projection_is_read_as_the_model_that_has_one(tmp_path: Path) -> None:
    config = load_model_config(folder(tmp_path))
    assert isinstance(config, LlamaConfig)
    assert (config.pooling, config.architecture, config.qk_norm) == (Pooling.LAST, "Qwen3ForCausalLM", True)
    assert config.tie_word_embeddings and config.hidden_size == 64


def test_a_generating_checkpoint_makes_embeddings_if_asked_to(tmp_path: Path) -> None:
    path = folder(tmp_path, steps=False, architectures=["Qwen3ForCausalLM"])
    assert load_model_config(path).pooling is None
    assert load_model_config(path, is_embedding=True).pooling is Pooling.LAST


@pytest.mark.parametrize(
    ("rules", "pooling"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}, Pooling.MEAN),
        ({"pooling_mode": "mean"}, Pooling.MEAN),
        ({"pooling_mode": "lasttoken"}, Pooling.LAST),
    ],
)
def test_the_pooling_that_its_file_names(tmp_path: Path, rules: dict[str, Any], pooling: Pooling) -> None:
    path = folder(tmp_path)
    (path / POOLING).write_text(json.dumps(rules))
    assert load_model_config(path).pooling is pooling
    (path / "modules.json").unlink()
    assert load_model_config(path).pooling is pooling


def test_where_the_pooling_stands_is_the_modules_business(tmp_path: Path) -> None:
    path = folder(tmp_path)
    write_steps(path, pooling=MEAN)
    (path / "1_Pooling").rename(path / "elsewhere")
    (path / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": "elsewhere"}]))
    assert load_model_config(path).pooling is Pooling.MEAN


@pytest.mark.parametrize(("most", "context"), [(100, 100), (5000, 512), (None, 512)])
def test_texts_are_as_long_as_it_was_trained_for(tmp_path: Path, most: int | None, context: int) -> None:
    path = folder(tmp_path)
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": most}))
    assert load_model_config(path).context_len == context


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["BertModel"], "model_type": "bert"}, "BertModel is an encoder, .* Qwen3-Embedding"),
        ({"is_causal": False}, "Qwen3Model with is_causal .* attention is causal"),
        ({"use_bidirectional_attention": True}, "Qwen3Model with use_bidirectional_attention"),
    ],
)
def test_what_sees_both_ways_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_model_config(folder(tmp_path, **changes))
    with pytest.raises(UserError, match=sentence):
        load_model_config(folder(tmp_path, steps=False, **changes), is_embedding=True)


def test_a_checkpoint_that_sees_both_ways_may_be_overruled(tmp_path: Path) -> None:
    path = folder(tmp_path, is_causal=False)
    assert load_model_config(path, overrides={"is_causal": True}).pooling is Pooling.LAST


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("modules.json", [{"type": "x.Transformer", "path": ""}, {"type": "x.Dense", "path": "2"}], "step Dense"),
        ("modules.json", {"type": "x"}, "not what sentence-transformers writes"),
        ("modules.json", [{"path": ""}], "not what sentence-transformers writes"),
        (POOLING, {"pooling_mode_cls_token": True}, "pooling cls_token"),
        (POOLING, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}, "lasttoken and mean_tokens, wh"),
        (POOLING, {"pooling_mode": "max"}, "pooling max"),
        (POOLING, {}, "pooling none"),
        (POOLING, [], "must hold a JSON object"),
        (POOLING, {"pooling_mode_mean_tokens": True, "include_prompt": False}, "include_prompt"),
    ],
)
def test_steps_that_are_not_known_are_refused(tmp_path: Path, file: str, content: Any, sentence: str) -> None:
    path = folder(tmp_path)
    (path / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=sentence):
        load_model_config(path)
    (path / file).write_text("{")
    with pytest.raises(UserError, match="is not valid JSON"):
        load_model_config(path)
