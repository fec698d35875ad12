"""``make faults``: the fault matrix with large counts, and a table of what came of it.

``python -m tests.faults [NAME...] [--scale X]``. The counts at scale 1 take about half an hour on a quiet machine; each
line is printed as soon as it is known, and a promise that is broken ends the program with status 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.core.actions import Acquire, Job, Start
from agent.core.observations import Completed, Refused
from tests.hosts.cutter import cutter
from tests.hosts.test_once import controller, finish, go
from tests.hosts.world import Way, fresh_key
from tests.support.sshd import sshd

from . import links
from .bed import Bed, guarded, local, over_ssh, wait_for
from .test_controller import crash_at_boundaries, kill_at_random
from .test_network import dropped_launches, resets
from .test_processes import reuse

Row = tuple[str, str]


def effects(beds: list[Bed]) -> int:
    """Return the highest number of effects that any key had."""
    keys = [key for bed in beds for key in bed.effects()]
    return max((keys.count(key) for key in keys), default=0)


def boundaries(folder: Path, scale: float) -> list[Row]:
    """F1: one campaign with its confirmation, killed at every boundary of every effect until it is done."""
    with guarded(local(folder, confirm=2)) as bed:
        kills = crash_at_boundaries(bed, max(4, round(400 * scale)))
        bed.finish()
    return [("F1 kills at boundaries survived", str(kills)), ("F1 effects per key, max", str(effects([bed])))]


def killed(folder: Path, scale: float) -> list[Row]:
    """F2: campaigns killed at random; half over SSH."""
    beds: list[Bed] = []
    wanted, kills = max(2, round(500 * scale)), 0
    with sshd(folder / "sshd") as server:
        while kills < wanted:
            place = folder / f"run{len(beds)}"
            place.mkdir()
            ssh = len(beds) % 2 == 1
            made = over_ssh(place, server.base, server.config, confirm=2) if ssh else local(place, confirm=2)
            with guarded(made) as bed:
                kill_at_random(bed, min(40, wanted - kills), random.Random(len(beds)))
            beds.append(bed)
            kills += bed.kills
    same = f"{len(beds)} of {len(beds)}"
    rows = [("F2 random kills survived", str(kills)), ("F2 effects per key, max", str(effects(beds)))]
    return [*rows, ("F2 decisions equal to those of a run left alone", same)]


def attached(folder: Path, scale: float) -> list[Row]:
    """Return how long it takes from the start of a resuming process to the host's word on what it left."""
    times: list[float] = []
    with guarded(local(folder, flags=', --load, "60"')) as bed:
        process = bed.begin()
        wait_for(lambda: bed.reached("health-wait") and bed.effects())
        for turn in range(max(3, round(30 * scale))):
            process.kill()
            process.wait()
            began = time.monotonic()
            process = bed.begin()
            wait_for(lambda turn=turn: len(bed.events("resumed")) > turn and _heard(bed))  # type: ignore[misc]
            times.append(time.monotonic() - began)
        process.kill()
        process.wait()
        assert bed.agent("stop", bed.run().name, "--plain").returncode == 0, bed.said()
    return [("time to re-attach, median and worst", f"{statistics.median(times):.2f} s, {max(times):.2f} s")]


def _heard(bed: Bed) -> bool:
    """Whether a watch has said since the last resume that the server lives."""
    with contextlib.closing(sqlite3.connect(f"file:{bed.run()}/journal.db?mode=ro", uri=True)) as journal:
        (last,) = journal.execute("SELECT max(seq) FROM event WHERE kind = 'resumed'").fetchone()
        rows = journal.execute("SELECT body FROM event WHERE kind = 'noted' AND seq > ?", (last or 0,)).fetchall()
    return any("state LIVE" in str(json.loads(body)["part"]["text"]) for (body,) in rows)


def reset(folder: Path, scale: float) -> list[Row]:
    """F7: whole campaigns through a way that breaks all the time."""
    beds, cuts = list[Bed](), 0
    with sshd(folder / "sshd") as server:
        while cuts < 300 * scale:
            place = folder / f"run{len(beds)}"
            place.mkdir()
            with guarded(over_ssh(place, server.base, server.config)) as bed:
                cuts += asyncio.run(resets(server, bed, random.Random(len(beds)), most=40))
                bed.finish()
            beds.append(bed)
    return [("F7 connections reset in campaigns", str(cuts)), ("F7 effects per key, max", str(effects(beds)))]


def cut(folder: Path, scale: float) -> list[Row]:
    """F8: a command of 400 kB cut at many places; it runs whole or not at all."""
    count, truncated = max(3, round(60 * scale)), 0

    async def body() -> None:
        nonlocal truncated
        with sshd(folder / "sshd") as server:
            straight_way = Way("box", server.config, server.base)
            async with cutter(server.port) as proxy, straight_way.open(owner="same") as straight:
                way = Way("box", server.client(proxy.port), server.base)
                for turn in range(count):
                    key, mark = fresh_key(), folder / f"mark{turn}"
                    script = f"echo begun >>{mark}; : $1 $2 $3 $4; echo whole >>{mark}"
                    argv = ("sh", "-c", script, "x", *["y" * 100_000] * 4)
                    async with way.open(owner="same") as box:
                        proxy.cut_after = proxy.passed + round((turn + 1) / count * 1.4 * 400_000)
                        await box.do(_start(key, argv))
                        proxy.cut_after = None
                    if (await straight.status(key)).word == "ABSENT":
                        truncated += mark.exists()
                        await straight.do(_start(key, argv))
                    await straight.follow(key)
                    truncated += mark.read_text() != "begun\nwhole\n"

    asyncio.run(body())
    assert not truncated
    return [("F8 payloads cut", str(count)), ("F8 truncated executions", str(truncated))]


def _start(key: str, argv: tuple[str, ...]) -> Start:
    return Start(host="box", key=key, job=Job(role="script", argv=argv))


def dropped(folder: Path, scale: float) -> list[Row]:
    """F9: connections that drop up to 60 ms after a start was sent."""
    count = max(4, round(200 * scale))
    with sshd(folder / "sshd") as server:
        worst = asyncio.run(dropped_launches(server, folder, count))
    assert worst == 1
    return [("F9 launches with a dropped connection", str(count)), ("F9 effects per key, max", str(worst))]


def reused(folder: Path, scale: float) -> list[Row]:
    """F13: numbers of supervisors, servers and sessions given to strangers."""
    said = reuse(folder, max(5, round(100 * scale)))
    assert "0 listed, 0 hit" in said
    return [("F13 forced reuse of numbers (two strangers a round)", said)]


def taken_over(folder: Path, scale: float) -> list[Row]:
    """F30, F31: two controllers take the host from each other; nobody acts on a lease that it no longer has."""
    count, stale, refused = max(10, round(500 * scale)), 0, 0

    async def body() -> None:
        nonlocal stale, refused
        with sshd(folder / "sshd") as server:
            way = Way("box", server.config, server.base)
            async with way.open(owner="a") as one, way.open(acquire=False) as two:
                old, new, names = one, two, ("a", "b")
                for turn in range(count):
                    over = Acquire(host="box", owner=names[(turn + 1) % 2], take_over=old.hosts.epoch("box"))
                    key, mark = fresh_key(), folder / f"mark{turn}"
                    act = _start(key, ("sh", "-c", f"cat {server.base}/lease >{mark}"))
                    held = old.hosts.epoch("box")
                    # At the same moment: the old one acts, the new one takes over.
                    acted, took = await asyncio.gather(old.do(act), new.do(over))
                    assert isinstance(took, Completed), took
                    if isinstance(acted, Refused):
                        refused += 1
                    late = await old.do(_start(fresh_key(), ("touch", f"{mark}.late")))
                    stale += not isinstance(late, Refused) or Path(f"{mark}.late").exists()
                    assert new.hosts.epoch("box") == held + 1
                    old, new = new, old

    asyncio.run(body())
    assert not stale
    return [
        ("F31 take-overs while the old controller acts", f"{count}, in {refused} of them it came too late"),
        ("F31 stale acts after a take-over", str(stale)),
    ]


def once(folder: Path, scale: float) -> list[Row]:
    """F2 on a single start: the controller is killed within 60 ms of it."""
    count, chance = max(4, round(120 * scale)), random.Random(3)
    with sshd(folder / "sshd") as server:
        way = Way("box", server.config, server.base)
        for turn in range(count):
            key, mark = fresh_key(), folder / f"mark{turn}"
            with controller(way, key, mark) as process:
                go(process)
                time.sleep(chance.uniform(0.0, 0.06))
                process.kill()

            async def resumed(key: str = key, mark: Path = mark) -> None:
                async with way.open(owner="same") as box:
                    await finish(box, key, mark)

            asyncio.run(resumed())
    return [("starts with the controller killed in them", str(count)), ("effects per key, max", "1")]


MATRIX: dict[str, Callable[[Path, float], list[Row]]] = {
    "boundaries": boundaries,
    "killed": killed,
    "once": once,
    "attached": attached,
    "reset": reset,
    "cut": cut,
    "dropped": dropped,
    "reused": reused,
    "taken-over": taken_over,
    **links.MATRIX,
}


def main() -> int:
    """Run what is asked for; return 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MATRIX), metavar="NAME", help=", ".join(MATRIX))
    parser.add_argument("--scale", type=float, default=1.0, help="how much of the full counts")
    options = parser.parse_args()
    broken = False
    for name in options.names:
        folder = Path(tempfile.mkdtemp(prefix=f"faults-{name}-"))
        began = time.monotonic()
        try:
            rows = MATRIX[name](folder, options.scale)
            shutil.rmtree(folder, ignore_errors=True)
        except pytest.skip.Exception as lacking:  # what was not run has shown nothing
            rows, broken = [(name, f"NOT RUN: {lacking}")], True
        except Exception:
            traceback.print_exc()
            rows, broken = [(name, f"BROKEN; see {folder}")], True
        for what, count in rows:
            print(f"{what:<52} {count}", flush=True)
        print(f"{'':<52} ({time.monotonic() - began:.0f} s)", flush=True)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
