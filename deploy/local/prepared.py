"""Models of a fleet on one machine, made ready once for all replicas before any of them starts."""

from __future__ import annotations

import msgspec

from common.settings import validated
from deploy.fleet.description import ModelDescription
from deploy.model_source import find_model, prepare
from worker.config import WorkerSettings
from worker.preflight import check_before_loading


def prepared(model: ModelDescription) -> ModelDescription:
    """The model with the directory that replicas load. Raises UserError or PreparationError."""
    path = prepare(find_model(model.model))
    check_before_loading(validated(WorkerSettings, {**model.engine, "model_path": path}))
    return msgspec.structs.replace(model, model=path)
