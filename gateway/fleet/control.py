"""Changes to the set of workers that people ask for over HTTP, here and in the gateway's other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from common.errors import HttpFault
from gateway.fleet.allowed_hosts import AllowedHosts
from gateway.fleet.registry import Registry, check_url
from gateway.fleet.worker import WorkerView

API = "api"  # the source of workers that were registered over HTTP
ALREADY_EXISTS = "WORKER_ALREADY_EXISTS"


class NewWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker to register. `model_id`: the name clients use, whatever the worker says. `api_key`: for requests to
    it."""

    url: str
    api_key: str | None = None
    labels: dict[str, str] = {}
    model_id: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change, as gateway processes tell each other. `new`: with op "add"; `weights`: with op "flushed"."""

    op: Literal["add", "drain", "remove", "flushed", "weights_begin", "weights_end"]
    url: str = ""
    new: NewWorker | None = None
    weights: str | None = None


class WorkerControl:
    """Applies changes to the registry. `announce` hears those that were made here."""

    def __init__(
        self, registry: Registry, allowed: AllowedHosts, announce: Callable[[Change], None] | None = None
    ) -> None:
        self._registry = registry
        self._allowed = allowed
        self.announce = announce
        self._added: dict[str, NewWorker] = {}

    def add(self, new: NewWorker) -> WorkerView:
        """Register a worker. Raises HttpFault: 400 for its URL, 409 if it is there."""
        url = _checked(new.url)
        if not self._allowed.allow(url):
            text = f"The gateway takes no worker at {url}; see --allowed-worker-hosts."
            raise HttpFault(400, text, param="url", code="worker_not_allowed")
        if self._registry.snapshot.get(url) is not None:
            raise HttpFault(409, f"The worker {url} is already registered.", param="url", code=ALREADY_EXISTS)
        change = Change(op="add", url=url, new=msgspec.structs.replace(new, url=url))
        self._do(change)
        return self._worker(url)

    def drain(self, worker: str) -> WorkerView:
        """No new requests; forgotten when those it has are over. `worker`: URL or name. Raises HttpFault: 404."""
        url = self.find(worker).url
        self._do(Change(op="drain", url=url))
        return self._worker(url)

    def remove(self, worker: str) -> WorkerView:
        """Forget it at once; requests there fail. Returns its last view. Raises HttpFault: 404."""
        last = self.find(worker)
        self._do(Change(op="remove", url=last.url))
        return last.moved(last.status.GONE)

    def flushed(self, url: str, weights: str | None = None) -> None:
        """A worker's cache was emptied; `weights`: by an update of this name."""
        self._do(Change(op="flushed", url=url, weights=weights))

    def weights_change(self, *, begins: bool) -> None:
        """Workers are told to take on other weights, or have answered that."""
        self._do(Change(op="weights_begin" if begins else "weights_end"))

    def find(self, worker: str) -> WorkerView:
        """By URL or name. Raises HttpFault: 404."""
        for view in self._registry.snapshot.workers:
            if worker in (view.name, view.url):
                return view
        if "://" in worker and (found := self._registry.snapshot.get(_checked(worker))) is not None:
            return found
        raise HttpFault(404, f"There is no worker {worker}.", param="url", code="worker_not_found")

    def apply(self, change: Change) -> None:
        """Make a change that another process of this gateway made."""
        registry = self._registry
        if change.op == "add" and change.new is not None:
            new = change.new
            self._added[change.url] = new
            registry.add(change.url, source=API, api_key=new.api_key, labels=new.labels, model_id=new.model_id)
        elif change.op == "drain":
            self._added.pop(change.url, None)
            registry.drain(change.url)
        elif change.op == "remove":
            self._added.pop(change.url, None)
            registry.remove(change.url)
        elif change.op == "flushed":
            registry.flushed(change.url, change.weights)
        elif change.op == "weights_begin":
            registry.weight_changes.begin()
        elif change.op == "weights_end":
            registry.weight_changes.end()

    def added(self) -> list[Change]:
        """What makes another process know the same workers over HTTP as this one."""
        return [Change(op="add", url=url, new=new) for url, new in self._added.items()]

    def _do(self, change: Change) -> None:
        self.apply(change)
        if self.announce is not None:
            self.announce(change)

    def _worker(self, url: str) -> WorkerView:
        worker = self._registry.snapshot.get(url)
        assert worker is not None
        return worker


def _checked(url: str) -> str:
    try:
        return check_url(url)
    except ValueError as error:
        raise HttpFault(400, f"{error}.", param="url", code="bad_worker_url") from None
