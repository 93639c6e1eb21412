"""Defaults of sampling, chat templates, and how answers look."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import model_validator

from common.settings import Settings, option
from common.settings.types import JsonObject

_option = partial(option, category="Sampling and chat")


class SamplingSettings(Settings):
    """Sampling and chat."""

    sampling_defaults: Literal["model", "openai"] = _option(
        "model", "model = what generation_config.json says; openai = temperature 1, top_p 1"
    )
    preferred_sampling_params: JsonObject | None = _option(
        None, "sampling parameters for requests that name none, as JSON"
    )
    chat_template: str | None = _option(
        None, "name of a built-in template or a Jinja file, in place of the model's own", min_length=1, path=True
    )
    hf_chat_template_name: str | None = _option(
        None, "which of the tokenizer's several templates, for example tool_use", min_length=1
    )
    default_chat_template_kwargs: JsonObject | None = _option(
        None, "variables for the chat template, as JSON; a request's own go first"
    )
    stream_interval: int = _option(1, "tokens per stream event", ge=1)
    incremental_streaming_output: bool = _option(
        False, "streams of /generate carry new text only, not all text so far", deprecated=["stream-output"]
    )
    stream_response_default_include_usage: bool = _option(
        False, "streams end with a usage event unless the request says no"
    )
    enable_cache_report: bool = _option(True, "cached_tokens in OpenAI usage")
    allow_auto_truncate: bool = _option(False, "cut an over-long prompt instead of answering 400")

    completion_template: str | None = _option(
        None, "template for code completion", not_built="put the model's own markers into the prompt"
    )
    reasoning_parser: Literal["auto", "none", "deepseek-r1", "qwen3", "gpt-oss"] = _option(
        "auto", "how the model marks its reasoning, which chat answers give apart; auto = by its chat template"
    )
    tool_call_parser: Literal["auto", "none", "hermes", "qwen", "llama3", "mistral", "deepseekv3", "gpt-oss"] = _option(
        "auto", "how the model writes tool calls; auto = by its chat template, then by its architecture"
    )
    enable_custom_logit_processor: bool = _option(
        False, "run Python code that requests bring", not_built="use logit_bias instead"
    )
    enable_return_hidden_states: bool = _option(False, "hidden states in answers", not_built="leave it out")
    constrained_json_whitespace_pattern: str | None = _option(
        None, "whitespace allowed in JSON answers", not_built="use --constrained-json-disable-any-whitespace"
    )
    constrained_json_disable_any_whitespace: bool = _option(
        False, "no whitespace in JSON answers but one space behind each comma and colon"
    )
    file_storage_path: str | None = _option(None, "where uploaded files are kept", not_built="there is no upload")

    @model_validator(mode="after")
    def _check_templates(self) -> SamplingSettings:
        if self.chat_template is not None and self.hf_chat_template_name is not None:
            raise ValueError("--chat-template and --hf-chat-template-name exclude each other; give one.")
        return self
