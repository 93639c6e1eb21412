"""Chat templates by name, and which template a model is served with.

The built-in ones write the formats that these model families were trained on, for checkpoints that bring none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from common.errors import UserError

_CHATML = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

# The system message stands inside the first user turn.
_LLAMA_2 = """\
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = '<<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n' -%}
{%- elif message.role == 'user' -%}
{{ bos_token }}[INST] {{ ns.system }}{{ message.content }} [/INST]
{%- set ns.system = '' -%}
{%- elif message.role == 'assistant' -%}
{{ ' ' }}{{ message.content }} {{ eos_token }}
{%- else -%}
{{ raise_exception('llama-2 knows the roles system, user and assistant only') }}
{%- endif -%}
{%- endfor -%}
"""

_LLAMA_3 = """\
{{- bos_token -}}
{%- for message in messages -%}
<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content }}<|eot_id|>
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start_header_id|>assistant<|end_header_id|>

{% endif -%}
"""

_ZEPHYR = """\
{%- for message in messages -%}
<|{{ message.role }}|>
{{ message.content }}{{ eos_token }}
{% endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>
{% endif -%}
"""

# There is no system role: its text leads the first user turn.
_GEMMA = """\
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = message.content + '\\n\\n' -%}
{%- else -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ ns.system }}{{ message.content }}<end_of_turn>
{% set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<start_of_turn>model
{% endif -%}
"""

BUILT_IN: Mapping[str, str] = {
    "chatml": _CHATML,
    "llama-2": _LLAMA_2,
    "llama-3": _LLAMA_3,
    "zephyr": _ZEPHYR,
    "gemma": _GEMMA,
}

_CODE = re.compile(r"\{[%{].*?[%}]\}", re.DOTALL)
_STRINGS = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)

# What the server itself gives to a template.
_OWN_VARIABLES = frozenset({"messages", "tokenize", "add_generation_prompt", "continue_final_message", "chat_template"})


def named_template(name_or_file: str) -> str:
    """The template that --chat-template means: a built-in one by name, or a Jinja file. Raises UserError."""
    if name_or_file in BUILT_IN:
        return BUILT_IN[name_or_file]
    file = Path(name_or_file)
    if not file.is_file():
        names = ", ".join(BUILT_IN)
        raise UserError(
            f"--chat-template: {name_or_file!r} is no file and no built-in template ({names}); name either."
        )
    try:
        text = file.read_text()
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--chat-template: cannot read {file} ({error}); name a Jinja file.") from None
    except TemplateSyntaxError as error:
        raise UserError(
            f"--chat-template: {file} is no Jinja template (line {error.lineno}: {error.message}); mend it, or name a "
            f"built-in one ({', '.join(BUILT_IN)})."
        ) from None
    return text


def chosen_template(own: str | Mapping[str, str] | None, name: str | None) -> str | None:
    """Among a tokenizer's own templates (one, several by name, or none) the one that --hf-chat-template-name means, or
    the default one; None if there is none. Raises UserError."""
    if name is None:
        return own if isinstance(own, str) or own is None else own.get("default")
    if own is None:
        raise UserError(f"--hf-chat-template-name {name}: the tokenizer has no chat template; use --chat-template.")
    if isinstance(own, str):
        raise UserError(f"--hf-chat-template-name {name}: the tokenizer has one template without a name; leave it out.")
    if name not in own:
        raise UserError(
            f"--hf-chat-template-name {name}: the tokenizer's templates are {', '.join(sorted(own))}; name one."
        )
    return own[name]


def uses_variable(template: str, name: str) -> bool:
    """Whether a template's code, not its text, speaks of a variable. Templates may use tags of Transformers that
    Jinja alone cannot parse."""
    code = " ".join(_CODE.findall(template))
    return re.search(rf"\b{name}\b", _STRINGS.sub("", code)) is not None


def check_variables(variables: Mapping[str, Any]) -> None:
    """Raise UserError if --default-chat-template-kwargs names what only the server may set."""
    taken = sorted(_OWN_VARIABLES & variables.keys())
    if taken:
        raise UserError(f"--default-chat-template-kwargs: {', '.join(taken)} belongs to the server; leave it out.")
