"""Whose processes they are, and signals that reach exactly those."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.core.actions import Owned, Signal, Target
from agent.core.observations import Completed, Refused, read_owned
from agent.core.observations import Owned as Process
from tests.support.sshd import start_time

from .world import Campaign, Way, fresh_key, run, until

SLEEP = re.compile(r"(/bin/)?sleep 30\d")

# A server in miniature: a child, a child in a session of its own, one forked twice away, one without environment.
TREE = """
import os, subprocess, sys, time
def away(*argv, **more):
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **more)
away("sleep", "301")
away("setsid", "sleep", "302")
away("sh", "-c", "setsid sleep 303 & exit 0")
away("env", "-i", "/bin/sleep", "304")
print("up", flush=True)
time.sleep(300)
"""


async def owned(box: Campaign, *keys: str) -> tuple[Process, ...]:
    """Ask for the processes of jobs."""
    outcome = await box.do(Owned(host="box", keys=keys))
    assert isinstance(outcome, Completed), outcome
    return read_owned(outcome.out.string())


async def send(box: Campaign, name: str, targets: list[tuple[int, int]], key: str = "") -> dict[int, str]:
    """Send a signal; return what became of each target."""
    wanted = tuple(Target(pid=pid, start=start) for pid, start in targets)
    outcome = await box.do(Signal(host="box", signal=name, targets=wanted, key=key))
    assert isinstance(outcome, Completed), outcome
    return {int(line.split()[1]): line.split()[0] for line in outcome.out.string().splitlines()}


def test_the_whole_tree_is_found_and_ended(way: Way) -> None:
    """Session, descent and environment together find every process; the supervisor records the end."""

    async def body() -> None:
        async with way.open() as box:
            key, state = await box.start(sys.executable, "-c", TREE, role="server")
            other, _ = await box.start("sleep", "305")
            await until(lambda: "up" in (box.folder(key) / "out").read_text())
            await until(lambda: not any(cmdline(pid).startswith(b"setsid") for pid in pids()))
            found = await owned(box, key)
            sleeps = sorted(process.argv.split()[-1] for process in found if SLEEP.fullmatch(process.argv))
            assert sleeps == ["301", "302", "303", "304"]
            assert state.pid not in {process.pid for process in found}
            assert all(process.key == key and process.start == start_time(process.pid) for process in found)
            assert [process.argv for process in await owned(box, key, other) if process.key == other] == ["sleep 305"]
            told = await send(box, "TERM", [(process.pid, process.start) for process in found], key)
            assert set(told.values()) == {"SENT"}
            outcome = await box.follow(key)
            assert isinstance(outcome, Completed)
            assert outcome.status == 143
            assert await owned(box, key) == ()

    run(body())


def test_only_what_is_identified_gets_a_signal(way: Way) -> None:
    """Strangers, wrong start times, the controller and what is gone are told apart; nothing of them is touched."""

    async def body() -> None:
        async with way.open() as box:
            key, _ = await box.start("sleep", "306")
            (mine,) = await owned(box, key)
            with subprocess.Popen(["sleep", "307"]) as stranger, subprocess.Popen(["true"]) as gone:
                start = start_time(stranger.pid)
                assert start is not None
                await until(lambda: start_time(gone.pid) is None)
                me = start_time(os.getpid())
                assert me is not None
                told = await send(
                    box,
                    "KILL",
                    [(stranger.pid, start), (mine.pid, mine.start + 1), (os.getpid(), me), (gone.pid, 1)],
                    key,
                )
                expected = {stranger.pid: "REFUSED", mine.pid: "REFUSED", os.getpid(): "REFUSED", gone.pid: "GONE"}
                if way.address == "box":
                    del told[os.getpid()], expected[os.getpid()]
                assert told == expected
                assert start_time(stranger.pid) == start
                # Without a key the list is the operator's: identity is all that is asked.
                assert await send(box, "TERM", [(stranger.pid, start + 1)]) == {stranger.pid: "REFUSED"}
                assert await send(box, "TERM", [(stranger.pid, start)]) == {stranger.pid: "SENT"}
                assert stranger.wait(5) == -signal.SIGTERM
            assert await send(box, "KILL", [(mine.pid, mine.start)], key) == {mine.pid: "SENT"}

    run(body())


def test_an_orphaned_session_is_still_ours(way: Way) -> None:
    """With the supervisor gone, what is proven by other means carries the session; and the answer stays whole."""

    async def body() -> None:
        async with way.open() as box:
            key, state = await box.start(sys.executable, "-c", TREE, role="server")
            await until(lambda: "up" in (box.folder(key) / "out").read_text())
            os.kill(state.pid, signal.SIGKILL)
            await until(lambda: start_time(state.pid) is None)
            assert (await box.status(key)).word == "ORPHANED"
            found = await owned(box, key)
            assert len([process for process in found if SLEEP.fullmatch(process.argv)]) == 4
            await send(box, "KILL", [(process.pid, process.start) for process in found], key)
            assert (await owned(box, key)) == ()

    run(body())


def test_a_stopped_epoch_cannot_kill(way: Way) -> None:
    """A controller whose host was taken over is told so and sends nothing."""

    async def body() -> None:
        async with way.open(owner="first") as old:
            key, _ = await old.start("sleep", "308")
            (mine,) = await owned(old, key)
            async with way.open(owner="second"):
                pass
            target = Target(pid=mine.pid, start=mine.start)
            outcome = await old.do(Signal(host="box", signal="KILL", targets=(target,), key=key))
            assert isinstance(outcome, Refused)
            assert outcome.code == "FENCED"
            assert start_time(mine.pid) == mine.start

    run(body())


def test_a_strange_name_hides_nothing_and_forges_nothing(way: Way) -> None:
    """Names with parentheses and line ends are read as names; keys that are not there own nothing."""
    script = (
        "import ctypes, time; libc = ctypes.CDLL(None); "
        "libc.prctl(15, b'a) R 1\\n7 (b', 0, 0, 0); print('up', flush=True); time.sleep(300)"
    )

    async def body() -> None:
        async with way.open() as box:
            key, _ = await box.start(sys.executable, "-c", script)
            await until(lambda: "up" in (box.folder(key) / "out").read_text())
            (mine,) = await owned(box, key)
            assert mine.start == start_time(mine.pid)
            assert await owned(box, fresh_key()) == ()
            assert await send(box, "TERM", [(mine.pid, mine.start)], key) == {mine.pid: "SENT"}

    run(body())


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_reused_pid_is_refused(tmp_path: Path) -> None:
    """Forced twenty times in a pid namespace: the stranger on the old number is never hit."""
    program = Path(__file__).with_name("pid_reuse.py")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["unshare", "-p", "-f", "--mount-proc", sys.executable, str(program), "20"],
        env={**os.environ, "AGENT_HOST_BASE": str(tmp_path / "base"), "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("20 refused, 0 hit", 0), done.stderr


def pids() -> list[int]:
    """Return all pids."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def cmdline(pid: int) -> bytes:
    """Return a command line, b'' when the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
