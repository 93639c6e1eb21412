"""Metrics of several processes in one text."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.processes.exposition import merged


def text_of(number: int) -> bytes:
    registry = CollectorRegistry()
    Counter("requests", "Some {odd} text", ["path"], registry=registry).labels('/a b"c').inc(number)
    Gauge("depth", "D", registry=registry).set(number)
    Histogram("wait", "W", registry=registry, buckets=[1.0]).observe(number)
    if number == 2:
        Gauge("only_there", "O", registry=registry).set(7)
    return generate_latest(registry)


def test_every_sample_once_with_its_process() -> None:
    families = list(text_string_to_metric_families(merged({0: text_of(1), 1: text_of(2)}).decode()))
    assert len({family.name for family in families}) == len(families)
    samples = {(s.name, s.labels["process"], s.labels.get("le")): s for family in families for s in family.samples}
    assert samples["requests_total", "0", None].labels == {"process": "0", "path": '/a b"c'}
    assert [samples["depth", p, None].value for p in "01"] == [1, 2]
    assert [samples["wait_bucket", p, "1.0"].value for p in "01"] == [1, 0]
    assert samples["only_there", "1", None].value == 7 and ("only_there", "0", None) not in samples
    assert {family.name: family.type for family in families}["wait"] == "histogram"
