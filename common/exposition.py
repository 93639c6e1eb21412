"""Prometheus' text format (0.0.4): a registry as text at a fraction of the library's price, and texts merged into one.

A gateway in front of hundreds of replicas is scraped between two requests, and a replica between two tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABELLED = re.compile(r"^([^\s{#]+)\{", re.MULTILINE)
_BARE = re.compile(r"^([^\s{#]+) ", re.MULTILINE)


def render(registry: CollectorRegistry, common: str = "") -> bytes:
    """All families of a registry. `common`: a label of all samples, as `name="value"`."""
    lines: list[str] = []
    for family in registry.collect():
        _render(family, lines, common)
    return ("\n".join(lines) + "\n").encode()


def escaped(value: str) -> str:
    """A label's value between its quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def header(name: str, kind: str, text: str) -> str:
    """The comments in front of a family's samples."""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}"


def _render(family: Metric, lines: list[str], common: str) -> None:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    kind = "untyped" if family.type == "unknown" else family.type
    lines.append(header(name, kind, family.documentation.replace("\\", r"\\").replace("\n", r"\n")))
    for sample_name, labels, value, *_ in family.samples:
        if sample_name.endswith("_created"):
            continue  # when a counter was made: a series more for each, which nothing reads
        pairs = [f'{key}="{escaped(text)}"' for key, text in labels.items()]
        if common:
            pairs.insert(0, common)
        lines.append(f"{sample_name}{{{','.join(pairs)}}} {value!r}" if pairs else f"{sample_name} {value!r}")


def labelled(text: str, label: str, source: str) -> str:
    """A text with a label on each sample that says where it is from. A label of that name that samples have already
    becomes exported_*, as in Prometheus."""
    if f'{label}="' in text:
        text = re.sub(rf'([{{,]){label}="', rf'\1exported_{label}="', text)
    pair = f'{label}="{escaped(source)}"'.replace("\\", r"\\")
    return _BARE.sub(rf"\1{{{pair}}} ", _LABELLED.sub(rf"\1{{{pair},", text))


class Merge:
    """Texts of several sources as one, each family once. Their samples must differ in a label."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[list[str], list[str]]] = {}  # comments and samples by name

    def add(self, text: str) -> None:
        """Take a source's text."""
        first, *rest = f"\n{text}".split("\n# ")  # a line cannot begin so otherwise
        if first.strip():
            self._families.setdefault("", ([], []))[1].append(first.strip("\n"))
        name, comments = "", list[str]()
        for piece in rest:
            comment, _, samples = piece.partition("\n")
            kind, _, named = comment.partition(" ")
            if kind not in ("HELP", "TYPE"):
                continue
            named = named.partition(" ")[0]
            if named != name:
                name, comments = named, []
            comments.append(f"# {comment}")
            known = self._families.setdefault(name, (comments, []))
            if samples:
                known[1].append(samples.rstrip("\n"))

    def text(self) -> str:
        """All of them. Families that have no samples are left out."""
        parts = ("\n".join((*comments, *samples)) for comments, samples in self._families.values() if samples)
        return "\n".join(parts) + "\n"


def merged(texts: Iterable[str]) -> str:
    """The texts of all sources in one go."""
    merge = Merge()
    for text in texts:
        merge.add(text)
    return merge.text()
