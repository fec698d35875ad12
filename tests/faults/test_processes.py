"""Faults of processes: numbers used again, supervisors and servers killed alone, stubborn and hidden ones (F13-F17)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.hosts.local import LocalHost
from tests.hosts.test_processes import owned
from tests.hosts.world import Way, run, until
from tests.support.sshd import start_time

from .bed import Bed, guarded, local, wait_for

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]

FAMILY = ', --tree, "4", --load, "1.5"'


def supervisor(bed: Bed) -> int:
    """Return the pid of the supervisor of the newest server's job."""
    (job,) = [job for job in bed.jobs() if job.name == bed.effects()[-1]]
    return int((job / "sup").read_text().split()[0])


def reuse(folder: Path, rounds: int) -> str:
    """Force the reuse of numbers in a pid namespace; return what was counted."""
    done = subprocess.run(
        ["unshare", "-p", "-f", "--mount-proc", sys.executable, "-m", "tests.faults.reuse", str(rounds)],
        env={**os.environ, "AGENT_HOST_BASE": str(folder / "base"), "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a pid namespace")
def test_f13_numbers_that_are_used_again(tmp_path: Path) -> None:
    """The supervisor's, the server's, and that of a session: strangers on them are never listed and never hit."""
    assert reuse(tmp_path, 6) == "6 rounds: 0 listed, 0 hit, 6 refused"


def test_f14_the_supervisor_is_killed_alone(tmp_path: Path) -> None:
    """The server lives on and is used; its end will have no status, and in the end nothing is left."""
    with guarded(local(tmp_path, flags=FAMILY)) as bed:
        process = bed.begin()
        wait_for(lambda: bed.reached("health-wait") and bed.effects())
        os.kill(supervisor(bed), signal.SIGKILL)
        server = bed.server()
        wait_for(lambda: bed.reached("benchmark"))
        assert bed.server() == server
        bed.finish(process)
        assert len(bed.effects()) == 2


def test_f15_the_server_is_killed_and_its_workers_stay(tmp_path: Path) -> None:
    """Nothing is launched beside them: they are found, ended and proven gone first, whatever ties they cut."""
    with guarded(local(tmp_path, flags=FAMILY)) as bed:
        process = bed.begin()
        wait_for(lambda: bed.reached("benchmark"))
        os.kill(bed.server()[0], signal.SIGKILL)
        bed.finish(process, same=False)


def test_f16_an_environment_that_was_wiped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a group all of the family is found; without one, all but the one that cut every tie."""
    monkeypatch.setenv("AGENT_HOST_BASE", str(tmp_path / "base"))
    hide = 'umount -l /sys/fs/cgroup/unified /sys/fs/cgroup 2>/dev/null; exec sh -c "$0"'
    bed = local(tmp_path)

    async def family(login: tuple[str, ...]) -> tuple[str, int, list[int]]:
        async with Way("local", None, tmp_path / "base").open(acquire=False) as box:
            box.hosts._hosts["box"] = LocalHost("box", login=login)
            await box.take()
            how = (await box.hosts.check("box"))["ownership"].split()[0]
            words = [sys.executable, str(tmp_path / "tree_server.py"), "--port", str(bed.port), "--tree", "4"]
            key, _ = await box.start(*words, role="server", env={"PYTHONPATH": str(tmp_path)})
            await until(lambda: len(children_of(key)) >= 1)
            await until(lambda: subprocess.run(["ss", "-Hltn", f"sport = :{bed.port}"], capture_output=True).stdout)
            found = await owned(box, key)
            pids = [process.pid for process in found]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            return how, len(pids), pids

    def children_of(key: str) -> list[str]:
        return [str(path) for path in (tmp_path / "base" / "runs" / key).glob("out")]

    async def body() -> None:
        how, count, _ = await family(("/bin/sh", "-c"))
        assert count == (5 if how == "cgroup" else 4)
        if os.geteuid() == 0:
            how, count, _ = await family(("unshare", "-m", "sh", "-c", hide))
            assert (how, count) == ("union", 4)

    try:
        run(body())
    finally:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and lost_one(entry):
                os.kill(int(entry.name), signal.SIGKILL)


def lost_one(entry: Path) -> bool:
    """Whether it is the worker that cut every tie: adopted, without environment, asleep."""
    try:
        line, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        return b"time.sleep(3600)" in line and not environment and start_time(int(entry.name)) is not None
    except OSError:
        return False


def test_f17_a_process_that_minds_no_term(tmp_path: Path) -> None:
    """TERM, the grace, a fresh look, KILL, a fresh look: it ends, and the campaign goes on."""
    with guarded(local(tmp_path, flags=', --tree, "1", --stubborn')) as bed:
        bed.finish(bed.begin())
        sent = [event["action"]["signal"] for event in bed.events("requested") if event["action"]["do"] == "signal"]
        assert "TERM" in sent
        assert "KILL" in sent
