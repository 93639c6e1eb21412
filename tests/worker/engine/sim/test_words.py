"""Which tokens simulated answers are made of."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from common.errors import UserError
from worker.engine.sim.words import answer_ids


def save(folder: Path, tokens: list[str]) -> None:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    Tokenizer(WordLevel(vocabulary, unk_token=tokens[0])).save(str(folder / "tokenizer.json"))


def many(prefix: str, length: int = 3) -> list[str]:
    return [prefix + "".join(letters) for letters in itertools.islice(itertools.product("abcdefg", repeat=length), 80)]


@pytest.mark.parametrize("space", ["Ġ", "▁"])
def test_whole_words_where_the_vocabulary_has_enough(space: str, tmp_path: Path) -> None:
    save(tmp_path, ["<unk>", "Ġ", "!", *many("x"), *many(space), f"{space}zz9"])
    assert answer_ids(tmp_path, vocab_size=1000, never=(90,)).tolist() == [i for i in range(83, 163) if i != 90]
    assert answer_ids(tmp_path, vocab_size=160, never=()).max() == 159


def test_letters_else(tmp_path: Path) -> None:
    save(tmp_path, ["<unk>", "!", *many("")])
    assert answer_ids(tmp_path, vocab_size=1000, never=()).tolist() == list(range(2, 82))


def test_without_a_tokenizer_every_id_but_eos(tmp_path: Path) -> None:
    assert answer_ids(tmp_path, vocab_size=5, never=(2,)).tolist() == [0, 1, 3, 4]


def test_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json is no tokenizer"):
        answer_ids(tmp_path, vocab_size=5, never=())
