"""A long server log through what is known of logs, beside ``grep -E`` for the same patterns.

    python -m benchmarks.logs [--mb 50] [--rounds 5] [--json]

The log is a healthy start followed by hours of serving: lines about batches, about requests, about health. ``diagnose``
reads it whole, from the file to the verdict; ``grep -E`` only prints the lines that match. Both in turns, best of the
rounds. Only the ratio carries over from machine to machine. ``dense`` is the worst a log can do: every second line is a
complaint that has to be looked at one by one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.core.diagnose import diagnose_log
from agent.core.diagnose.logscan import automaton
from agent.core.servers import kind_of

LIMIT = 2.0
"""At most so many times as long as grep."""
MEMORY_MIB = 64
PIECE = 1 << 20
START = Path(__file__).parents[1] / "tests" / "cases" / "12-log-healthy-start-full-timeline" / "input.txt"


def serving(dense: bool) -> Iterator[str]:
    """Yield lines of a server at work, always the same ones."""
    dice = random.Random(7)
    number = 0
    while True:
        number += 1
        hour, minute, second = 13 + number // 3600 % 10, number // 60 % 60, number % 60
        stamp = f"[2026-02-14 {hour:02d}:{minute:02d}:{second:02d}"
        kind = dice.random()
        if dense and kind < 0.5:
            yield f"{stamp} TP0] Error while handling request {dice.getrandbits(64):x}: the client went away\n"
        elif kind < 0.6:
            yield (
                f"{stamp} TP0] Decode batch, #running-req: {number % 9}, #token: {number}, token usage: 0.01, "
                f"accept len: 2.{number % 90 + 10}, accept rate: 0.6{number % 9}, cuda graph: True, "
                f"gen throughput (token/s): {80 + number % 20}.02, #queue-req: 0\n"
            )
        elif kind < 0.75:
            yield (
                f"{stamp} TP0] Prefill batch, #new-seq: 1, #new-token: {number % 8192}, #cached-token: 0, "
                f"token usage: 0.31, #running-req: 0, #queue-req: {number % 11}, cuda graph: False\n"
            )
        else:
            path = "POST /generate" if kind < 0.98 else "GET /health"
            yield f'{stamp}] INFO:     127.0.0.1:{40000 + number % 20000} - "{path} HTTP/1.1" 200 OK\n'


def write(path: Path, size: int, dense: bool = False) -> None:
    """Write a log of about this size."""
    lines = serving(dense)
    with path.open("w") as file:
        done = file.write(START.read_text())
        while done < size:
            done += file.write(next(lines))


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the file piece by piece."""
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def grep(path: Path, out: Path) -> None:
    """Print the lines that match, as a watch on a host does."""
    words = [word for pattern in kind_of("sglang").watch_patterns() for word in ("-e", pattern)]
    with out.open("wb") as file:
        subprocess.run(["grep", "-E", *words, str(path)], stdout=file, env={**os.environ, "LC_ALL": "C"}, check=True)


def judge(path: Path) -> None:
    """Read the log and judge it."""
    found = diagnose_log(pieces(path))
    if found.verdict.result != "PASS":
        raise ValueError(f"a healthy log was judged {found.verdict}")


def took(work: Callable[[], None]) -> float:
    """Return the seconds that something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(path: Path, rounds: int) -> dict[str, float]:
    """Return the best of both, and their ratio."""
    out = path.with_suffix(".matched")
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(took(lambda: grep(path, out)))
        ours.append(took(lambda: judge(path)))
    return {"grep_s": min(theirs), "diagnose_s": min(ours), "ratio": min(ours) / min(theirs)}


def memory_mib(path: Path) -> float:
    """Return the most memory that was held at once, as Python counts it."""
    tracemalloc.start()
    judge(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 2**20


def main() -> int:
    """Measure, print, and say whether it is within its bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    automaton()
    with tempfile.TemporaryDirectory() as folder:
        log, dense = Path(folder) / "server.log", Path(folder) / "dense.log"
        write(log, args.mb * 10**6)
        write(dense, args.mb * 10**6, dense=True)
        found = measure(log, args.rounds)
        found["memory_mib"] = memory_mib(log)
        worst = measure(dense, 1)
    if args.json:
        print(json.dumps({"mb": args.mb, **found, "dense_ratio": worst["ratio"]}))
    else:
        print(f"{args.mb} MB: grep -E {found['grep_s']:.3f} s, diagnose {found['diagnose_s']:.3f} s")
        print(
            f"ratio {found['ratio']:.2f} (at most {LIMIT}), memory {found['memory_mib']:.0f} MiB (at most {MEMORY_MIB})"
        )
        print(f"dense: ratio {worst['ratio']:.1f}")
    return 0 if found["ratio"] <= LIMIT and found["memory_mib"] <= MEMORY_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
