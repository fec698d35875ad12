"""Pasted output that was cut, mixed up or meant badly: no reader raises, and nothing unknown is read as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.diagnose import _READERS, INPUTS, diagnose, diagnose_log, guess
from agent.core.diagnose.logscan import scan

CASES = sorted((Path(__file__).parents[2] / "cases").glob("*/expect.json"))
FILES = [(json.loads(path.read_text()), (path.parent / "input.txt").read_text()) for path in CASES]
GARBAGE = st.sampled_from(
    ["\x00", "\ufffd", "\x1b[31m", "\r", "9" * 40, '"', "{", "}", "[N/A]", "#== ", "\n\n", ", ", "e+999"]
)


def context_of(case: dict[str, Any]) -> dict[str, Any]:
    return {key: case["expect"][key] for key in INPUTS if key in case["expect"]}


@given(st.sampled_from(FILES), st.data())
@settings(max_examples=400, deadline=None)
def test_cut_and_garbled_cases_do_not_make_a_reader_raise(
    case: tuple[dict[str, Any], str], data: st.DataObject
) -> None:
    """Truncation, interleaving, garbage in the middle; every reader gets every kind of text."""
    found, text = case
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    middle = data.draw(st.lists(GARBAGE | st.text(max_size=8), max_size=6).map("".join))
    broken = (text[:start] + middle + text[end:]).encode("utf-8", "backslashreplace").decode()
    kind = data.draw(st.sampled_from([found["kind"], *_READERS]))
    diagnosis = _READERS[kind](broken, context_of(found))
    json.dumps(diagnosis.document(), allow_nan=False)
    assert guess(broken) in {"", *_READERS}


@given(st.binary(max_size=3000), st.integers(1, 999))
@settings(max_examples=200, deadline=None)
def test_bytes_of_any_kind_are_read_as_a_log(data: bytes, size: int) -> None:
    """In pieces of any size; line numbers stay within the text."""
    found = scan(data[at : at + size] for at in range(0, len(data), size))
    assert all(0 < line.number <= found.count for line in found.lines())
    assert diagnose_log([data]).verdict.result != "PASS" or b"ready" in data or b"startup complete" in data


@pytest.mark.parametrize(
    "cell", ["[N/A]", "[Unknown Error]", "ERR!", "", "-", "4 x", "[Insufficient Permissions]", "nan"]
)
def test_a_cell_that_is_no_number_is_never_clean(cell: str) -> None:
    """Memory or load that is not known keeps the whole host from being called clean."""
    query = "index,uuid,memory.used,memory.total,utilization.gpu"
    head = f"#== gpu rc=0 cmd: nvidia-smi --query-gpu={query} --format=csv,noheader"
    for row in (f"1, GPU-b, {cell}, 81559, 0", f"1, GPU-b, 4, 81559, {cell}"):
        text = f"{head}\n0, GPU-a, 4, 81559, 0\n{row}\n"
        assert diagnose("gpu_csv", text, {"expected_gpu_count": 2, "baseline_mib": [4, 4]}).verdict.result != "PASS"


@given(st.sampled_from([found for found in FILES if found[0]["kind"] in ("bench_json", "bench_text")]), st.data())
@settings(max_examples=150, deadline=None)
def test_a_result_that_was_cut_is_never_valid(case: tuple[dict[str, Any], str], data: st.DataObject) -> None:
    """The numbers of half a document are nobody's."""
    found, text = case
    text = text.rstrip().rpartition("\n")[2] if found["kind"] == "bench_json" else text.rstrip()
    cut = data.draw(st.integers(1, len(text) - 1))
    kept = text[:cut]
    if found["kind"] == "bench_text" and "\n" + "=" * 50 in kept[kept.rfind(" Serving Benchmark Result ") :]:
        return
    assert diagnose(found["kind"], kept, context_of(found)).verdict.result != "PASS"
