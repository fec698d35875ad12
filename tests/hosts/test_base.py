"""The agent's folder on a host: refused unless it is safe, never filled up; logs that run away are cut."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from agent.core.actions import Acquire, Job, Start
from agent.core.observations import Completed, Refused
from agent.errors import Exit, HostError
from agent.hosts.local import LocalHost

from .conftest import end_jobs
from .world import Way, fresh_key, run, until

root_only = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder's place, not yet made."""
    monkeypatch.setenv("AGENT_HOST_BASE", str(tmp_path / "base"))
    return tmp_path / "base"


def _symlink(base: Path) -> None:
    (base.parent / "real").mkdir(mode=0o700)
    base.symlink_to(base.parent / "real")


def _writable(base: Path) -> None:
    base.mkdir()
    base.chmod(0o777)


def _foreign(base: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    base.mkdir(mode=0o700)
    os.chown(base, 12345, 12345)


def _file(base: Path) -> None:
    base.write_text("")


@pytest.mark.parametrize("spoil", [_symlink, _writable, _foreign, _file])
def test_an_unsafe_folder_is_refused(base: Path, spoil: object) -> None:
    """Nothing is started, and `check` says why."""
    spoil(base)  # type: ignore[operator]

    async def body() -> None:
        async with Way("local", None, base).open(acquire=False) as box:
            outcome = await box.do(Acquire(host="box", owner="me"))
            assert isinstance(outcome, Refused)
            assert outcome.text.startswith(f"ERR base {base} ")
            with pytest.raises(HostError, match="E_HOST_BASE") as caught:
                await box.hosts.check("box")
            assert caught.value.exit == Exit.HOST

    run(body())


@root_only
@pytest.mark.parametrize("kind", ["nfs", "fuseblk", "smb2", "v9fs"])
def test_a_folder_on_a_network_file_system_is_refused(base: Path, kind: str) -> None:
    """Locks there are not to be relied on. Told by `stat -f`, which is made to say so here."""
    fake = base.parent / "stat"
    fake.write_text(f"#!/bin/sh\necho {kind}\n")
    fake.chmod(0o755)
    mount = f'mount --bind {fake} {shutil.which("stat")}; exec sh -c "$0"'

    async def body() -> None:
        async with Way("local", None, base).open(acquire=False) as box:
            box.hosts._hosts["box"] = LocalHost("box", login=("unshare", "-m", "sh", "-c", mount))
            outcome = await box.do(Acquire(host="box", owner="me"))
            assert isinstance(outcome, Refused)
            assert outcome.text == f"ERR base {base} is on a network file system"

    run(body())


def test_a_missing_folder_is_made_and_closed_to_others(base: Path) -> None:
    """The first campaign on a host needs no preparation."""

    async def body() -> None:
        async with Way("local", None, base).open() as box:
            await box.hosts.check("box")
            assert base.stat().st_mode & 0o777 == 0o700

    run(body())


@root_only
def test_a_full_disk_starts_nothing_and_keeps_the_exit_status(base: Path) -> None:
    """Less than 64 MiB free: refused. A job that is running writes its end into space reserved before."""
    mount = 'mkdir -p "$AGENT_HOST_BASE"; mount -t tmpfs -o mode=700,size=70m none "$AGENT_HOST_BASE"; exec sh -c "$0"'

    async def body() -> None:
        async with Way("local", None, base).open(acquire=False) as box:
            host = LocalHost("box", login=("unshare", "-m", "sh", "-c", mount))
            box.hosts._hosts["box"] = host
            await box.take()
            fill = 'head -c 80000000 /dev/zero >"$AGENT_JOB/junk"; exit 9'
            key, _ = await box.start("sh", "-c", fill)
            outcome = await box.follow(key)
            assert isinstance(outcome, Completed), outcome
            assert outcome.status == 9
            refused = await box.do(Start(host="box", key=fresh_key(), job=Job(role="script", argv=("true",))))
            assert isinstance(refused, Refused)
            assert refused.text.startswith("ERR space")

    run(body())


@root_only
def test_after_a_reboot_the_lease_is_void_and_jobs_are_lost(base: Path) -> None:
    """A faked boot id: the same folder, another boot."""
    fake = base.parent / "boot_id"
    fake.write_text("11111111-1111-1111-1111-111111111111\n")
    mount = f'mount --bind {fake} /proc/sys/kernel/random/boot_id; exec sh -c "$0"'

    async def body() -> None:
        async with Way("local", None, base).open(owner="first") as box:
            key, state = await box.start("sleep", "60")
            main = await box.main(key)  # while its supervisor is there to start it
            os.kill(state.pid, 9)
            os.kill(main, 9)
        async with Way("local", None, base).open(acquire=False) as box:
            box.hosts._hosts["box"] = LocalHost("box", login=("unshare", "-m", "sh", "-c", mount))
            outcome = await box.do(Acquire(host="box", owner="second"))
            assert isinstance(outcome, Completed)
            assert outcome.out.string() == "EPOCH 2\n"
            await until(lambda: True)
            found = await box.status(key)
            assert (found.word, found.why) == ("LOST", "reboot")

    run(body())


def test_a_runaway_log_is_cut_at_unchanged_offsets(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head and its tail stay, the disk blocks between are given back, the job notices nothing."""
    monkeypatch.setenv("AGENT_HOST_LOG_MAX", str(8 << 20))

    async def body() -> None:
        async with Way("local", None, base).open() as box:
            script = "echo first; head -c 60000000 /dev/zero | tr '\\0' x; echo; echo last; sleep 30"
            key, _ = await box.start("sh", "-c", script, role="server")
            out = box.folder(key) / "out"
            await until(lambda: out.exists() and out.stat().st_size == 60000012)
            await until(lambda: out.stat().st_blocks * 512 < 16 << 20)
            raw = out.read_bytes()
            assert raw.startswith(b"first\n")
            assert raw.endswith(b"x\nlast\n")
            end_jobs(base)
            await asyncio.sleep(0)

    run(body())
