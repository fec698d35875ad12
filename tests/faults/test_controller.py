"""Faults of the controller: killed at boundaries and at random, interrupted, stopped for a while (F1, F2, F4, F5)."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.sshd import start_time

from .bed import DONE, Bed, guarded, local, wait_for
from .controller import BOUNDARIES

pytestmark = pytest.mark.real


def crash_at_boundaries(bed: Bed, most: int) -> int:
    """Kill the controller at one boundary after another, each in the life of its own process; return how often."""
    for turn in range(most):
        code = bed.begin(FAULT_CRASH_AT=BOUNDARIES[turn % 4]).wait(60)
        if code in DONE:
            return turn
        assert code == -signal.SIGKILL, bed.said()
    return most


def test_f1_killed_at_the_boundaries_of_effects(tmp_path: Path) -> None:
    """Before and after the intent, before and after the outcome: resume finds what is there and repeats nothing."""
    with guarded(local(tmp_path)) as bed:
        bed.kills = crash_at_boundaries(bed, 4)
        assert bed.kills == 4
        bed.finish()
        assert bed.agent("replay", bed.run().name).returncode == 0


def kill_at_random(bed: Bed, kills: int, rng: random.Random, longest_s: float = 2.0) -> None:
    """Kill the controller at random moments after it has begun to work, so often; then let it finish."""
    while bed.kills < kills:
        process = bed.begin()
        before = _size(bed)
        wait_for(lambda process=process, before=before: _size(bed) != before or process.poll() is not None)  # type: ignore[misc]
        deadline = time.monotonic() + rng.uniform(0.0, longest_s)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        if process.poll() in DONE:
            return
        process.kill()
        process.wait()
        bed.kills += 1
    bed.finish()


def _size(bed: Bed) -> int:
    return sum(path.stat().st_size for path in bed.runs.glob("*/journal.db*")) if bed.runs.exists() else 0


def test_f2_killed_at_random(tmp_path: Path) -> None:
    """Whatever the moment: one effect for each key, and the decision of a run left alone."""
    with guarded(local(tmp_path)) as bed:
        kill_at_random(bed, 3, random.Random(11), 1.2)
        assert bed.kills == 3


def test_f4_interrupted_once_and_twice(tmp_path: Path) -> None:
    """Once: nothing more is started, the server stays as it is. Twice: out at once. Both can be taken up again."""
    with guarded(local(tmp_path)) as bed:
        process = bed.begin()
        wait_for(lambda: bed.reached("benchmark"))
        server = bed.server()
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 130
        assert server[1]
        assert bed.server() == server
        process = bed.begin()
        wait_for(lambda: len(bed.events("resumed")) == 1)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) in {130, -signal.SIGINT}
        assert time.monotonic() - began < 4
        assert start_time(server[0]) == server[1]
        bed.finish()


def test_f5_a_controller_that_sleeps(tmp_path: Path) -> None:
    """The laptop's lid: nothing fails for the time that passed, and the work goes on at once."""
    with guarded(local(tmp_path)) as bed:
        process = bed.begin()
        wait_for(lambda: bed.reached("benchmark"))
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(4)
        os.kill(process.pid, signal.SIGCONT)
        bed.finish(process)
        assert not [move for move in bed.events("moved") if move["outcome"] in {"timeout", "fail", "retry"}]
