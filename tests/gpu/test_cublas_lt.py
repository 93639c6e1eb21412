"""Products with a chosen algorithm against torch's, on fresh random inputs with poisoned outputs."""

from __future__ import annotations

import pytest
import torch

from worker.layers.cuda.cublas_lt import WideProducts


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "out_size", "in_size"), [(512, 28_672, 4096), (3000, 6144, 4096)])
def test_it_computes_what_torch_does(
    device: torch.device, rows: int, out_size: int, in_size: int, out_dtype: torch.dtype
) -> None:
    x = torch.randn(rows, in_size, device=device).bfloat16()
    weight = torch.randn(out_size, in_size, device=device).bfloat16()
    product = WideProducts().find(rows, weight, out_dtype)
    if product is None:
        pytest.skip("this library offers none of the wanted tiles")
    out = torch.full((rows, out_size), torch.nan, dtype=out_dtype, device=device)
    product(x, weight, out)
    expected = x.float() @ weight.float().t()
    assert float((out.float() - expected).norm() / expected.norm()) < 5e-3


def test_a_bounded_number_of_plans_is_kept(device: torch.device) -> None:
    wide = WideProducts()
    weight = torch.randn(6144, 1024, device=device).bfloat16()
    for rows in range(3000, 3400):
        wide.find(rows, weight, torch.bfloat16)
    product = wide.find(3399, weight, torch.bfloat16)
    assert product is wide.find(3399, weight, torch.bfloat16)
    assert len(wide) <= 256


def test_small_products_are_left_to_the_library(device: torch.device) -> None:
    weight = torch.randn(28_672, 512, device=device).bfloat16()
    assert WideProducts().find(64, weight, torch.bfloat16) is None
