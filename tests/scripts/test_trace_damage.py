"""Damaged traces: nothing comes out of one but the reason."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from agent.hosts.scripts.trace_reduce import reduce_trace
from tests.scripts.test_traces import reduced
from tests.support import traces


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_breaks_off(tmp_path: Path, packed: bool) -> None:
    """Wherever it is cut: no share at all, and the reader says that it is cut."""
    data = traces.made(3).text().rstrip().encode()
    data = gzip.compress(data) if packed else data
    path = tmp_path / "t.trace.json.gz"
    random.seed(3)
    for length in sorted({0, 1, 2, 30, 700, *random.sample(range(len(data)), 60), len(data) - 2, len(data) - 1}):
        path.write_bytes(data[:length])
        report = reduce_trace(path)
        assert report["devices"] == [], length
        assert report["why"]
        assert report["truncated"] or length < 3, (length, report["why"])


def test_two_writers_in_one_file(tmp_path: Path) -> None:
    """Blocks of two ranks' traces in turn: nothing is read from it."""
    one, two = (traces.made(8).text(rank, 2) for rank in (0, 1))
    size = 4096
    mixed = "".join(one[at : at + size] + two[at : at + size] for at in range(0, len(one), size))
    assert reduced(tmp_path, mixed)["devices"] == []
    twice = reduced(tmp_path, one + two)
    assert (twice["devices"], "end of a trace" in twice["why"]) == ([], True)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "no", "{}", "[]", "[1]", '{"traceEvents": 7}', '{"traceEvents": [}', '{"traceEvents": [{]}',
        '{"traceEvents": [7]}', '{"traceEvents": []}', "\x00" * 5000, "{" * 5000, "[" * 5000,
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1, "args": {}}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1, "args": {}}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "x", "dur": 1, "args": {}}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": 7}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "dur": 1}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"correlation": "x"}}]}',
    ],
)  # fmt: skip
def test_what_is_no_trace(tmp_path: Path, text: str) -> None:
    """Nothing comes out but the reason; no exception either."""
    report = reduced(tmp_path, text)
    assert report["devices"] == []
    assert report["why"]


def test_a_compressed_trace_with_a_bit_changed(tmp_path: Path) -> None:
    """The check sum finds it; never another breakdown than the right one."""
    data = bytearray(gzip.compress(traces.made(3).text().encode()))
    path = tmp_path / "t.trace.json.gz"
    path.write_bytes(bytes(data))
    right = reduce_trace(path)["devices"]
    random.seed(5)
    for place in random.sample(range(20, len(data)), 150):
        data[place] ^= 0x10
        path.write_bytes(bytes(data))
        report = reduce_trace(path)
        assert report["devices"] in ([], right)
        data[place] ^= 0x10


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Said, not raised."""
    assert "FileNotFoundError" in reduce_trace(tmp_path / "none.json")["why"]
