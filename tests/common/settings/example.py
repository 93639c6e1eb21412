"""A small settings class with one field of each kind."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from common.settings import Settings, option
from common.settings.types import JsonObject, TokenCount


class Example(Settings):
    """Do something small.

    More about it."""

    name: str = option(..., "what it is called", category="Main", aliases=["title"], min_length=1)
    count: TokenCount = option(4, "tokens", category="Main", ge=1, le=10**9)
    ratio: float | None = option(None, "share; without it a rule", category="Main", gt=0, lt=1)
    mode: Literal["fast", "slow"] = option("fast", "how", category="Main", deprecated=["manner"])
    verbose: bool = option(False, "say more", category="Talk")
    colour: bool = option(True, "in colours", category="Talk", deprecated=["paint"])
    sizes: list[int] | None = option(None, "sizes", category="Talk")
    words: list[str] = option([], "words", category="Talk")
    extra: JsonObject = option({}, "more", category="Talk")
    key: str | None = option(None, "a key", category="Talk", secret=True, min_length=3)
    wings: int = option(0, "wings", category="Talk", aliases=["pinions"], not_built="walk")
    magic: bool = option(False, "magic", category="Magic", not_built="think")
    spell: str | None = option(None, "a spell", category="Magic", secret=True, not_built="speak")

    @model_validator(mode="after")
    def _check(self) -> Example:
        if self.mode == "slow" and self.count > 100:
            raise ValueError("--mode slow goes up to --count 100; lower it.")
        return self
