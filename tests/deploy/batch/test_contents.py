"""The input file as arrays, and the order of sending."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deploy.batch.contents import LEAD, Contents, order_by_prefix, read_contents

Fault = tuple[int, str | None, str]


def line(custom_id: str, prompt: str) -> str:
    return json.dumps({"custom_id": custom_id, "url": "/v1/completions", "body": {"prompt": prompt}})


def read(path: Path, text: str) -> tuple[Contents, list[Fault]]:
    path.write_text(text)
    faults: list[Fault] = []
    return read_contents(path, lambda *fault: faults.append(fault)), faults


def test_good_and_bad_lines(tmp_path: Path) -> None:
    text = "\n".join([line("a", "x"), "", "{", line("b", "y"), line("a", "z"), line("c", "w"), line("a", "v")])
    contents, faults = read(tmp_path / "in", text)
    assert faults == [
        (3, None, "it is not valid JSON"),
        (5, "a", "its custom_id was used by an earlier line"),
        (7, "a", "its custom_id was used by an earlier line"),
    ]
    found = {request.custom_id: request.body for _, request in contents.requests(bytearray(5))}
    assert found == {"a": b'{"prompt": "x"}', "b": b'{"prompt": "y"}', "c": b'{"prompt": "w"}'}
    assert [contents.index_of(name) for name in ("a", "b", "c", "d")] == [0, 1, 3, None]


def test_settled_requests_are_left_out(tmp_path: Path) -> None:
    contents, _ = read(tmp_path / "in", "\n".join(line(str(i), "x") for i in range(9)))
    settled = bytearray(9)
    settled[2] = settled[7] = 1
    assert {r.custom_id for _, r in contents.requests(settled)} == set("013456" + "8")


def test_an_empty_file(tmp_path: Path) -> None:
    contents, faults = read(tmp_path / "in", "\n\n")
    assert (len(contents.order), faults, contents.index_of("a")) == (0, [], None)


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=40))
def test_every_custom_id_is_found_where_it_came_first(pairs: list[tuple[str, str]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        good = [(i, p) for i, p in pairs if i]
        contents, faults = read(Path(directory) / "in", "\n".join(line(i, p) for i, p in good))
        firsts = {name: [i for i, _ in good].index(name) for name, _ in good}
        assert {name: contents.index_of(name) for name in firsts} == firsts
        assert sorted(contents.order) == sorted(firsts.values())
        assert len(faults) == len(good) - len(firsts)


def test_a_groups_first_request_goes_ahead_of_the_others() -> None:
    groups, size = 50, 40
    keys = np.repeat(np.arange(groups, dtype=np.uint64), size)
    shuffled = np.random.default_rng(1).permutation(keys)
    order = order_by_prefix(np.array([shuffled, shuffled]))
    sent = shuffled[order]
    first, second = ({int(g): int(np.flatnonzero(sent == g)[k]) for g in range(groups)} for k in (0, 1))
    later = [g for g in range(groups) if second[g] > 2 * LEAD]
    assert len(later) > groups // 2
    assert all(second[g] - first[g] > LEAD for g in later)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=60))
def test_followers_of_one_group_are_neighbours(pairs: list[tuple[int, int]]) -> None:
    keys = np.array([[a for a, _ in pairs], [10 * a + b for a, b in pairs]], dtype=np.uint64).reshape(2, -1)
    order = order_by_prefix(keys)
    assert sorted(order) == list(range(len(pairs)))
    fine = [int(k) for k in keys[1][order]]
    seen: list[int] = []
    led: set[int] = set()
    for key in fine:
        if key not in led:
            led.add(key)  # its first
        elif not seen or seen[-1] != key:
            seen.append(key)
    assert len(seen) == len(set(seen))


def test_a_short_shared_beginning_is_enough(tmp_path: Path) -> None:
    beginnings = [f"{group:064d} " for group in range(4)]
    text = "\n".join(line(f"{i}", f"{beginnings[i % 4]}and request {i}") for i in range(400))
    contents, _ = read(tmp_path / "in", text)
    sent = [int(request.custom_id) % 4 for _, request in contents.requests(bytearray(400))]
    assert sum(a != b for a, b in zip(sent, sent[1:], strict=False)) < 16
