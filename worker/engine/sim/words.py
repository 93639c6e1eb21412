"""Which token ids a simulated answer is made of: words where the model has a tokenizer, so that it reads as text."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from common.errors import UserError

_WORD = re.compile(r"[Ġ▁ ][a-z]{2,}")  # with the marks of a preceding space that BPE and SentencePiece write
_LETTERS = re.compile(r"[A-Za-z]+")
_ENOUGH = 64


def answer_ids(tokenizer_dir: Path, *, vocab_size: int, never: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Ids of whole words, else of letters if the vocabulary has too few of these, else (or without a tokenizer.json)
    all but `never`. Raises UserError for a broken tokenizer.json."""
    path = tokenizer_dir / "tokenizer.json"
    vocabulary = _vocabulary(path) if path.is_file() else {}
    for pattern in (_WORD, _LETTERS):
        ids = {i for token, i in vocabulary.items() if pattern.fullmatch(token) and i < vocab_size} - set(never)
        if len(ids) >= _ENOUGH:
            return np.array(sorted(ids), np.int32)
    return np.setdiff1d(np.arange(vocab_size), never).astype(np.int32)


def _vocabulary(path: Path) -> dict[str, int]:
    try:
        vocabulary: dict[str, int] = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=False)
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path} is no tokenizer ({' '.join(str(error).split())}).") from None
    return vocabulary
