"""A two-layer random Llama with the demo model's tokenizer and chat template: the whole stack, at next to no cost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

NAME = "tiny-chat"
_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM, _FFN, _LAYERS = 64, 4, 2, 16, 96, 2


def build_tiny_chat_model(demo: Path, folder: Path) -> Path:
    """Write the model into `folder`/NAME and return that directory. Its answers are noise that never ends by itself."""
    target = folder / NAME
    target.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(demo / file, target)
    config = json.loads((demo / "config.json").read_text()) | {
        "hidden_size": _HIDDEN,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "intermediate_size": _FFN,
        "num_hidden_layers": _LAYERS,
        "max_position_embeddings": 512,
    }
    (target / "config.json").write_text(json.dumps(config))
    save_file(_weights(config["vocab_size"]), target / "model.safetensors", metadata={"format": "pt"})
    return target


def _weights(vocab_size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {"model.embed_tokens.weight": (vocab_size, _HIDDEN), "model.norm.weight": (_HIDDEN,)}
    for index in range(_LAYERS):
        layer = f"model.layers.{index}"
        shapes |= {
            f"{layer}.self_attn.q_proj.weight": (_HEADS * _HEAD_DIM, _HIDDEN),
            f"{layer}.self_attn.k_proj.weight": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            f"{layer}.self_attn.v_proj.weight": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            f"{layer}.self_attn.o_proj.weight": (_HIDDEN, _HEADS * _HEAD_DIM),
            f"{layer}.mlp.gate_proj.weight": (_FFN, _HIDDEN),
            f"{layer}.mlp.up_proj.weight": (_FFN, _HIDDEN),
            f"{layer}.mlp.down_proj.weight": (_HIDDEN, _FFN),
            f"{layer}.input_layernorm.weight": (_HIDDEN,),
            f"{layer}.post_attention_layernorm.weight": (_HIDDEN,),
        }
    noise = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    return {name: 1 + 0.1 * w if "norm" in name else 0.2 * w for name, w in noise.items()}
