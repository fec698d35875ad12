"""Faults of the way to the host: black holes, resets anywhere, a server of logins that is restarted (F6-F10)."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.actions import Job, Start
from agent.core.observations import Completed
from tests.hosts.cutter import cutter
from tests.hosts.world import Way, fresh_key
from tests.hosts.world import run as run_test
from tests.support.sshd import Sshd, sshd

from .bed import DONE, Bed, guarded, over_ssh, wait_for

pytestmark = pytest.mark.real


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    """Give an SSH server that the test may break."""
    with sshd(tmp_path / "sshd") as running:
        yield running


@pytest.mark.parametrize("state", ["health-wait", "benchmark"])
def test_f6_a_black_hole(server: Sshd, tmp_path: Path, state: str) -> None:
    """The other end is stopped and answers nothing: a new connection takes over, and no effect is repeated."""
    with guarded(over_ssh(tmp_path, server.base, server.config, flags=', --load, "1.5"')) as bed:
        process = bed.begin()
        wait_for(lambda: bed.reached(state))
        frozen = server.session_tree()
        server.signal_sessions(signal.SIGSTOP)
        bed.finish(process)
        assert len(bed.effects()) == 2
        assert frozen


async def resets(server: Sshd, bed: Bed, rng: random.Random, *, longest_s: float = 0.6, most: int = 10**6) -> int:
    """Run a campaign through a proxy that aborts its connections at random moments; return how often."""
    cuts, deadline = 0, time.monotonic() + 300
    async with cutter(server.port) as proxy:
        bed.config = server.client(proxy.port)
        code = None
        while code not in DONE:
            assert time.monotonic() < deadline, bed.said()
            process = bed.begin()
            while process.poll() is None:
                await asyncio.sleep(rng.uniform(0.0, longest_s))
                if proxy._writers and cuts < most:
                    proxy.drop()
                    cuts += 1
            code = process.returncode
    return cuts


def test_f7_connections_reset_all_the_time(server: Sshd, tmp_path: Path) -> None:
    """Reset again and again: questions are asked again, nothing is done again, the decision is the same."""
    with guarded(over_ssh(tmp_path, server.base, server.config)) as bed:
        cuts = asyncio.run(resets(server, bed, random.Random(5), most=12))
        assert cuts >= 3
        bed.finish()
        assert len(bed.effects()) == 2


async def dropped_launches(server: Sshd, folder: Path, count: int, longest_s: float = 0.06) -> int:
    """Abort the connection up to so long after a start was sent; return the highest number of effects of a key."""
    worst = 0
    async with cutter(server.port) as proxy, Way("box", server.config, server.base).open(owner="same") as straight:
        way = Way("box", server.client(proxy.port), server.base)
        for turn in range(count):
            key, mark = fresh_key(), folder / f"mark{turn}"
            job = Job(role="script", argv=("sh", "-c", f"echo ran >>{mark}"))
            async with way.open(owner="same") as box:
                asking = asyncio.create_task(box.do(Start(host="box", key=key, job=job)))
                await asyncio.sleep(longest_s * turn / count)
                proxy.drop()
                await asking
            state = await straight.status(key)
            if state.word == "LOST":
                # The shell on the host ended between the folder and the start: told so, and nothing ran.
                assert state.why == "never-started", state
                assert not mark.exists()
                continue
            if state.word == "ABSENT":
                await straight.do(Start(host="box", key=key, job=job))
            assert isinstance(await straight.follow(key), Completed)
            worst = max(worst, len(mark.read_text().splitlines()))
    return worst


def test_f9_the_connection_drops_during_a_launch(server: Sshd, tmp_path: Path) -> None:
    """Whatever the moment, the key says what became of it, and one effect is the end of it."""
    run_test(_dropped(server, tmp_path, 10))


async def _dropped(server: Sshd, folder: Path, count: int) -> None:
    assert await dropped_launches(server, folder, count) == 1


def test_f10_the_ssh_server_restarts_under_a_start(server: Sshd, tmp_path: Path) -> None:
    """Listener and sessions are gone for two seconds while the server loads: it is the same process afterwards."""
    with guarded(over_ssh(tmp_path, server.base, server.config, flags=', --load, "3"')) as bed:
        process = bed.begin()
        wait_for(lambda: bed.reached("health-wait") and bed.effects())
        loading = bed.server()
        server.stop_listening()
        for pid in server.session_tree():
            assert pid
        server.signal_sessions(signal.SIGKILL)
        time.sleep(2)
        server.listen()
        wait_for(lambda: bed.reached("benchmark"))
        assert bed.server() == loading
        bed.finish(process)
        assert len(bed.effects()) == 2
