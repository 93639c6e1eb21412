"""`canopy tune --apply`: experiments with the fleet that runs in a Ray."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from common.clock import MonotonicClock
from common.errors import UserError
from common.tuning.observation import Facts
from common.tuning.replica_watch import series_by_replica
from deploy.fleet.client import answer_to, connected, controller_of, only_fleet, status_of
from deploy.fleet.messages import EngineSettings, FleetStatus
from deploy.local.plan import RunningFleet
from deploy.local.progress import Progress
from deploy.tune.settings import TuneSettings
from deploy.tune.trials.decision import Rules
from deploy.tune.trials.fleet import FIELDS, FleetLaboratory, Readings
from deploy.tune.trials.journal import Journal
from deploy.tune.trials.laboratory import LaboratoryLost
from deploy.tune.trials.loop import Experimenter, Result

PATIENCE_S = 60.0  # with a controller that is being restarted, and with a gateway
_ASK_TIMEOUT_S = 10.0
_POLL_S = 1.0
_EXIT_LOST = 1

T = TypeVar("T")


class SystemTime(MonotonicClock):
    """Real time."""

    sleep = staticmethod(time.sleep)


class RayControl:
    """The controller of the connected Ray."""

    def __init__(self, controller: Any, model: str) -> None:
        self._controller = controller
        self._model = model
        self._owner = uuid.uuid4().hex[:12]

    def status(self) -> FleetStatus:
        return self._patient(lambda: status_of(self._controller))

    def given(self) -> dict[str, Any]:
        return engine_settings(self._controller, self._model).settings

    def begin(self, engine: Mapping[str, Any], *, instead: bool) -> str:
        (version,) = answer_to(self._controller.begin_trial.remote(self._model, dict(engine), self._owner, instead))
        return version

    def renew(self) -> bool:
        return self._patient(lambda: bool(_got(self._controller.renew_trial.remote(self._model, self._owner))))

    def end(self, *, keep: bool) -> bool:
        return self._patient(lambda: bool(_got(self._controller.end_trial.remote(self._model, self._owner, keep))))

    def _patient(self, ask: Callable[[], T]) -> T:
        """The controller's answer, also if it has to be started anew first."""
        import ray

        return _patient(ask, ray.exceptions.RayError, "The fleet's controller")


class GatewayReader:
    """Metrics of all replicas as the gateway gathers them."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = f"{url}/engine_metrics"
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(timeout=_ASK_TIMEOUT_S, trust_env=False, headers=headers)

    def __call__(self) -> Readings:
        """Raises UserError without the key, LaboratoryLost if the gateway is away for long."""
        return _patient(self._read, httpx.HTTPError, "The gateway")

    def _read(self) -> Readings:
        answer = self._client.get(self._url)
        if answer.status_code in (401, 403):
            raise UserError(f"{self._url} wants the admin key; give --api-key.")
        answer.raise_for_status()
        return series_by_replica(answer.text)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def apply(settings: TuneSettings, facts: Facts, env: Mapping[str, str]) -> int:
    """Experiment, and print what was kept. Returns the exit code, 1 if the fleet was lost on the way. Raises
    UserError."""
    journal = Journal(Path(settings.journal) if settings.journal else None)
    progress = Progress(MonotonicClock())
    fleet = only_fleet(settings.address, env)
    with connected(fleet):
        controller = controller_of(fleet)
        model = engine_settings(controller, settings.model).model
        reader = GatewayReader(_gateway_of(fleet, controller), settings.api_key)
        tell = (lambda line: print(line, file=sys.stderr)) if settings.json_output else progress.line
        laboratory = FleetLaboratory(
            control=RayControl(controller, model),
            read=reader,
            model=model,
            facts=facts,
            time=SystemTime(),
            window_s=settings.trial_window_s,
            look_s=settings.window_s,
            in_place=settings.in_place,
        )
        rules = Rules(max_windows=settings.max_trial_windows)
        experimenter = Experimenter(
            laboratory, journal, model=model, rules=rules, limit=settings.experiments, tell=tell
        )
        try:
            result = experimenter.run()
        except LaboratoryLost as lost:
            print(f"canopy: {lost}", file=sys.stderr)
            return _EXIT_LOST
        finally:
            reader.close()
    print(_json(result) if settings.json_output else _text(model, result))
    return 0


def engine_settings(controller: Any, model: str) -> EngineSettings:
    """The model's name, and what of FIELDS its replicas were given. Raises UserError."""
    found = msgspec.msgpack.decode(_got(controller.engine_settings.remote(model, FIELDS)), type=EngineSettings)
    if found.refusal:
        raise UserError(found.refusal)
    return found


def _patient(ask: Callable[[], T], fault: type[Exception], who: str) -> T:
    """The answer, of whoever may have to be started anew first."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except fault as error:
            if time.monotonic() >= deadline_s:
                first = str(error).strip().partition("\n")[0]
                raise LaboratoryLost(f"{who} does not answer: {first}.") from None
            time.sleep(_POLL_S)


def _gateway_of(fleet: RunningFleet, controller: Any) -> str:
    gateway = status_of(controller, PATIENCE_S).gateway
    url = fleet.url or (gateway.url if gateway is not None else "")
    if not url:
        raise UserError("The fleet runs no gateway of its own, which would tell its replicas' metrics.")
    return url.rstrip("/")


def _got(call: Any) -> Any:
    import ray

    return ray.get(call, timeout=PATIENCE_S)


def _json(result: Result) -> str:
    entries = [msgspec.to_builtins(entry) for entry in result.entries]
    return json.dumps({"experiments": entries, "kept": dict(result.kept), "stopped": result.stopped}, indent=2)


def _text(model: str, result: Result) -> str:
    if not result.kept:
        return f"{result.stopped} Nothing was changed."
    flags = " ".join(f"--{flag} {value}" for flag, value in result.kept.items())
    return f"{result.stopped} All replicas of {model} run with {flags}; write that into the fleet file or command too."
