"""Figures of links: commands cut at every byte, words as they arrive, black holes, entries that were acknowledged."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent.core.actions import Follow, Job, Start, Status
from agent.core.observations import Completed
from agent.hosts import compose, shell
from agent.hosts.frames import fresh_nonce
from tests.hosts.world import Campaign, Way, fresh_key
from tests.support.sshd import Sshd, sshd

from .bed import ROOT

Row = tuple[str, str]

ALPHABET = [
    *"abz09 \t\n'\"\\$`!*?[]{}()<>|&;~#%^=-,:/@.\r\x7f\x1b",
    "\xff",
    "ä",
    "中",
    "‮",
    "$(id)",
    "`id`",
    "-n",
    "../",
    "EOF",
    "\udcff",
]
"""Pieces of words; the last is a byte that is no UTF-8."""


def words(count: int, chance: random.Random) -> Iterator[str]:
    """Make words that a shell would do something about; none holds a NUL, which no argument can."""
    for _ in range(count):
        yield "".join(chance.choices(ALPHABET, k=chance.randrange(0, 12)))


async def arrived(box: Campaign, given: Iterable[str]) -> tuple[int, int]:
    """Pass words through to a program on the host, many at a time; return how many, and how many came otherwise."""
    left, count, wrong = list(given), 0, 0
    while left:
        batch, left = left[:500], left[500:]
        key = fresh_key()
        # Each word ends with a byte that is in none of them.
        job = Job(role="script", argv=("sh", "-c", 'for w; do printf "%s\\001" "$w"; done', "sh", *batch))
        assert isinstance(await box.do(Start(host="box", key=key, job=job)), Completed)
        ended = await box.do(Follow(host="box", key=key, timeout_s=30))
        assert isinstance(ended, Completed), ended
        came = (box.folder(key) / "out").read_bytes().split(b"\x01")[:-1]
        want = [word.encode("utf-8", "surrogateescape") for word in batch]
        count += len(batch)
        wrong += sum(one != other for one, other in zip(want, came, strict=True))
    return count, wrong


def literal(folder: Path, scale: float) -> list[Row]:
    """B24: any word arrives as one literal argument."""
    count = wrong = 0

    async def body(server: Sshd) -> None:
        nonlocal count, wrong
        async with Way("box", server.config, server.base).open() as box:
            count, wrong = await arrived(box, words(max(500, round(100_000 * scale)), random.Random(1)))

    with sshd(folder / "sshd") as server:
        asyncio.run(body(server))
    assert not wrong
    return [("B24 words passed to a program", str(count)), ("B24 words that arrived otherwise", str(wrong))]


def call_of(key: str, mark: Path) -> bytes:
    """Return all that a host's shell is sent to start a job that leaves a mark: the host script, then the call."""
    job = Job(role="script", argv=("sh", "-c", f"echo begun >>{mark}; echo whole >>{mark}"))
    command = compose.command_file(job, {}.__getitem__)
    digest = hashlib.sha256(command).hexdigest()
    given = (key, "1", digest, digest, str(len(command)), "script")
    text = b"".join(shell._loading(part) for part in shell.script_parts())
    return text + b"{ " + shell.call_text("start", given, command, fresh_nonce(), attended=False) + b"\n}\n"


def cut_at(folder: Path, places: Iterable[int] | None = None, step: int = 1) -> tuple[int, int, int]:
    """Give a shell the first bytes of a call, for each place; return how often, how many ran cut, and the length."""
    base = folder / "base"
    (base / "runs").mkdir(parents=True, mode=0o700)
    base.chmod(0o700)
    boot, up = (
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        Path("/proc/uptime").read_text().split(".")[0],
    )
    (base / "epoch").write_text("1\n")
    (base / "lease").write_text(f"tester 1 {boot} {up} 1800 host\n")
    length = len(call_of("cut-000000", folder / "mark000000"))

    def one(place: int) -> bool:
        key, mark = f"cut-{place:06}", folder / f"mark{place:06}"
        text = call_of(key, mark)[:place]
        env = os.environ | {"AGENT_HOST_BASE": str(base)}
        subprocess.run(["/bin/sh"], input=text, env=env, capture_output=True, timeout=60, check=False)
        deadline = time.monotonic() + 5
        while (base / "runs" / key).exists() and not (base / "runs" / key / "exit").exists():
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        return mark.exists() and mark.read_text() != "begun\nwhole\n"

    chosen = list(places) if places is not None else [*range(0, length, step), length]
    with ThreadPoolExecutor(2) as pool:
        wrong = sum(pool.map(one, chosen))
    assert (folder / f"mark{length:06}").read_text() == "begun\nwhole\n", "the whole text did not run"
    return len(chosen), wrong, length


def every_byte(folder: Path, scale: float) -> list[Row]:
    """F8: what a shell is sent, cut at every byte (at scale 1)."""
    count, wrong, length = cut_at(folder, step=max(1, round(1 / scale)))
    assert not wrong
    return [
        (f"F8 places at which {length} bytes to a shell were cut", str(count)),
        ("F8 truncated executions", str(wrong)),
    ]


async def noticed(server: Sshd, keepalive: tuple[float, int]) -> float:
    """Stop every session of the server in the middle of a connection; return how long it took to be known."""
    async with Way("box", server.config, server.base).open(keepalive=keepalive, owner="same") as box:
        await box.status("none")
        server.signal_sessions(signal.SIGSTOP)
        began = time.monotonic()
        lost = await box.do(Status(host="box", key="none"))
        took = time.monotonic() - began
        server.signal_sessions(signal.SIGKILL)
        assert lost.result == "lost", lost
        return took


def black_holes(folder: Path, scale: float) -> list[Row]:
    """F6: how long a peer that says nothing more is believed."""
    rows = []
    with sshd(folder / "sshd") as server:
        for keepalive, most in (((1.0, 2), 40), ((15.0, 3), 3)):
            times = [asyncio.run(noticed(server, keepalive)) for _ in range(max(1, round(most * scale)))]
            bound = keepalive[0] * (keepalive[1] + 1)
            assert max(times) < bound + 1.0, times
            what = f"F6 black hole noticed, keepalive {keepalive[0]:g} s x {keepalive[1]}"
            rows.append(
                (what, f"{statistics.median(times):.1f} s, worst {max(times):.1f} s of {bound:g} s ({len(times)})")
            )
    return rows


def acknowledged(folder: Path, scale: float) -> list[Row]:
    """F3: a writer is killed in the middle of what it does; what it was told is on disk is there."""
    count = max(10, round(400 * scale))
    script = ROOT / "tests" / "journal" / "kill_rounds.py"
    command = [sys.executable, str(script), str(folder / "run"), str(count), "figures"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=3600
    )
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rounds) == count
    lost = sum(not each["kept"] or each["count"] < each["acknowledged"] for each in rounds)
    assert not lost
    assert not [each for each in rounds if each["flaws"]]
    return [
        ("F3 kills of a writer", str(count)),
        ("F3 entries acknowledged before them", str(rounds[-1]["acknowledged"])),
        ("F3 acknowledged entries lost", str(lost)),
    ]


MATRIX = {"literal": literal, "every-byte": every_byte, "black-holes": black_holes, "acknowledged": acknowledged}
