"""`canopy bench PROGRAM`: hands over to the programs of benchmarks/."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from common.errors import UserError

_PROGRAMS = ("offline", "kernels", "serve", "report", "router")
_HELP = """usage: canopy bench PROGRAM [flags]

  offline --workload mixed|steady|shared-prefix|single [--json] [flags of canopy worker]
          throughput of one engine without a server; with --device sim in virtual time
  kernels [--part NAME] [--json]
          GPU kernels one by one
  serve   [--base-url URL] [--dataset-name NAME] [--num-prompts N] [--request-rate R] ...
          load on a running server or gateway
  report  RUN.jsonl ... [-o report.html]
          runs of serve beside each other, as one HTML page
  router  [--workload sessions|TRACE] [--routers canopy sglang-router smg] [--virtual] ...
          routers beside each other over simulated replicas

canopy bench PROGRAM --help lists the flags of a program."""


def main(argv: Sequence[str]) -> int:
    """Run one program. Returns its exit code. Raises UserError."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_HELP)
        return 0
    name, *flags = argv
    if name not in _PROGRAMS:
        raise UserError(f"canopy bench has no program {name!r}; it has {', '.join(_PROGRAMS)}.")
    if name == "kernels":
        _check_gpu()
    program = _program(name)
    try:
        return int(program.main(flags, prog=f"canopy bench {name}"))
    except BrokenPipeError:  # whoever read our output has left; what Python flushes at its end goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _check_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UserError("canopy bench kernels needs a GPU that torch can use, and none was found; look at nvidia-smi.")


def _program(name: str) -> ModuleType:
    """The program's module. Raises UserError if it is not there or a package it needs is not."""
    try:
        return importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing == "benchmarks":
            raise UserError(
                "The benchmarks are not installed with this copy of Canopy; install it anew with pip, or run "
                f"`python -m benchmarks.{name}` in a checkout."
            ) from None
        if missing in ("triton", "flashinfer"):
            raise UserError(f"canopy bench {name} needs the package {missing}; install 'canopy-serve[gpu]'.") from None
        raise
