"""The control group of a job: it finds what session, descent and environment do not, and it is taken away again."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from pathlib import Path

import pytest

from agent.core.observations import Completed
from agent.hosts.local import LocalHost
from tests.support.sshd import start_time

from .test_processes import owned, send
from .world import Campaign, Way, run, until

# Forked twice, in a session of its own, with an empty environment: nothing but the group knows whose it is.
RUNAWAY = (
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.execve('/bin/sleep', ['/bin/sleep', '{seconds}'], {{}})\n"
    "    os._exit(0)\n"
    "os.wait(); print('up', flush=True); time.sleep(60)"
)


async def grouped(box: Campaign) -> str:
    """Return the group below which jobs get theirs; skip the test where there is none."""
    how, _, root = (await box.hosts.check("box"))["ownership"].partition(" ")
    if how != "cgroup":
        pytest.skip("no cgroup v2 that can be written to: root on a host with the unified hierarchy is needed")
    return root


async def runaway(box: Campaign) -> tuple[str, int]:
    """Start a job with a process that only its group knows; return its key and that process."""
    seconds = 10**6 + secrets.randbelow(10**8)  # its name in the process list
    key, _ = await box.start("python3", "-c", RUNAWAY.format(seconds=seconds), role="server")
    await until(lambda: "up" in (box.folder(key) / "out").read_text())
    found = subprocess.run(["pgrep", "-f", f"^/bin/sleep {seconds}$"], capture_output=True, text=True, check=False)
    (pid,) = (int(word) for word in found.stdout.split())
    return key, pid


def test_a_process_that_cut_every_tie_is_found_and_ended(way: Way) -> None:
    """It belongs to the job by its group alone, gets its signal, and the empty group goes."""

    async def body() -> None:
        async with way.open() as box:
            root = await grouped(box)
            key, pid = await runaway(box)
            group = Path(root, "agent", key)
            assert str(pid) in (group / "cgroup.procs").read_text().split()
            assert pid in {process.pid for process in await owned(box, key)}
            os.kill(await box.main(key), signal.SIGKILL)
            assert isinstance(await box.follow(key), Completed)
            (left,) = await owned(box, key)
            assert (left.pid, left.start) == (pid, start_time(pid))
            assert group.is_dir()
            assert await send(box, "TERM", [(left.pid, left.start)], key) == {pid: "SENT"}
            await until(lambda: start_time(pid) is None)
            assert await owned(box, key) == ()
            assert not group.exists()

    run(body())


def test_an_ended_job_leaves_no_group(way: Way) -> None:
    """Whether it ended by itself or was lost with its supervisor."""

    async def body() -> None:
        async with way.open() as box:
            root = Path(await grouped(box), "agent")
            keys = [(await box.start("true"))[0] for _ in range(10)]
            for key in keys:
                await box.follow(key)
            await until(lambda: not [key for key in keys if (root / key).exists()])
            lost, state = await box.start("sleep", "60")
            assert (root / lost).is_dir()
            pids = (state.pid, await box.main(lost))
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not any(start_time(pid) for pid in pids))
            assert (await box.status(lost)).word == "LOST"
            await until(lambda: not (root / lost).exists())

    run(body())


def test_a_group_below_the_jobs_own_is_part_of_it(way: Way) -> None:
    """What a job sorts into groups of its own making stays its own."""

    async def body() -> None:
        async with way.open() as box:
            root = Path(await grouped(box), "agent")
            script = 'g=$(sed -n s/^0:://p /proc/self/cgroup); mkdir "$0$g/x"; echo $$ >"$0$g/x/cgroup.procs"; sleep 60'
            mount = str(root.parent)
            key, _ = await box.start("sh", "-c", script, mount)
            await until(lambda: (root / key / "x").is_dir() and (root / key / "x" / "cgroup.procs").read_text())
            found = await owned(box, key)
            assert {"sleep 60"} <= {process.argv for process in found}
            await send(box, "KILL", [(process.pid, process.start) for process in found], key)
            await box.follow(key)
            for _ in range(50):  # each look takes away what has become empty
                assert await owned(box, key) == ()
                if not (root / key).exists():
                    return
                await asyncio.sleep(0.1)
            raise AssertionError("the groups were not taken away")

    run(body())


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Way:
    """Give this machine as a host where control groups cannot be seen."""
    if os.geteuid() != 0:
        pytest.skip("needs root to hide the control groups")
    monkeypatch.setenv("AGENT_HOST_BASE", str(tmp_path / "base"))
    return Way("local", None, tmp_path / "base")


def test_without_groups_the_rest_still_holds(plain: Way) -> None:
    """The job runs as ever, what the union can see is found, and nothing is said about it."""

    async def body() -> None:
        async with plain.open(acquire=False) as box:
            hide = 'umount -l /sys/fs/cgroup/unified /sys/fs/cgroup 2>/dev/null; exec sh -c "$0"'
            box.hosts._hosts["box"] = LocalHost("box", login=("unshare", "-m", "sh", "-c", hide))
            await box.take()
            assert (await box.hosts.check("box"))["ownership"] == "union"
            key, pid = await runaway(box)
            found = await owned(box, key)
            os.kill(pid, signal.SIGKILL)
            assert not (box.folder(key) / "group").exists()
            assert pid not in {process.pid for process in found}
            assert found
            await send(box, "KILL", [(process.pid, process.start) for process in found], key)
            assert isinstance(await box.follow(key), Completed)

    run(body())
