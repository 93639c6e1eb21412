"""Prometheus text of several processes as one: each family once, each sample with its process as a label. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def merged(texts: Mapping[int, bytes]) -> bytes:
    """Join what `prometheus_client.generate_latest` made in each process, by the process's number."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for process, text in sorted(texts.items()):
        for name, comments, samples in _families(text.decode()):
            known = families.setdefault(name, (comments, []))
            known[1].extend(_labelled(sample, process) for sample in samples)
    lines = [line for comments, samples in families.values() for line in (*comments, *samples)]
    return ("\n".join(lines) + "\n").encode()


def _families(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """(name, comment lines, sample lines) of each family."""
    name, comments, samples = "", list[str](), list[str]()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            if name:
                yield name, comments, samples
            name, comments, samples = line.split(" ", 3)[2], [line], []
        elif line.startswith("#"):
            comments.append(line)
        elif line:
            samples.append(line)
    if name:
        yield name, comments, samples


def _labelled(sample: str, process: int) -> str:
    """`name{a="b"} 1` -> `name{process="0",a="b"} 1`."""
    end = sample.find("{")
    space = sample.find(" ")
    if end < 0 or end > space:
        return f'{sample[:space]}{{process="{process}"}}{sample[space:]}'
    return f'{sample[: end + 1]}process="{process}",{sample[end + 1 :]}'
