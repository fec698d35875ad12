"""Two ways to a host, one suite: the machine itself, and the same machine through a private SSH server."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sshd import Sshd, sshd

from .world import Way


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """One server for all tests of this process that do not break it."""
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running
        end_jobs(running.base)


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.real)])
def way(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Give a host by either transport, with a folder of its own where that is possible."""
    if request.param == "local":
        base = tmp_path / "base"
        monkeypatch.setenv("AGENT_HOST_BASE", str(base))
        yield Way("local", None, base)
        end_jobs(base)
    else:
        running: Sshd = request.getfixturevalue("server")
        yield Way("box", running.config, running.base)


def end_jobs(base: Path) -> None:
    """Kill what the tests' jobs left: by the key in the environment and the folder in it, never by name."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            environment = (entry / "environ").read_bytes().split(b"\0")
            if any(word.startswith(f"AGENT_JOB={base}/".encode()) for word in environment):
                os.kill(int(entry.name), signal.SIGKILL)
