"""Signals go through a pidfd where the host has python3, and by a second look where it has none; both refuse alike."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from agent.hosts.local import LocalHost

from .test_base import root_only
from .test_processes import send
from .world import Way, run, until

PYTHON = Path("/usr/bin/python3")


@root_only
@pytest.mark.skipif(not PYTHON.exists(), reason="no python3 of the system")
@pytest.mark.parametrize("way", ["pidfd", "shell"])
def test_both_ways_to_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The right process is ended, a right number with a wrong start time is refused, what is gone is told."""
    monkeypatch.setenv("AGENT_HOST_BASE", str(tmp_path / "base"))
    real, used, fake = tmp_path / "real", tmp_path / "used", tmp_path / "fake"
    shutil.copy(PYTHON.resolve(), real)
    fake.write_text(f'#!/bin/sh\necho "$*" >>{used}\nexec {real} "$@"\n')
    fake.chmod(0o755)
    instead = fake if way == "pidfd" else "/dev/null"
    login = ("unshare", "-m", "sh", "-c", f'mount --bind {instead} {PYTHON.resolve()}; exec sh -c "$0"')

    async def body() -> None:
        async with Way("local", None, tmp_path / "base").open(acquire=False) as box:
            box.hosts._hosts["box"] = LocalHost("box", login=login)
            await box.take()
            key, state = await box.start("sleep", "300")
            await until(lambda: (box.folder(key) / "main").exists())
            pid, start = map(int, (box.folder(key) / "main").read_text().split())
            assert await send(box, "TERM", [(pid, start + 1)], key) == {pid: "REFUSED"}
            assert await send(box, "TERM", [(state.pid, state.start)], key) == {state.pid: "REFUSED"}, "not a member"
            os.kill(pid, 0)
            assert await send(box, "TERM", [(pid, start)], key) == {pid: "SENT"}
            await until(lambda: (box.folder(key) / "exit").exists())
            assert await send(box, "TERM", [(pid, start)], key) == {pid: "GONE"}
        assert used.exists() is (way == "pidfd")
        if used.exists():
            assert "pidfd_open" in used.read_text()

    run(body())
