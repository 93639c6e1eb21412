"""One typed settings tree per process: command line > environment > YAML file > default."""

from __future__ import annotations

from common.settings.loading import Loaded, load, validated
from common.settings.sentences import validation_sentence
from common.settings.tree import ENV_PREFIX, Settings, flag_of, option, public_values, settings_of, without_feature

__all__ = [
    "ENV_PREFIX",
    "Loaded",
    "Settings",
    "flag_of",
    "load",
    "option",
    "public_values",
    "settings_of",
    "validated",
    "validation_sentence",
    "without_feature",
]
