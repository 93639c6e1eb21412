"""The scheduler's log lines: their exact text, which operators and tools parse, and the way back from text to values.

The texts are SGLang's, as its tuning guide shows them. `parse` also takes its newer spellings ("Decode batch,", fields
added at the end), so that a tool reads the logs of either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

L = TypeVar("L", bound="LogLine")


class LogLine:
    """Base of all lines: a dataclass whose `str` is the line, and whose fields `_pattern` finds in one."""

    _pattern: ClassVar[re.Pattern[str]]

    @classmethod
    def find(cls: type[L], text: str) -> L | None:
        """The values of this kind of line if `text` holds one, whatever stands before and after it."""
        found = cls._pattern.search(text)
        if found is None:
            return None
        values: dict[str, Any] = {}
        for field in fields(cls):  # type: ignore[arg-type]
            convert = _CONVERTERS[str(field.type)]
            values[field.name] = convert(found[field.name])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class StartupLine(LogLine):
    """What the replica holds. `available_gb` GiB (written GB) stay free on `device`, which is "gpu" or "cpu"."""

    max_total_num_tokens: int
    chunked_prefill_size: int | None  # tokens; None: no chunks
    max_prefill_tokens: int
    max_running_requests: int
    context_len: int
    device: str
    available_gb: float

    _pattern = re.compile(
        r"max_total_num_tokens=(?P<max_total_num_tokens>\d+), chunked_prefill_size=(?P<chunked_prefill_size>-?\w+), "
        r"max_prefill_tokens=(?P<max_prefill_tokens>\d+), max_running_requests=(?P<max_running_requests>\d+), "
        r"context_len=(?P<context_len>\d+), available_(?P<device>gpu|cpu)_mem=(?P<available_gb>[\d.]+) GB"
    )

    def __str__(self) -> str:
        chunk = -1 if self.chunked_prefill_size is None else self.chunked_prefill_size
        return (
            f"max_total_num_tokens={self.max_total_num_tokens}, chunked_prefill_size={chunk}, "
            f"max_prefill_tokens={self.max_prefill_tokens}, max_running_requests={self.max_running_requests}, "
            f"context_len={self.context_len}, available_{self.device}_mem={self.available_gb:.2f} GB"
        )


@dataclass(frozen=True, slots=True)
class PrefillLine(LogLine):
    """A step with prefill chunks starts. `running` does not count the new sequences."""

    new_seqs: int
    new_tokens: int
    cached_tokens: int
    usage: float  # share of the KV pool
    running: int
    queued: int

    _pattern = re.compile(
        r"Prefill batch[.,] #new-seq: (?P<new_seqs>\d+), #new-token: (?P<new_tokens>\d+), "
        r"#cached-token: (?P<cached_tokens>\d+), token usage: (?P<usage>[\d.]+), "
        r"#running-req: (?P<running>\d+), #queue-req: (?P<queued>\d+)"
    )

    def __str__(self) -> str:
        return (
            f"Prefill batch. #new-seq: {self.new_seqs}, #new-token: {self.new_tokens}, "
            f"#cached-token: {self.cached_tokens}, token usage: {self.usage:.2f}, "
            f"#running-req: {self.running}, #queue-req: {self.queued}"
        )


@dataclass(frozen=True, slots=True)
class DecodeLine(LogLine):
    """State after a decode step, and the throughput since the last such line."""

    running: int
    tokens: int  # in the KV pool
    usage: float  # share of the KV pool
    cuda_graph: bool
    gen_throughput: float  # tokens/s
    queued: int

    _pattern = re.compile(
        r"Decode batch[.,] #running-req: (?P<running>\d+), #token: (?P<tokens>\d+), token usage: (?P<usage>[\d.]+), "
        r"cuda graph: (?P<cuda_graph>True|False), gen throughput \(token/s\): (?P<gen_throughput>[\d.]+), "
        r"#queue-req: (?P<queued>\d+)"
    )

    def __str__(self) -> str:
        return (
            f"Decode batch. #running-req: {self.running}, #token: {self.tokens}, token usage: {self.usage:.2f}, "
            f"cuda graph: {self.cuda_graph}, gen throughput (token/s): {self.gen_throughput:.2f}, "
            f"#queue-req: {self.queued}"
        )


@dataclass(frozen=True, slots=True)
class RetractLine(LogLine):
    """Running requests gave up their pages, and new_token_ratio rose."""

    num_retracted: int
    ratio_before: float
    ratio_after: float

    _pattern = re.compile(
        r"KV cache pool is full\. Retract requests\. #retracted_reqs: (?P<num_retracted>\d+), "
        r"(?:#new_tokens_gained: \d+, )?#new_token_ratio: (?P<ratio_before>[\d.]+) -> (?P<ratio_after>[\d.]+)"
    )

    def __str__(self) -> str:
        return (
            f"KV cache pool is full. Retract requests. #retracted_reqs: {self.num_retracted}, "
            f"#new_token_ratio: {self.ratio_before:.4f} -> {self.ratio_after:.4f}"
        )


@dataclass(frozen=True, slots=True)
class PreemptLine(LogLine):
    """Running requests gave up their pages to more urgent ones. Ours: SGLang's guide has no such line."""

    num_preempted: int

    _pattern = re.compile(r"More urgent requests wait\. Preempt requests\. #preempted_reqs: (?P<num_preempted>\d+)")

    def __str__(self) -> str:
        return f"More urgent requests wait. Preempt requests. #preempted_reqs: {self.num_preempted}"


@dataclass(frozen=True, slots=True)
class StepFailedLine(LogLine):
    """A step could not be computed and its requests were aborted. `reason` holds the advice too. Ours."""

    decodes: int
    new_tokens: int  # of prompts
    aborted: int
    reason: str

    _pattern = re.compile(
        r"A step failed\. #decode: (?P<decodes>\d+), #new-token: (?P<new_tokens>\d+), "
        r"#aborted-req: (?P<aborted>\d+)\. (?P<reason>.*)"
    )

    def __str__(self) -> str:
        return (
            f"A step failed. #decode: {self.decodes}, #new-token: {self.new_tokens}, "
            f"#aborted-req: {self.aborted}. {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class ConservativenessLine(LogLine):
    """What --schedule-conservativeness auto amounts to: the fixed value that would reserve as much now, the
    new_token_ratio behind it, and the margin of safety in standard deviations. Ours."""

    conservativeness: float
    ratio: float
    margin: float

    _pattern = re.compile(
        r"Schedule conservativeness \(auto\): (?P<conservativeness>[\d.]+), #new_token_ratio: (?P<ratio>[\d.]+), "
        r"margin: (?P<margin>[\d.]+)"
    )

    def __str__(self) -> str:
        return (
            f"Schedule conservativeness (auto): {self.conservativeness:.2f}, #new_token_ratio: {self.ratio:.4f}, "
            f"margin: {self.margin:.2f}"
        )


_KINDS: tuple[type[LogLine], ...] = (
    DecodeLine,
    PrefillLine,
    RetractLine,
    PreemptLine,
    StepFailedLine,
    StartupLine,
    ConservativenessLine,
)
_CONVERTERS: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": lambda text: text == "True",
    "int | None": lambda text: None if text in ("None", "-1") else int(text),
}


def parse(text: str) -> LogLine | None:
    """The line that `text` holds, None if it is of no known kind."""
    return next((line for kind in _KINDS if (line := kind.find(text)) is not None), None)
