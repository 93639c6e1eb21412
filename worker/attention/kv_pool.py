"""The paged KV memory of one replica."""

from __future__ import annotations

import torch


class KVPool:
    """Keys and values of every layer, NHD: `k[layer]`, `v[layer]` are [pages + 1, page_size, kv_heads, head_dim].

    Page 0 belongs to nobody: padding reads and writes it, so it must stay finite.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, num_pages + 1, page_size, num_kv_heads, head_dim)
        # On a CPU only page 0: the system backs the rest once it is written, so an idle pool costs nothing.
        self.k = torch.empty(shape, dtype=dtype, device=device)
        self.v = torch.empty(shape, dtype=dtype, device=device)
        for tensor in (self.k, self.v):
            (tensor[:, 0] if device.type == "cpu" else tensor).zero_()
        self.page_size = page_size

    def slots(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of a layer's keys and values by token: [slots, kv_heads, head_dim]."""
        return self.k[layer].flatten(0, 1), self.v[layer].flatten(0, 1)
