"""Rounds of: a child appends and says what was acknowledged, the parent kills it at some moment and looks.

Run as a program with a folder, a number of rounds and a seed; prints one JSON line a round. A process of its own,
because it forks: the interpreter starts once, not once a round.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from journal_events import CAMPAIGN

from agent.core.actions import Probe
from agent.core.events import Noted, Requested
from agent.core.values import Output
from agent.journal.store import Journal
from agent.journal.verify import verify


def write_until_killed(folder: Path, pipe: int, rng: random.Random) -> None:
    """Append for ever; say number and hash of each durable entry after it was acknowledged."""
    journal = Journal.open_writer(folder)
    while True:
        durable = rng.random() < 0.6
        size = 60_000 if rng.random() < 0.1 else rng.randrange(1, 9_000)
        event = Noted(request="r", part=Output.of(rng.randbytes(size)))
        entry = journal.append(event, lane="l", host="", epoch=0, wall_ns=1, boot_ns=1, boot_id="b", durable=durable)
        if durable:
            os.write(pipe, f"{entry.seq} {journal.head.hash}\n".encode())


def one_round(folder: Path, rng: random.Random) -> dict[str, object]:
    """Let a child write, kill it, and look at what it left."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            write_until_killed(folder, theirs, rng)
        finally:
            os._exit(1)
    os.close(theirs)
    said = b""
    wanted = rng.randrange(1, 25)
    while said.count(b"\n") < wanted:
        said += os.read(ours, 4096)
    deadline = time.perf_counter() + rng.random() * 0.004
    while time.perf_counter() < deadline:
        pass
    os.kill(child, signal.SIGKILL)
    while part := os.read(ours, 65536):
        said += part
    os.close(ours)
    os.waitpid(child, 0)
    seq, digest = said.decode().splitlines()[-1].split()
    report = verify(folder)
    with Journal.open_reader(folder) as journal:
        count = sum(1 for _ in journal.entries())
        stored = journal._rows("SELECT hash FROM event WHERE seq = ?", int(seq))
    kept = bool(stored) and stored[0][0].hex() == digest
    return {"acknowledged": int(seq), "count": count, "kept": kept, "flaws": [flaw.found for flaw in report.flaws]}


def main() -> None:
    """Do the rounds on one and the same journal."""
    folder, rounds, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(sys.argv[3])
    with Journal.create(folder, CAMPAIGN, {}) as journal:
        ask = Requested(request="r", action=Probe(sections=()))
        journal.append(ask, lane="l", host="", epoch=0, wall_ns=1, boot_ns=1, boot_id="b", durable=True)
    for _ in range(rounds):
        print(json.dumps(one_round(folder, rng)), flush=True)


if __name__ == "__main__":
    main()
