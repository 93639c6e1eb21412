"""Messages about a worker's prefix cache, as SGLang and vLLM publish them: msgpack over ZMQ, written and read here.

A message of the PUB socket has three frames: topic, sequence number (8 bytes, big-endian), batch. A batch is the array
`[ts, events, rank]`, an event the array `[name, fields...]` of the structs below. Newer vLLM writes both as maps, which
are read as well.

The replay socket (ROUTER) answers a REQ of 8 bytes with messages of two frames, sequence number and batch, up to one
whose batch is empty. Asked with a sequence number, it sends the batches from there on that it still has. Asked with
SNAPSHOT (for others a number that is never reached, so they send nothing), a worker of ours sends all its blocks as
batches that begin with AllBlocksCleared and bear the number of the last batch they include.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec
from xxhash import xxh3_64_intdigest

SNAPSHOT = b"snapshot"
SEQUENCE_BYTES = 8
END_OF_REPLAY = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)
TOKEN_BYTES = 4  # an id as little-endian int32
LOAD_TOPIC = b"load"
GPU = "GPU"

BlockId = int | bytes  # a worker's own name for a block; ours are `chain`'s


class BlockStored(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks that follow each other, and the block they follow. `token_ids`: `block_size` of each block.

    `extra_keys`: for each block what beside tokens is part of its hash: the cache salt, at the first of a sequence.
    """

    block_hashes: list[BlockId]
    parent_block_hash: BlockId | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks that are cached no more."""

    block_hashes: list[BlockId]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The cache is empty."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    """What happened in one step. `ts`: seconds since the epoch."""

    ts: float
    events: list[CacheEvent]
    data_parallel_rank: int | None = None


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON of --kv-events-config, keys as in SGLang; also how a worker tells where its streams are.

    `load_endpoint` is ours: a PUB socket for load reports; without a publisher of events there is one only if it is
    given, and "auto" is as good as an address. Port 0: any free one. `buffer_steps`: batches kept for replay; `hwm`:
    messages kept for a subscriber that is slow.
    """

    publisher: Literal["null", "zmq"] = "zmq"
    endpoint: str | None = None
    replay_endpoint: str | None = None
    load_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    block_size: int | None = None

    @classmethod
    def of(cls, value: object) -> KvEventsConfig:
        """From the flag's JSON object. Raises ValueError."""
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"{error}; its keys are {', '.join(cls.__struct_fields__)}") from None


_ENCODER = msgspec.msgpack.Encoder()
_ARRAYS = msgspec.msgpack.Decoder(EventBatch)
_STORED_FIELDS = BlockStored.__struct_fields__
_REMOVED_FIELDS = BlockRemoved.__struct_fields__


def encode(batch: EventBatch) -> bytes:
    """The batch's frame."""
    return _ENCODER.encode(batch)


def decode(payload: bytes) -> EventBatch:
    """Read a batch, of arrays or of maps. Raises msgspec.DecodeError (ValidationError is one)."""
    try:
        return _ARRAYS.decode(payload)
    except msgspec.ValidationError:
        fields = msgspec.msgpack.decode(payload)
        if not isinstance(fields, dict):
            raise
        return _of_maps(fields)


def _of_maps(batch: dict[str, Any]) -> EventBatch:
    """Read a batch of maps: fields under their names, an event's name under `type`."""
    try:
        events = [_ARRAY_OF[event["type"]](event) for event in batch["events"]]
        return msgspec.convert([batch["ts"], events, batch.get("data_parallel_rank")], EventBatch)
    except (KeyError, TypeError) as error:
        raise msgspec.ValidationError(f"neither an array nor a map of a batch: {error!r}") from None


_ARRAY_OF: dict[str, Callable[[dict[str, Any]], list[Any]]] = {
    "BlockStored": lambda event: ["BlockStored", *(event.get(name) for name in _STORED_FIELDS)],
    "BlockRemoved": lambda event: ["BlockRemoved", *(event.get(name) for name in _REMOVED_FIELDS)],
    "AllBlocksCleared": lambda event: ["AllBlocksCleared"],
}


def sequence_frame(sequence: int) -> bytes:
    """A sequence number's frame."""
    return sequence.to_bytes(SEQUENCE_BYTES, "big")


def sequence_of(frame: bytes) -> int:
    """The number in a frame."""
    return int.from_bytes(frame, "big")


def salt(extras: Iterable[Any], seed: int) -> int:
    """Where the hash of a block with extra keys starts. `seed`: the hash of the block before, 0 if there is none."""
    return xxh3_64_intdigest(_ENCODER.encode(list(extras)), seed)


def chain(packed: bytes, block_size: int, seed: int = 0) -> list[int]:
    """Hashes of the whole blocks of a sequence: xxh3-64 of a block's ids as int32, seeded with the hash before it.

    Equal hashes mean equal tokens from the sequence's start on. `packed`: the ids; `seed`: of the block before, or
    `salt`'s.
    """
    size = block_size * TOKEN_BYTES
    digest, hashes = seed, []
    for start in range(0, len(packed) - size + 1, size):
        digest = xxh3_64_intdigest(packed[start : start + size], digest)
        hashes.append(digest)
    return hashes


def first_seed(extra_key: str | None) -> int:
    """Where the chain of a sequence starts; sequences with different extra keys share nothing."""
    return salt([extra_key], 0) if extra_key else 0


def extras_of(event: BlockStored) -> Sequence[Any]:
    """What a chain must start with that begins with this event's first block: adapter, then its extra keys."""
    adapter = event.lora_name if event.lora_name is not None else event.lora_id
    extras = list(event.extra_keys[0] or ()) if event.extra_keys else []
    return extras if adapter is None else [adapter, *extras]
