"""Products by cuBLASLt with an algorithm that was measured to be faster than the library's first choice.

Large products run at the card's power limit, where the library's guess, made for full clocks, is not the best: with
tiles of 176 x 128 or close to that a product of Llama's gate-up shape takes 4 to 5 % less time (docs/performance.md).
The algorithm depends on the shape alone, so every run computes the same numbers.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

log = logging.getLogger(__name__)

# What pays, measured on an H200 in bf16: tile ids of cublasLt.h, best first, for outputs in the operands' dtype and in
# fp32 (the logits).
_TILES = (201, 197)
_FP32_TILES = (184, 197)
_MIN_ROWS = 512
_MIN_OUT = 6144
_MIN_ELEMENTS = _MIN_ROWS * 28_672  # of the output

# enums of cublasLt.h and library_types.h
_COMPUTE_32F, _SCALE_32F = 68, 0
_DATA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
_DESC_TRANSA, _OP_T = 3, 1
_ALGO_TILE_ID = 1
_MAX_CANDIDATES = 16
_MAX_PLANS = 256


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class Product:
    """x [rows, in] times weight [out, in] transposed, for one shape and one algorithm. Needs no workspace."""

    def __init__(self, lib: _Library, rows: int, weight: torch.Tensor, out_dtype: torch.dtype) -> None:
        out_size, in_size = weight.shape
        self._lib = lib
        # cuBLASLt counts by columns: out^T [out, rows] = weight [in, out]^T x^T [in, rows]
        self._desc = lib.create("MatmulDescCreate", _COMPUTE_32F, _SCALE_32F)
        lib.call("MatmulDescSetAttribute", self._desc, _DESC_TRANSA, ctypes.byref(ctypes.c_int32(_OP_T)), _size(4))
        self._weight = lib.layout(weight.dtype, in_size, out_size)
        self._x = lib.layout(weight.dtype, in_size, rows)
        self._out = lib.layout(out_dtype, out_size, rows)
        self._algorithm: Any = None

    def choose(self, tiles: tuple[int, ...]) -> bool:
        """Take the first of `tiles` that the library offers for this shape without a workspace."""
        offered = {tile: algorithm for tile, algorithm in self._offered() if tile in tiles}
        self._algorithm = next((offered[tile] for tile in tiles if tile in offered), None)
        return self._algorithm is not None

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Launch it in the current stream; the tensors are contiguous and of the shape it was made for."""
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        self._lib.call(
            "Matmul",
            *(self._lib.handle, self._desc, ctypes.byref(one)),
            *(_pointer(weight), self._weight, _pointer(x), self._x, ctypes.byref(zero)),
            *(_pointer(out), self._out, _pointer(out), self._out),
            *(ctypes.byref(self._algorithm), None, _size(0)),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )

    def close(self) -> None:
        """Free the library's descriptions of the shape."""
        self._lib.call("MatmulDescDestroy", self._desc)
        for layout in (self._weight, self._x, self._out):
            self._lib.call("MatrixLayoutDestroy", layout)

    def _offered(self) -> Iterator[tuple[int, Any]]:
        """(tile id, algorithm) of the library's candidates, best guess last."""
        preference = self._lib.create("MatmulPreferenceCreate")  # its default allows no workspace
        results, count = (_Heuristic * _MAX_CANDIDATES)(), ctypes.c_int()
        layouts = (self._weight, self._x, self._out, self._out)
        self._lib.call(
            "MatmulAlgoGetHeuristic",
            *(self._lib.handle, self._desc, *layouts, preference),
            *(_MAX_CANDIDATES, results, ctypes.byref(count)),
        )
        self._lib.call("MatmulPreferenceDestroy", preference)
        for result in reversed(results[: count.value]):
            if result.status == 0 and result.workspace_bytes == 0:
                yield self._tile(result.algorithm), result.algorithm

    def _tile(self, algorithm: Any) -> int:
        tile, written = ctypes.c_uint32(), ctypes.c_size_t()
        self._lib.call(
            "MatmulAlgoConfigGetAttribute",
            *(ctypes.byref(algorithm), _ALGO_TILE_ID, ctypes.byref(tile), _size(4), ctypes.byref(written)),
        )
        return tile.value


class WideProducts:
    """Finds the product for a shape, None where cuBLAS's own choice is as good. Keeps a bounded number of plans."""

    def __init__(self) -> None:
        self._plans: dict[tuple[int, int, int, torch.dtype], Product | None] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, rows: int, weight: torch.Tensor, out_dtype: torch.dtype) -> Product | None:
        """For x [rows, in] and weight [out, in] on the GPU."""
        out_size, in_size = weight.shape
        if rows < _MIN_ROWS or out_size < _MIN_OUT or rows * out_size < _MIN_ELEMENTS:
            return None
        key = (rows, out_size, in_size, out_dtype)
        if key not in self._plans:
            self._forget_oldest()
            self._plans[key] = self._make(rows, weight, out_dtype)
        return self._plans[key]

    def _make(self, rows: int, weight: torch.Tensor, out_dtype: torch.dtype) -> Product | None:
        lib = _library()
        if lib is None:
            return None
        product = Product(lib, rows, weight, out_dtype)
        if product.choose(_FP32_TILES if out_dtype == torch.float32 else _TILES):
            return product
        product.close()
        return None

    def _forget_oldest(self) -> None:
        if len(self._plans) >= _MAX_PLANS:
            oldest = self._plans.pop(next(iter(self._plans)))
            if oldest is not None:
                oldest.close()


class _Library:
    """The part of cuBLASLt used here, by ctypes: torch has no way to choose an algorithm."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._lib = lib
        self.handle = self.create("Create")

    def call(self, name: str, *args: Any) -> None:
        """Call cublasLt`name`. Raises RuntimeError if it reports a fault."""
        status = getattr(self._lib, f"cublasLt{name}")(*args)
        if status != 0:
            raise RuntimeError(f"cublasLt{name} failed with status {status}.")

    def create(self, name: str, *args: Any) -> ctypes.c_void_p:
        """What cublasLt`name` makes."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *args)
        return made

    def layout(self, dtype: torch.dtype, rows: int, columns: int) -> ctypes.c_void_p:
        """A dense matrix, column after column."""
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        return self.create("MatrixLayoutCreate", _DATA_TYPES[dtype], *sizes)


@cache
def _library() -> _Library | None:
    """The cuBLASLt that torch has loaded."""
    name = f"libcublasLt.so.{(torch.version.cuda or '').partition('.')[0]}"
    try:
        return _Library(ctypes.CDLL(name))
    except OSError:
        log.info("%s cannot be loaded: products use the library's own choice of algorithm, up to 3 %% slower.", name)
        return None


def _size(value: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(value)


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
