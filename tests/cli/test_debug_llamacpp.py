"""The shipped debug playbook on the real llama.cpp: why nothing is drafted is found, by one launch a question."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.core.yaml import compose
from tests.support.llama import free_port, needs_engine
from tests.support.tiny import trusted

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"


@pytest.mark.real
@pytest.mark.timeout(400)  # three starts of a real engine, each with a benchmark and a check
@needs_engine
def test_why_nothing_is_drafted(tmp_path: Path) -> None:
    """The shorter draft was the cause; the check script says by perf or /proc where the time goes, as a share."""
    document = compose((PLAYBOOKS / "debug-llamacpp.yaml").read_bytes(), "p").data
    document["server"]["port"] = free_port()
    del document["hypotheses"]["two-threads-spin"]  # what a busy machine does is no property of this code
    playbook = tmp_path / "debug.yaml"
    playbook.write_text(json.dumps(document))
    (tmp_path / "check_spin.py").write_bytes((PLAYBOOKS / "check_spin.py").read_bytes())
    keep = {key: value for key, value in os.environ.items() if not key.startswith("AGENT_")}
    env = keep | {"AGENT_HOST_BASE": str(tmp_path / "host"), "XDG_STATE_HOME": str(tmp_path / "state")}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    trusted(tmp_path / "state", playbook)
    words = ["run", str(playbook), "--host", "box=local", "--plain", "--runs", str(tmp_path / "runs")]
    done = subprocess.run(
        [sys.executable, "-m", "agent", *words], env=env, capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "the fault shows: not one token was drafted" in done.stdout
    assert "✗ pattern-too-short: REFUTED" in done.stdout
    assert "✓ draft-too-short: SUPPORTED: accept length" in done.stdout
    report = subprocess.run(
        [sys.executable, "-m", "agent", "report", "last", "--json", "--runs", str(tmp_path / "runs")],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    said = [item["parts"]["said"] for item in json.loads(report.stdout)["gathered"] if "check-spin" in item["request"]]
    checks = [json.loads(text.strip().splitlines()[-1]) for text in said]
    assert len(checks) == 3
    for check in checks:
        assert check["seen_by"] in ("perf", "proc")
        assert 0 <= check.get("spin_share", 0) <= 1
        assert check["tokens"] > 0
