"""Prometheus' text format: rendered as the library would, and texts of several sources in one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from common.exposition import labelled, merged, render

texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)


def registry_of(number: float, path: str = '/a b"c', help_text: str = "Some {odd} text") -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("requests", help_text, ["path"], registry=registry).labels(path).inc(number)
    Gauge("depth", "D", registry=registry).set(number)
    Histogram("wait", "W", registry=registry, buckets=[1.0]).observe(number)
    if number == 2:
        Gauge("only_there", "O", registry=registry).set(7)
    return registry


@given(path=texts, help_text=texts, number=st.floats(0, 1e18))
def test_renders_what_the_library_renders(path: str, help_text: str, number: float) -> None:
    registry = registry_of(number, path, help_text)

    def families(text: bytes) -> list[Metric]:
        found = text_string_to_metric_families(text.decode())
        return [family for family in found if not family.name.endswith("_created")]

    assert families(render(registry)) == families(generate_latest(registry))


def test_every_sample_once_with_its_process() -> None:
    text = merged(render(registry_of(n + 1), f'process="{n}"').decode() for n in range(2))
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    samples = {(s.name, s.labels["process"], s.labels.get("le")): s for family in families for s in family.samples}
    assert samples["requests_total", "0", None].labels == {"process": "0", "path": '/a b"c'}
    assert [samples["depth", p, None].value for p in "01"] == [1, 2]
    assert [samples["wait_bucket", p, "1.0"].value for p in "01"] == [1, 0]
    assert samples["only_there", "1", None].value == 7 and ("only_there", "0", None) not in samples
    assert {family.name: family.type for family in families}["wait"] == "histogram"


def test_a_source_that_has_our_label_keeps_its_own_under_another_name() -> None:
    texts = {"a": 'up{worker="x",b="c"} 1\n', 'b"\\\n': "# TYPE up gauge\nup 2\n# EOF\n"}
    text = merged(labelled(text, "worker", source) for source, text in texts.items())
    samples = [s.labels | {"value": s.value} for f in text_string_to_metric_families(text) for s in f.samples]
    assert samples == [
        {"worker": "a", "exported_worker": "x", "b": "c", "value": 1},
        {"worker": 'b"\\\n', "value": 2},
    ]
