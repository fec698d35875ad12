"""Evidence of a server that hangs: the real script, the real py-spy, a real process that waits for a lock."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.core.evidence import Answer, Evidence
from agent.core.guards import Collected, judge
from agent.core.guards.evidence import read_collected
from agent.core.observations import Completed
from agent.core.values import Output, Result

SCRIPT = Path(__file__).parents[2] / "agent" / "hosts" / "scripts" / "collect.py"
HUNG = """
import os, threading, time
print("loading weights", flush=True)
print("Capture cuda graph begin.", flush=True)
lock = threading.Lock()
def all_reduce_that_never_returns():
    lock.acquire()
    lock.acquire()
if os.fork() == 0:
    time.sleep(300)
all_reduce_that_never_returns()
"""


def py_spy() -> Path | None:
    """Return the folder of py-spy, wherever its package put it."""
    try:
        files = importlib.metadata.distribution("py-spy").files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())).resolve() for file in files if file.name == "py-spy"]
    return found[0].parent if found and found[0].is_file() else None


def gathered(base: Path, *, spy: Path | None) -> dict[str, str]:
    """Start a process that hangs, as a job has it, and gather evidence of it."""
    folder = base / "runs" / "server"
    folder.mkdir(parents=True)
    env = {**os.environ, "AGENT_RUN_KEY": "server", "NCCL_PROTO": "LL", "HF_TOKEN": "hf_never", "OTHER": "x"}
    with (folder / "out").open("wb") as out:
        child = subprocess.Popen([sys.executable, "-c", HUNG], stdout=out, env=env, start_new_session=True)
    try:
        until = time.monotonic() + 20
        while b"Capture" not in (folder / "out").read_bytes() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)
        job = base / "runs" / "collect"
        job.mkdir()
        path = os.environ["PATH"] + (f":{spy}" if spy else "")
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "server", "--patterns", "Capture cuda"],
            env={"PATH": path, "AGENT_JOB": str(job)}, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    finally:
        os.killpg(child.pid, 9)
        child.wait()
    parts = read_collected(done.stdout)
    assert parts is not None, done.stdout[-500:] + done.stderr
    return parts


@pytest.mark.real
def test_where_a_server_hangs_is_seen(tmp_path: Path) -> None:
    """Every process of it, the Python frame that waits, what it was given, and no secret."""
    spy = py_spy()
    if spy is None:
        pytest.skip("py-spy is not installed")
    parts = gathered(tmp_path, spy=spy)
    assert parts["processes"].count("state S") == 2, "the fork is found as well"
    assert "all_reduce_that_never_returns" in parts["stacks"]
    assert "wchan" in parts["stacks"]
    assert "NCCL_PROTO=LL" in parts["environ"]
    assert "hf_never" not in "".join(parts.values())
    assert "HF_TOKEN" in parts["environ"], "its name is told"
    assert "Capture cuda graph begin." in parts["log"]
    assert "python" in parts["versions"]
    text = "".join(f"==== {name}\n{body}\n" for name, body in parts.items()) + "==== end\n"
    answer = Answer("main/-/-/test/1/collect", None, "collect", 0.0, Completed(status=0, out=Output.of(text)))  # type: ignore[arg-type]
    evidence = Evidence(None, None, None, None, 1.0, 0.0, [answer])  # type: ignore[arg-type]
    for pattern, part, lacks, result in (
        ("all_reduce", "stacks", False, Result.PASS),
        ("all_reduce", "kernel", False, Result.FAIL),
        ("all_reduce", "stacks", True, Result.FAIL),
        ("no such frame", "any", True, Result.PASS),
    ):
        guard = Collected(guard="collected", pattern=pattern, part=part, lacks=lacks)  # type: ignore[arg-type]
        assert judge(guard, evidence).result is result


def test_cut_off_evidence_is_none() -> None:
    """A part that looks whole in an answer that is not is no evidence."""
    assert read_collected("==== stacks\nall\n") is None
    assert read_collected("==== stacks\nall\n==== end\n") == {"stacks": "all"}
    assert read_collected("") is None
