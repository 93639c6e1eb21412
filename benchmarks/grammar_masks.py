"""What a grammar costs the scheduler a token: `python -m benchmarks.grammar_masks TOKENIZER_DIR`.

No model runs: answers are random walks over the tokens that the grammar allows, through the same compiler and states
as in the scheduler. `compile` is wall time in milliseconds, without loading xgrammar and the tokenizer. The others are
CPU time of this thread in microseconds for one token: accepting it and filling the mask of the next.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence

import numpy as np

from common.model_tokenizer import ModelTokenizer
from worker.engine.batch import RunnerInfo
from worker.grammar import compiler as mask_compiler
from worker.grammar.base import CompiledGrammar, GrammarCompiler
from worker.grammar.compiler import XGrammarCompiler
from worker.grammar.json_schema import prepared
from worker.sampling_params import GrammarAsked

MAX_ANSWER_TOKENS = 256

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
GRAMMARS = {
    "any JSON object": GrammarAsked(kind="json", text="", param="json"),
    "JSON schema": GrammarAsked(kind="json_schema", text=prepared(_PERSON), param="json_schema"),
    "regex, words": GrammarAsked(kind="regex", text="([a-z]{1,12} ){200}", param="regex"),
    "regex, letters": GrammarAsked(kind="regex", text="[a-z ]+", param="regex"),
    "regex, any text": GrammarAsked(kind="regex", text="[^\\n]{1,2000}\\n", param="regex"),
}


def main() -> None:
    """Measure every grammar and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer_path", help="directory of a model's tokenizer")
    parser.add_argument("--tokens", type=int, default=2_000, help="tokens measured for each grammar")
    arguments = parser.parse_args()
    mask_compiler.SLOW_FILL_S = math.inf  # all masks are filled in this thread
    tokenizer = ModelTokenizer.load(arguments.tokenizer_path).hugging_face
    info = _info(len(tokenizer), (tokenizer.eos_token_id,))
    compiler = XGrammarCompiler(arguments.tokenizer_path, info, free_whitespace=False)
    compiler.compile(GrammarAsked(kind="regex", text="a", param="regex")).result()
    print(f"vocabulary {info.vocab_size}\n{'grammar':<20}{'compile ms':>12}{'p50 us':>10}{'p99 us':>10}{'tokens':>10}")
    for name, asked in GRAMMARS.items():
        print(_line(name, asked, compiler, info, arguments.tokens), flush=True)
    compiler.close()


def _line(name: str, asked: GrammarAsked, compiler: GrammarCompiler, info: RunnerInfo, count: int) -> str:
    start_s = time.perf_counter()
    grammar = compiler.compile(asked).result()
    compile_ms = (time.perf_counter() - start_s) * 1e3
    times_ns = _walk(grammar, info.vocab_size, count)
    p50, p99 = np.percentile(times_ns, (50, 99)) / 1e3
    return f"{name:<20}{compile_ms:>12.1f}{p50:>10.1f}{p99:>10.1f}{len(times_ns):>10}"


def _walk(grammar: CompiledGrammar, vocab_size: int, count: int) -> Sequence[int]:
    """CPU time of each of `count` tokens, in nanoseconds."""
    generator = np.random.default_rng(0)
    times_ns: list[int] = []
    while len(times_ns) < count:
        state = grammar.start((), 0)
        for _ in range(MAX_ANSWER_TOKENS):
            bits = np.unpackbits(state.allowed.view(np.uint8), bitorder="little")[:vocab_size]
            token = int(generator.choice(np.flatnonzero(bits)))
            start_ns = time.thread_time_ns()
            state.accept(token)
            times_ns.append(time.thread_time_ns() - start_ns)
            if state.ended or len(times_ns) == count:
                break
    return times_ns


def _info(vocab_size: int, eos_token_ids: tuple[int, ...]) -> RunnerInfo:
    """Of a runner that is not there; the compiler reads the vocabulary and the ends."""
    return RunnerInfo(
        device="cpu",
        dtype="float32",
        vocab_size=vocab_size,
        context_len=MAX_ANSWER_TOKENS,
        num_pages=1,
        page_size=1,
        max_rows=1,
        eos_token_ids=eos_token_ids,
        architectures=(),
        weight_bytes=0,
        kv_bytes_per_token=0,
        available_memory_bytes=0,
        overlaps=False,
    )


if __name__ == "__main__":
    main()
