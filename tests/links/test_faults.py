"""Faults F21 to F46 in whole campaigns and on real links, where no other test has them."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.actions import Follow, Job, Start, Status
from agent.core.observations import Completed
from tests.faults.bed import ROOT, guarded, over_ssh, wait_for
from tests.hosts.conftest import end_jobs
from tests.hosts.cutter import cutter
from tests.hosts.world import Way, fresh_key, run
from tests.support.sshd import Sshd, sshd

pytestmark = pytest.mark.real

BENCH = """\
import fcntl, os, sys
lock = open({lock!r}, "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open({twice!r}, "w").close()
"""
"""Put before a benchmark: two of them at a time leave a mark."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    """Give an SSH server that the test may break."""
    with sshd(tmp_path / "sshd") as running:
        yield running
        end_jobs(running.base)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 14 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=14m", "tmpfs", place]).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", place], check=True)


def test_f21_the_controllers_disk_is_full(server: Sshd, tmp_path: Path, small_disk: Path) -> None:
    """It stops before the next effect and says so, the server lives on; with room again the same decision follows."""
    with guarded(over_ssh(tmp_path, server.base, server.config, flags=', --load, "2"')) as bed:
        (tmp_path / "runs").symlink_to(small_disk)
        process = bed.begin()
        wait_for(lambda: bed.reached("health-wait") and bed.effects())
        loading = bed.server()
        filler = small_disk / "filler"
        with filler.open("wb") as file:
            try:
                while True:
                    file.write(bytes(65536))
                    file.flush()
            except OSError:
                pass
        assert process.wait(60) == 7, bed.said()
        assert "disk is full" in bed.said()
        assert bed.server() == loading
        assert loading[1]
        filler.unlink()
        bed.finish()
        assert len(bed.effects()) == 2


def test_f44_the_connection_goes_while_it_measures(server: Sshd, tmp_path: Path) -> None:
    """Reset again and again in the middle of a benchmark: it is one job, and never two at a time."""

    async def cuts(bed_port: int) -> int:
        async with cutter(server.port) as proxy:
            bed.config = server.client(proxy.port)
            process, count = bed.begin(), 0
            while process.poll() is None:
                if bed.reached("benchmark") and proxy._writers and count < 6:
                    proxy.drop()
                    count += 1
                await asyncio.sleep(0.15)
            bed.finish(process)
            return count

    with guarded(over_ssh(tmp_path, server.base, server.config)) as bed:
        script, twice = tmp_path / "tiny_bench.py", tmp_path / "twice"
        before = BENCH.format(lock=str(tmp_path / "lock"), twice=str(twice))
        script.write_text(before + script.read_text())
        assert asyncio.run(cuts(bed.port)) >= 2
        assert not twice.exists()
        benchmarks = [e for e in bed.events("requested") if e["action"].get("job", {}).get("role") == "benchmark"]
        assert len({e["action"]["key"] for e in benchmarks}) == 2, benchmarks


def test_f29_and_f45_a_second_agent_and_a_server_that_the_kernel_ends(server: Sshd, tmp_path: Path) -> None:
    """A second agent is told who has the run and does nothing. SIGKILL from outside is status 137, never a lost job."""
    with guarded(over_ssh(tmp_path, server.base, server.config, flags=', --load, "20"')) as bed:
        process = bed.begin()
        wait_for(lambda: bed.reached("health-wait") and bed.effects())
        second = bed.agent("resume", bed.run().name, "--plain")
        assert second.returncode not in (0, 70), second.stderr
        assert str(process.pid) in second.stderr + second.stdout
        os.kill(bed.server()[0], signal.SIGKILL)
        wait_for(lambda: "status 137" in bed.said())
        assert "memory killer" in bed.said()
        process.wait(90)
        told = json.dumps(bed.events("noted") + bed.events("observed"))
        assert "EXITED 137" in told
        assert not bed.events("resumed")
        assert "LOST" not in told


JUMP = """\
import time
wall, wall_ns = time.time, time.time_ns
def off():
    return 86_400 if time.monotonic() // 1.5 % 2 else -86_400
time.time = lambda: wall() + off()
time.time_ns = lambda: wall_ns() + off() * 10**9
"""
"""A wall clock that is a day late and a day early in turn."""


def test_f34_a_wall_clock_that_jumps(server: Sshd, tmp_path: Path) -> None:
    """A day back and two forward in the middle: order and durations are those of the other clock."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(JUMP)
    with guarded(over_ssh(tmp_path, server.base, server.config, flags=', --load, "2"')) as bed:
        bed.knobs["PYTHONPATH"] = f"{tmp_path}/site:{ROOT}"
        bed.finish(bed.begin())
        with contextlib.closing(sqlite3.connect(f"file:{bed.run()}/journal.db?mode=ro", uri=True)) as journal:
            stamps = journal.execute("SELECT wall_ns, boot_ns FROM event ORDER BY seq").fetchall()
        walls, boots = zip(*stamps, strict=True)
        assert max(walls) - min(walls) > 86_400 * 10**9, "the clock did not jump"
        assert list(walls) != sorted(walls)
        assert list(boots) == sorted(boots)
        assert len(bed.effects()) == 2


def test_f43_a_logout_that_ends_everything(server: Sshd, tmp_path: Path) -> None:
    """As `KillUserProcesses` does it: all of the job dies at once. It is told as lost, with what may have done it."""
    with guarded(over_ssh(tmp_path, server.base, server.config, flags=', --load, "2"')) as bed:
        process = bed.begin()
        wait_for(lambda: bed.reached("health-wait") and bed.effects())
        (job,) = bed.jobs()
        supervisor = int((job / "sup").read_text().split()[0])
        for pid in (supervisor, *bed.left()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: "KillUserProcesses" in bed.said(), what="the hint")
        bed.finish(process, same=False)
        assert "LOST died" in json.dumps(bed.events("noted") + bed.events("observed"))


def test_f36_a_log_without_end(server: Sshd) -> None:
    """Two hundred megabytes without one line end: head, tail, size and digest of all come, in bounded memory."""

    async def body() -> None:
        async with Way("box", server.config, server.base).open() as box:
            key, size = fresh_key(), 200_000_000
            job = Job(role="script", argv=("sh", "-c", f"head -c {size} /dev/zero | tr '\\000' y"))
            await box.do(Start(host="box", key=key, job=job))
            before = _resident_kib()
            ended = await box.do(Follow(host="box", key=key, timeout_s=50))
            assert isinstance(ended, Completed), ended
            assert _resident_kib() - before < 50 * 1024
            assert ended.out.size + ended.out.dropped == size
            digest = hashlib.sha256()
            for _ in range(200):
                digest.update(b"y" * 1_000_000)
            assert ended.out.whole == digest.hexdigest()

    run(body())


def _resident_kib() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])


def test_f37_bytes_that_are_no_text(server: Sshd) -> None:
    """A megabyte of noise is kept exactly, and the connection lives."""

    async def body() -> None:
        async with Way("box", server.config, server.base).open() as box:
            key = fresh_key()
            job = Job(role="script", argv=("sh", "-c", 'head -c 1000000 /dev/urandom | tee "$AGENT_JOB/copy"'))
            await box.do(Start(host="box", key=key, job=job))
            ended = await box.do(Follow(host="box", key=key, timeout_s=30))
            assert isinstance(ended, Completed), ended
            copy = (box.folder(key) / "copy").read_bytes()
            # What looks like a secret by its shape is taken out of anything; everything else is as it was.
            assert ended.out.raw() == copy or b"redacted" in ended.out.raw()
            assert (await box.status(key)).word == "EXITED"

    run(body())


def test_f35_a_clock_that_is_wrong_on_the_host(server: Sshd, tmp_path: Path) -> None:
    """An hour off, in another zone: leases and ages go by the host's uptime and do not change."""
    wrong = tmp_path / "bin"
    wrong.mkdir()
    (wrong / "date").write_text("#!/bin/sh\necho 'Thu Jan  1 00:00:00 1970'\n")
    (wrong / "date").chmod(0o755)

    async def body() -> None:
        async with Way("box", server.config, server.base).open(owner="one") as box:
            key, state = await box.start("sleep", "5", role="server")
            uptime = float(Path("/proc/uptime").read_text().split()[0])
            assert abs(state.up_s - uptime) < 5
            lease = (server.base / "lease").read_text().split()
            assert abs(int(lease[3]) - uptime) < 5
            assert (await box.status(key)).word == "LIVE"

    config = server.folder / "sshd_config"
    path = f'PATH="{wrong}:{os.environ["PATH"]}" TZ="Pacific/Kiritimati"'
    config.write_text(config.read_text().replace(f'PATH="{os.environ["PATH"]}"', path))
    server.stop_listening()
    server.listen()
    run(body())


def test_f46_nobody_looks_at_an_exit_status() -> None:
    """Asyncssh reports a lost connection as an end without a status: no code of ours reads that field at all."""
    found = []
    for path in (ROOT / "agent").rglob("*.py"):
        found += [
            (path.relative_to(ROOT).as_posix(), node.attr)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and node.attr in ("exit_status", "exit_signal", "returncode")
        ]
    assert not [place for place in found if place[1] != "returncode"], found
    assert not [place for place in found if place[0].startswith("agent/hosts/") and "/scripts/" not in place[0]], found


def test_f6_a_black_hole_is_noticed_in_time(server: Sshd) -> None:
    """Every session of the server is stopped: unknown after interval times (count + 1), then a new connection."""

    async def body() -> None:
        async with Way("box", server.config, server.base).open(keepalive=(0.5, 2)) as box:
            key, _ = await box.start("sleep", "20")
            server.signal_sessions(signal.SIGSTOP)
            began = time.monotonic()
            lost = await box.do(Status(host="box", key=key))
            assert lost.result == "lost", lost
            # The bound is 1.5 s; what is above it is for a machine that others use as well.
            assert time.monotonic() - began < 1.5 + 5
            assert (await box.status(key)).word == "LIVE"

    run(body())
