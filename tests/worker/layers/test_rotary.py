"""Rotary frequencies against Transformers' own, and the rotation against complex multiplication."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from worker.layers.rope_config import RopeConfig
from worker.layers.rotary import cos_sin_table, inverse_frequencies
from worker.layers.torch_ops import TorchOps

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RopeConfig(theta=5e5, kind="linear", factor=4.0), {"rope_type": "linear", "factor": 4.0}),
        (
            RopeConfig(theta=5e5, kind="llama3", original_context_len=8192, **LLAMA3),
            {"rope_type": "llama3", "original_max_position_embeddings": 8192, **LLAMA3},
        ),
    ],
)
def test_scaled_frequencies(ours: RopeConfig, theirs: dict[str, object]) -> None:
    config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": 5e5, **theirs},
    )
    expected, attention_factor = ROPE_INIT_FUNCTIONS[str(theirs["rope_type"])](config, torch.device("cpu"))
    assert attention_factor == 1.0
    torch.testing.assert_close(inverse_frequencies(ours, 128), expected, rtol=1e-6, atol=0)
    assert not torch.allclose(inverse_frequencies(RopeConfig(theta=5e5), 128), expected, rtol=1e-2)


def test_rotation_turns_pairs_of_halves_in_place() -> None:
    head_dim, rope = 8, RopeConfig(theta=100.0)
    positions = torch.tensor([0, 3, 50, 3])
    packed = torch.randn(4, 5, head_dim)
    q, k = packed[:, :3], packed[:, 3:]
    before = packed.clone()
    TorchOps().rotation(cos_sin_table(rope, head_dim, 64), positions)(q, k)
    turned = torch.complex(before[..., :4], before[..., 4:]) * torch.polar(
        torch.ones(4, 1, 4), positions[:, None, None] * inverse_frequencies(rope, head_dim)
    )
    torch.testing.assert_close(packed, torch.cat((turned.real, turned.imag), -1), rtol=1e-5, atol=1e-5)
