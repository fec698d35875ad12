"""Goodput under latency limits: the shipped playbook, with fewer launches, against the lab."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from agent.cli.loading import load
from tests.rehearsal.rehearse import PLAYBOOKS, walk

SLO = PLAYBOOKS / "optimize-slo.yaml"


def test_the_playbook_is_resolved_with_its_limits_and_levels() -> None:
    """Milliseconds, and a workload for each concurrency, each with enough requests to reach it."""
    _, plan, _ = load(SLO)
    assert plan.benchmark is not None
    assert plan.benchmark.slo == {"ttft": 500.0, "tpot": 15.6}
    assert [(load.name, load.concurrency) for load in plan.benchmark.workloads] == [
        ("c1", 1), ("c4", 4), ("c8", 8), ("c12", 12)
    ]  # fmt: skip
    assert all(load.requests >= load.concurrency for load in plan.benchmark.workloads)
    assert (plan.goal.metric, plan.goal.direction) == ("goodput_req_s", "up")


@pytest.mark.real
def test_what_serves_more_in_time_wins(tmp_path: Path) -> None:
    """Twelve streams are too many for the baseline within the limits, and not for two speculative steps."""
    text = SLO.read_text()
    text = re.sub(r"    - name: batch.*?\n.*?\n", "", text)
    text = text.replace("[1, 2, 4], strategy: grid", "[2], strategy: grid").replace("launches: 2}", "launches: 0}")
    text = text.replace("[1, 4, 8, 12]", "[8, 12]").replace("repeats: 2", "repeats: 1")
    told = asyncio.run(walk(tmp_path / "run", text + "lab: {existing: null, time_scale: 1500}\n"))
    assert told.failures() == []
    scores = {name: score.values for name, score in told.scores().items()}
    before, after = scores["baseline"], scores["steps-2"]
    assert (before["slo_share_c8"], before["slo_share_c12"]) == (1.0, 0.0)
    assert (after["slo_share_c8"], after["slo_share_c12"]) == (1.0, 1.0)
    assert before["goodput_req_s"] == before["goodput_req_s_c8"]
    assert after["goodput_req_s"] == after["goodput_req_s_c12"] > 1.3 * before["goodput_req_s"]
    assert before["tpot_ms_p50_c12"] > 15.6 > after["tpot_ms_p99_c12"]
    assert before["simulated"] == 1.0
