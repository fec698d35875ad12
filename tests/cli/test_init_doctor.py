"""`agent init` writes what `agent check` takes; `agent doctor` says what a host is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def agent(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "agent", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", ["sglang", "vllm", "llamacpp"])
def test_what_init_writes_loads(tmp_path: Path, kind: str) -> None:
    """Ten-odd lines, no error, and a plan with a baseline and candidates."""
    path = tmp_path / "first.yaml"
    assert agent("init", str(path), "--kind", kind).returncode == 0
    assert len(path.read_text().splitlines()) < 16
    checked = agent("check", str(path))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    plan = json.loads(agent("plan", str(path), "--json").stdout)
    assert len(plan["trials"]) >= 3
    again = agent("init", str(path))
    assert again.returncode == 2
    assert "is there already" in again.stderr


def test_doctor_looks_at_this_machine_and_knows_no_gpu_from_no_answer() -> None:
    """Facts of the host; the absence of nvidia-smi is said, never read as clean."""
    facts = json.loads(agent("doctor", "local", "--json").stdout)[0]
    assert facts["ok"] is True
    assert any("GiB available" in line for line in facts["facts"])
    lost = agent("doctor", "root@no-such-host.invalid")
    assert lost.returncode == 4
    assert "E_HOST_DNS" in lost.stdout
