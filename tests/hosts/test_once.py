"""At most once and never in part: killed controllers, racing controllers, connections cut inside the payload."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from agent.core.actions import Job, Start
from agent.core.observations import Completed
from tests.support.sshd import Sshd

from .controller import job
from .cutter import cutter
from .world import Campaign, Way, fresh_key, run

ROOT = Path(__file__).parents[2]


def controller(way: Way, key: str, mark: Path, size: int = 10) -> subprocess.Popen[str]:
    """Start a controller that waits for a line before it starts the job."""
    words = (way.address, str(way.config or ""), str(way.base), key, str(mark), str(size))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.hosts.controller", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    """Let a controller start its job."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


async def finish(box: Campaign, key: str, mark: Path, size: int = 10) -> None:
    """Do what a resumed run does: ask, start where the key is absent, wait; then the effect is there once, whole."""
    state = await box.status(key)
    if state.word == "ABSENT":
        _, state = await box.start(*job(str(mark), size), key=key)
    if state.word == "LOST":
        assert state.why == "never-started"
        assert not mark.exists()
        return
    outcome = await box.follow(key)
    assert isinstance(outcome, Completed), outcome
    assert mark.read_text() == "begun\nwhole\n"


def test_a_killed_controller_leaves_one_effect(way: Way, tmp_path: Path) -> None:
    """SIGKILL at a random moment around the start; the resumed run finds it or does it, never twice."""
    chance = random.Random(7)
    for turn in range(4):
        key, mark = fresh_key(), tmp_path / f"mark{turn}"
        with controller(way, key, mark) as process:
            go(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.0, 0.06))
            process.kill()

        async def resumed(key: str = key, mark: Path = mark) -> None:
            async with way.open(owner="same") as box:
                await finish(box, key, mark)

        run(resumed())


def test_racing_controllers_make_one_effect(way: Way, tmp_path: Path) -> None:
    """Four processes start the same key at the same moment."""
    key, mark = fresh_key(), tmp_path / "mark"
    words = []
    with contextlib.ExitStack() as stack:
        racers = [stack.enter_context(controller(way, key, mark)) for _ in range(4)]
        for process in racers:
            go(process)
        for process in racers:
            assert process.stdout is not None
            words.append(process.stdout.readline().strip())
    assert set(words) <= {"LIVE", "STARTING", "EXITED"}

    async def afterwards() -> None:
        async with way.open(owner="same") as box:
            await finish(box, key, mark)

    run(afterwards())


@pytest.mark.real
def test_a_cut_payload_never_runs(server: Sshd, tmp_path: Path) -> None:
    """The connection is aborted inside 200 kB of command: nothing runs in part, and the repeat runs it once."""
    size = 200_000
    size_argument = 100_000  # one word of a command line holds 128 KiB at most

    async def body() -> None:
        async with cutter(server.port) as proxy:
            way = Way("box", server.client(proxy.port), server.base)
            async with Way("box", server.config, server.base).open(owner="same") as straight:
                for turn, share in enumerate((0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0, 1.03)):
                    key, mark = fresh_key(), tmp_path / f"mark{turn}"
                    argv = (*job(str(mark), size_argument), "x" * (size - size_argument))
                    async with way.open(owner="same") as box:
                        proxy.cut_after = proxy.passed + int(share * size * 1.35)
                        outcome = await box.do(Start(host="box", key=key, job=Job(role="script", argv=argv)))
                        proxy.cut_after = None
                    assert outcome.result in {"lost", "completed"}, outcome
                    if outcome.result == "completed":
                        assert share >= 0.97
                    state = await straight.status(key)
                    if state.word == "ABSENT":
                        assert not mark.exists()
                        await straight.start(*argv, key=key)
                    ended = await straight.follow(key)
                    assert isinstance(ended, Completed), ended
                    assert mark.read_text() == "begun\nwhole\n"

    run(body())


@pytest.mark.real
def test_a_cut_anywhere_in_a_small_call_is_harmless(server: Sshd, tmp_path: Path) -> None:
    """Every 512 bytes of a connection's whole life: at most one effect, and the repeat completes it."""

    async def body() -> None:
        async with cutter(server.port) as proxy:
            way = Way("box", server.client(proxy.port), server.base)
            async with Way("box", server.config, server.base).open(owner="same") as straight:
                for cut in range(512, 34_000, 3_100):
                    key, mark = fresh_key(), tmp_path / f"mark{cut}"
                    proxy.cut_after = cut
                    async with way.open(owner="same", acquire=False) as box:
                        box.hosts._epochs["box"] = straight.hosts.epoch("box")
                        await box.do(
                            Start(host="box", key=key, job=Job(role="script", argv=job(str(mark), 10)))
                        )  # whatever it says
                    await finish(straight, key, mark)

    run(body())
