"""A real agent on a real host (this one), killed with SIGKILL at random moments and resumed until it is done."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.tiny import Tiny, make

pytestmark = pytest.mark.real


def listening(port: int) -> list[str]:
    """Return processes that listen on the port."""
    found = subprocess.run(["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if "users:" in line]


def finish(tiny: Tiny, most: int = 60) -> subprocess.CompletedProcess[str]:
    """Resume until the run is done."""
    for _ in range(most):
        done = tiny.agent("resume", "last", "--plain")
        if done.returncode in (0, 1, 6):
            return done
    raise AssertionError(done.stdout + done.stderr)


def opened(tiny: Tiny) -> bool:
    """Whether there is a run that got as far as its opening entry; before that, a user just runs again."""
    done = tiny.agent("status", "last")
    return done.returncode == 0 and "nothing was recorded" not in done.stdout


def sessions(tiny: Tiny) -> int:
    """Return how often a controller has begun to work, over all runs."""
    count = 0
    for path in tiny.runs.glob("*/journal.db"):
        with contextlib.suppress(sqlite3.Error), sqlite3.connect(f"file:{path}?mode=ro", uri=True) as journal:
            count += journal.execute("SELECT count(*) FROM event WHERE kind IN ('opened', 'resumed')").fetchone()[0]
    return count


def test_sigkill_at_random_moments(tmp_path: Path) -> None:
    """P1, P2, P4: each key takes effect once, one server at a time, the decision is that of a run left alone.

    `make faults` does it by the hundred.
    """
    tiny, rng = make(tmp_path, sweep="[400]"), random.Random(0)
    process = tiny.start("run", str(tiny.playbook), "--plain")
    kills, begun = 0, 0
    while kills < 8:
        # Mostly while it works, however long it takes to start on this machine; now and then before that.
        limit = time.monotonic() + (90 if rng.random() < 0.8 else rng.uniform(0.0, 1.0))
        while process.poll() is None and sessions(tiny) <= begun and time.monotonic() < limit:
            time.sleep(0.1)
        begun = sessions(tiny)
        time.sleep(rng.uniform(0.0, 1.8))
        if process.poll() is not None:
            if process.returncode in (0, 1, 6):
                break
        else:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        assert len(listening(tiny.port)) <= 1
        if opened(tiny):
            process = tiny.start("resume", "last", "--plain")
        else:
            process = tiny.start("run", str(tiny.playbook), "--plain")
    if process.poll() is None:
        process.wait(120)
    done = finish(tiny)
    assert done.returncode == 0, done.stdout
    assert kills >= 4
    effects = Counter(tiny.effects())
    assert max(effects.values()) == 1, effects
    assert not listening(tiny.port)
    run = max(path for path in tiny.runs.iterdir() if (path / "journal.db").exists())
    show = json.loads(tiny.agent("show", run.name, "--json").stdout)
    assert show["decision"]["word"] == "goal met"
    trials = [row["trial"] for row in show["trials"]]
    assert len(trials) == len(set(trials))
    assert tiny.agent("replay", run.name).returncode == 0
    audit = tiny.agent("audit", run.name)
    assert audit.returncode == 0, audit.stdout[-2000:]
    with sqlite3.connect(f"file:{run}/journal.db?mode=ro", uri=True) as journal:
        kinds = dict(journal.execute("SELECT kind, count(*) FROM event GROUP BY kind"))
    assert kinds["opened"] == 1
    assert kinds["resumed"] >= 2


def test_ctrl_c_leaves_the_server_and_says_how_to_go_on(tmp_path: Path) -> None:
    """Once: nothing more is started, exit 130; the server is the same afterwards, and is taken up by resume."""
    tiny = make(tmp_path)
    process = subprocess.Popen(
        tiny.command("run", str(tiny.playbook), "--plain"), env=tiny.env, stdout=subprocess.PIPE, text=True
    )
    tiny.until_up()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "agent resume" in out
    before = listening(tiny.port)
    assert len(before) == 1
    status = tiny.agent("status", "last")
    assert "no controller works on it" in status.stdout
    done = finish(tiny)
    assert done.returncode == 0, done.stdout
    assert max(Counter(tiny.effects()).values()) == 1


def test_stop_from_another_terminal(tmp_path: Path) -> None:
    """The order goes through the run's folder; what was started is gone, a bystander with the same name is not."""
    tiny = make(tmp_path)
    other = subprocess.Popen(["python3", str(tmp_path / "tiny_server.py"), "--port", "0"], stderr=subprocess.DEVNULL)
    try:
        process = tiny.start("run", str(tiny.playbook), "--plain")
        tiny.until_up()
        stopped = tiny.agent("stop", "last")
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        assert process.wait(20) == 1
        assert not listening(tiny.port)
        assert other.poll() is None
        show = json.loads(tiny.agent("show", "last", "--json").stdout)
        assert show["decision"]["word"] == "none"
        again = tiny.agent("stop", "last")
        assert again.returncode == 0
    finally:
        other.kill()
        other.wait()


def test_stop_without_a_controller(tmp_path: Path) -> None:
    """The controller is gone: the command takes its place and ends what it left."""
    tiny = make(tmp_path)
    process = tiny.start("run", str(tiny.playbook), "--plain")
    tiny.until_up()
    process.kill()
    process.wait()
    assert listening(tiny.port)
    stopped = tiny.agent("stop", "last", "--plain")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert not listening(tiny.port)


def test_a_taken_port_holds_the_run_and_its_holder_lives(tmp_path: Path) -> None:
    """Exit 3: somebody else listens on the port; nothing is killed, nothing is started."""
    tiny = make(tmp_path)
    command = ["python3", str(tmp_path / "tiny_server.py"), "--port", str(tiny.port)]
    other = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        tiny.until_up()
        held = tiny.agent("run", str(tiny.playbook), "--plain")
        assert held.returncode == 3, held.stdout
        assert "PORT_IN_USE" in held.stdout
        assert str(other.pid) in held.stdout
        assert other.poll() is None
        assert tiny.effects() == []
    finally:
        other.kill()
        other.wait()
    done = finish(tiny)
    assert done.returncode == 0, done.stdout
