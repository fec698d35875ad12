"""Probe of hosts, side by side in one run: our warm probe and our cold start against asyncssh used by hand.

    python -m benchmarks.probe [--rounds 60] [--hosts 20] [--json]

Both sides run the same four small commands over the same private SSH server on loopback, in turns. By hand means:
a long-lived shell, one framed script a round for the warm figure; a connection, a shell and one framed script a host
for the cold one. Ratios are ours / by hand; only they carry over from machine to machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncssh

from agent.core.actions import Section
from agent.core.observations import read_sections
from agent.hosts.ssh import SSHHost
from tests.support.sshd import Sshd, sshd

COMMANDS = ("uptime", "cat /proc/loadavg /proc/meminfo", "ps -e -o pid,args", "df -P /")
SECTIONS = tuple(Section(name=f"s{index}", command=command) for index, command in enumerate(COMMANDS))


async def by_hand(process: asyncssh.SSHClientProcess[bytes]) -> bytes:
    """Run the commands in a shell that is open, and read up to the mark."""
    mark = secrets.token_hex(16)
    script = "".join(f"{command}\nprintf '\\n#{mark} %s\\n' $?\n" for command in COMMANDS)
    process.stdin.write(f"{script}printf '#{mark} done\\n'\n".encode())
    end, seen = f"#{mark} done\n".encode(), bytearray()
    while not seen.endswith(end):
        data = await process.stdout.read(65536)
        if not data:
            raise ConnectionError("the shell ended")
        seen += data
    return bytes(seen)


async def ours(host: SSHHost) -> None:
    """Probe once, and see that every section came."""
    answer = await host.probe(SECTIONS, timeout_s=30.0)
    found = read_sections(answer.out.decode())
    if [result.status for result in found.values()] != [0] * len(SECTIONS):
        raise ValueError(f"a probe came back odd: {found}")


async def took(work: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds that something takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def warm(server: Sshd, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Take turns on open connections: by hand, ours, and an empty round trip of ours."""
    host = SSHHost("box", "box", ssh_config=server.config)
    await host.open()
    async with asyncssh.connect("box", config=[str(server.config)]) as connection:
        process = await connection.create_process("exec /bin/sh", encoding=None)
        hand: list[float] = []
        own: list[float] = []
        empty: list[float] = []
        for turn in range(rounds + 5):
            pairs = [(hand, lambda: by_hand(process)), (own, lambda: ours(host))]
            for kept, work in pairs if turn % 2 else reversed(pairs):
                spent = await took(work)
                if turn >= 5:
                    kept.append(spent)
            empty.append(await took(lambda: host.call("number", "1")))
        process.stdin.write_eof()
    await host.close()
    return hand, own, empty[5:]


async def cold_by_hand(server: Sshd) -> None:
    """Connect, open a shell, run the script, close."""
    async with asyncssh.connect("box", config=[str(server.config)]) as connection:
        process = await connection.create_process("exec /bin/sh", encoding=None)
        await by_hand(process)
        process.stdin.write_eof()


async def cold_ours(server: Sshd) -> None:
    """Connect, probe, close."""
    host = SSHHost("box", "box", ssh_config=server.config)
    await ours(host)
    await host.close()


async def cold(server: Sshd, hosts: int, rounds: int) -> tuple[list[float], list[float]]:
    """Take turns with many connections at once."""
    hand: list[float] = []
    own: list[float] = []
    for turn in range(rounds):
        pairs: list[tuple[list[float], Callable[[Sshd], Awaitable[None]]]] = [(hand, cold_by_hand), (own, cold_ours)]
        for kept, work in pairs if turn % 2 else reversed(pairs):
            kept.append(await took(lambda work=work: asyncio.gather(*(work(server) for _ in range(hosts)))))  # type: ignore[misc]
    return hand, own


def main() -> int:
    """Measure and print; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="probe speed against asyncssh by hand")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sshd(Path(folder)) as server:
        hand, own, empty = asyncio.run(warm(server, given.rounds))
        many_hand, many_own = asyncio.run(cold(server, given.hosts, 4))
    figures = {
        "warm_by_hand_ms": round(1000 * statistics.median(hand), 2),
        "warm_ours_ms": round(1000 * statistics.median(own), 2),
        "warm_ratio": round(statistics.median(own) / statistics.median(hand), 3),
        "empty_call_ms": round(1000 * statistics.median(empty), 2),
        f"cold_{given.hosts}_by_hand_s": round(statistics.median(many_hand), 3),
        f"cold_{given.hosts}_ours_s": round(statistics.median(many_own), 3),
        "cold_ratio": round(statistics.median(many_own) / statistics.median(many_hand), 3),
        "goal": 1.3,
    }
    if given.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value}")
    return int(max(float(figures["warm_ratio"]), float(figures["cold_ratio"])) > float(figures["goal"]))


if __name__ == "__main__":
    sys.exit(main())
