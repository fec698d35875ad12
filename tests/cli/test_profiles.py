"""Profiles as a user sees them: in the summary, in a report as a picture, side by side, and of traces at hand."""

from __future__ import annotations

import asyncio
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import main
from agent.cli.profile_view import bar
from agent.hosts.scripts.trace_ranks import merge
from agent.hosts.scripts.trace_reduce import reduce_trace
from agent.journal.store import Journal
from tests.cli.runs import CAMPAIGN, campaign, opened
from tests.core.test_profile import Profiled, document, stages
from tests.support import traces

RECORDED = Path(__file__).parents[1] / "traces"
H200 = [RECORDED / f"h200-spans-TP-{rank}.trace.json.gz" for rank in (0, 1)]


def h200() -> str:
    """Return the profile of a run on two GPUs, as profile.py prints it."""
    found = merge({path: reduce_trace(path) for path in H200}, ["TP-0", "TP-1"])
    kept = [
        {"rank": f"TP-{rank}", "path": f"/runs/k/traces/TP-{rank}.gz", "bytes": 105_000, "kept": True}
        for rank in (0, 1)
    ]
    return document(found.pop("shares"), **{**found, "traces": kept, "steps": 8})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a campaign whose base and candidate are profiled: on GPUs, and with phases that nobody names."""
    root = tmp_path_factory.mktemp("runs")
    folder = root / "one"
    (folder / "orders").mkdir(parents=True)
    said = [
        h200(),
        document({}, "12.0% of the time belongs to no phase", kernels={"gemm": 0.5, "host_wait": 0.5}, busy=0.5),
    ]
    changes: dict[str, Any] = stages()
    with Journal.create(folder / "journal.db", CAMPAIGN, {"agent": "test"}) as journal:
        profile = changes.pop("profile").model_copy(update={"on": "all"})
        box = Profiled(says=[document({"decode": 0.9, "idle": 0.1}), *said])
        asyncio.run(campaign(journal, box, opened(**changes, profile=profile)))
    return root


def ran(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    """Run a command; return what it printed."""
    assert main(list(words)) == status
    return capsys.readouterr().out


def test_a_line_for_each_profiled_trial(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The largest phases; where phases are not known, the kinds of work and that."""
    text = ran(capsys, "show", "one", "--runs", str(runs))
    assert "profile of base: target_verify 75.0%, draft 14.0%" in text
    assert "profile of m-16: gemm 50.0%, host_wait 50.0%; phases UNKNOWN: 12.0% of the time belongs to no phase" in text


def test_all_of_it_on_request(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Phases and kinds of work with bars, ranks, kernels, and where the traces are."""
    text = ran(capsys, "show", "one", "--profile", "--runs", str(runs))
    assert re.search(r"target_verify +75\.0%  █{30}", text)
    assert re.search(r"all_reduce +9\.9%  █", text)
    assert re.search(r"TP-1 +84\.8%", text)
    assert "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" in text
    assert "traces: 2 of 2 kept on the host, 0.2 MiB, in /runs/k/traces" in text
    assert "phases are UNKNOWN: 12.0% of the time belongs to no phase" in text


def test_for_programs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same, whole."""
    found = json.loads(ran(capsys, "show", "one", "--json", "--runs", str(runs)))["profiles"]
    base = next(row for row in found if row["trial"] == "base")
    assert base["shares"]["target_verify"] == pytest.approx(0.75, abs=0.01)
    assert len(base["ranks"]) == 2
    assert next(row for row in found if row["trial"] == "m-16")["shares"] == {}


def test_a_picture_in_the_report(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stacked bar for each profiled trial, drawn to scale, with what it stands for beside it."""
    file = tmp_path / "r.html"
    ran(capsys, "report", "one", "--html", str(file), "--runs", str(runs))
    page = html.unescape(file.read_text())
    assert "Where the time went" in page
    found = re.search(r'width="([\d.]+)" height="20" fill="#[0-9a-f]+"><title>base: target_verify 75\.0%', page)
    assert found is not None
    assert float(found[1]) == pytest.approx(660 * 0.75, abs=2)
    assert "<title>m-16: host_wait 50.0%" in page
    assert "script" not in re.findall(r"<(\w+)", page)
    assert "WHERE THE TIME WENT: base" in ran(capsys, "report", "one", "--runs", str(runs))


def test_two_side_by_side(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The largest change first, in points of a percent."""
    text = ran(capsys, "diff", "one:baseline", "one:base", "--runs", str(runs))
    rows = re.findall(r"^  +(\w+) +([\d.]+)% +([\d.]+)% +([+-][\d.]+) pp", text, re.MULTILINE)
    assert rows[0] == ("decode", "90.0", "0.0", "-90.0")
    assert rows[1] == ("target_verify", "0.0", "75.0", "+75.0")


def test_traces_at_hand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One rank, or all of a server's; a damaged one is UNKNOWN; nothing is changed or taken away."""
    both = ran(capsys, "diagnose", *map(str, H200))
    assert both.startswith("PASS  2 traces (trace of torch's profiler)")
    assert "2 of 2 ranks; most of the time goes to target_verify: 75.0%" in both
    one = ran(capsys, "diagnose", str(H200[1]))
    assert "1 of 2 ranks" in one
    assert "all_reduce" in one
    cut = tmp_path / "cut.trace.json.gz"
    cut.write_bytes(H200[0].read_bytes()[:50_000])
    text = ran(capsys, "diagnose", str(cut), status=6)
    assert text.startswith("UNKNOWN")
    assert "cut off" in text
    assert cut.stat().st_size == 50_000
    found = json.loads(ran(capsys, "diagnose", "--json", str(H200[0])))
    assert (found["verdict"], found["kind"]) == ("PASS", "trace")
    assert found["parsed"]["kernels"]["all_reduce"] == pytest.approx(0.112, abs=0.005)


def test_a_name_that_would_draw_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of kernels come from files of unknown origin."""
    maker = traces.Maker(how=traces.SPANS)
    maker.launch()
    maker.kernel("evil\x1b[2J<script>", 100.0)
    maker.phase("verify", 0.0)
    file = traces.write(tmp_path / "t.trace.json", maker.text())
    text = ran(capsys, "diagnose", str(file))
    assert "\x1b" not in text
    assert "evil\\x1b[2J" in text


@pytest.mark.parametrize(("share", "shown"), [(0, ""), (0.5, "█" * 20), (1, "█" * 40), (7, "█" * 40), (0.0125, "▌")])
def test_bars(share: float, shown: str) -> None:
    """To an eighth of a character, never longer than the whole."""
    assert bar(share) == shown
