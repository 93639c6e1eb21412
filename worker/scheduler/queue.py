"""The waiting queue: arrival order, with retracted requests at the front; constant cost for each change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from worker.scheduler.request import Request


class WaitingQueue:
    """Requests without a row."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self.num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def append(self, request: Request) -> None:
        self._requests[request.rid] = request
        self.num_prompt_tokens += request.prompt_len

    def push_front(self, request: Request) -> None:
        self.append(request)
        self._requests.move_to_end(request.rid, last=False)

    def remove(self, request: Request) -> None:
        del self._requests[request.rid]
        self.num_prompt_tokens -= request.prompt_len
