"""Flags of features that a replica does not have: media, LoRA, speculative decoding, cache tiers, disaggregation.

They are known so that whoever brings a command line from elsewhere is told, not served something else in silence.
"""

from __future__ import annotations

from functools import partial

from common.settings import Settings, option
from common.settings.types import JsonObject

_media = partial(option, category="Multimodal", not_built="only text is served, leave it out")
_lora = partial(option, category="LoRA", not_built="serve a merged checkpoint instead")
_speculative = partial(option, category="Speculative decoding", not_built="leave it out, answers stay the same")
_hicache = partial(
    option, category="Hierarchical cache", not_built="leave it out, the prefix cache lives in the KV pool"
)
_disaggregation = partial(
    option, category="Disaggregation", not_built="leave it out, every replica does prefill and decode"
)


class MediaSettings(Settings):
    """Multimodal."""

    allowed_media_domains: list[str] = _media([], "host names that media may be fetched from")
    media_url_max_file_size_mb: int = _media(64, "largest fetched file in MiB; 0 = no limit")
    limit_mm_data_per_request: JsonObject | None = _media(None, "media of one request, as JSON by kind")
    mm_process_config: JsonObject | None = _media(None, "options of media processors, as JSON by kind")


class LoraSettings(Settings):
    """LoRA."""

    enable_lora: bool = _lora(False, "serve adapters")
    lora_paths: list[str] = _lora([], "adapters: PATH, NAME=PATH or JSON")
    max_lora_rank: int | None = _lora(None, "largest rank of an adapter")
    lora_target_modules: list[str] = _lora([], "modules that adapters change")
    max_loras_per_batch: int = _lora(8, "adapters in one batch")
    max_loaded_loras: int | None = _lora(None, "adapters in memory")
    lora_eviction_policy: str = _lora("lru", "which adapter leaves memory first")
    lora_backend: str = _lora("csgmv", "kernels of adapters")


class SpeculativeSettings(Settings):
    """Speculative decoding."""

    speculative_algorithm: str | None = _speculative(None, "how tokens are guessed")
    speculative_draft_model_path: str | None = _speculative(
        None, "model that guesses", aliases=["speculative-draft-model"]
    )
    speculative_num_steps: int | None = _speculative(None, "guesses in a row")
    speculative_eagle_topk: int | None = _speculative(None, "guesses side by side")
    speculative_num_draft_tokens: int | None = _speculative(None, "tokens of one guess")


class HiCacheSettings(Settings):
    """Hierarchical cache."""

    enable_hierarchical_cache: bool = _hicache(False, "keep prefixes in host memory too")
    hicache_ratio: float = _hicache(2.0, "host memory for prefixes / KV pool")
    hicache_size: int = _hicache(0, "host memory for prefixes in GB")
    hicache_write_policy: str = _hicache("write_through", "when prefixes are copied")
    hicache_storage_backend: str | None = _hicache(None, "storage below host memory")


class DisaggregationSettings(Settings):
    """Disaggregation."""

    disaggregation_mode: str = _disaggregation("null", "prefill or decode on this replica only")
    disaggregation_transfer_backend: str = _disaggregation("mooncake", "how KV pages travel")
    disaggregation_bootstrap_port: int = _disaggregation(8998, "where prefill replicas meet decode replicas")
