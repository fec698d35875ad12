"""The loop and the command line: replay rate, overhead of a trial, start of cheap commands.

Ratios are taken side by side in one run; absolute times of a shared machine say little. Goals: replay of a recorded
campaign >= 5,000 entries/s; `agent --help` and `agent runs` <= 1.5 x `python -c "import click"`; overhead of a trial
(not the server's start, not the benchmark) <= 1.0 s.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from agent.core.events import Moved, Noted, Observed, Proposed, Requested, Scored  # noqa: E402
from agent.engine import Ledger, drive  # noqa: E402
from agent.journal.store import Journal  # noqa: E402
from tests.support.tiny import make  # noqa: E402


def replay_rate(path: Path, rounds: int) -> tuple[int, float]:
    """Return entries of a journal, and entries derived anew in a second (best of the rounds)."""
    best, entries = 0.0, 0
    for _ in range(rounds):
        began = time.perf_counter()
        with Journal.open_reader(path) as journal:
            ledger = Ledger(journal.entries(), store=None, hydrate=journal.hydrate)
            asyncio.run(drive(ledger, None))
        entries = ledger.last_seq
        best = max(best, entries / (time.perf_counter() - began))
    return entries, best


def overheads(path: Path) -> list[float]:
    """Return for each trial the seconds that were neither start nor benchmark nor profile."""
    found, began, away = [], 0, 0
    asked: dict[str, int] = {}
    with Journal.open_reader(path) as journal:
        for entry in journal.entries():
            event, at = entry.event, entry.boot_ns
            if isinstance(event, Proposed):
                began, away = at, 0
            elif isinstance(event, Requested):
                asked[event.request] = at
            elif isinstance(event, Observed) and event.request.rsplit("/", 1)[1].startswith(("bench", "sample")):
                away += at - asked[event.request]
            elif isinstance(event, Noted) and event.part.text and "health 200" in event.part.text:
                away += at - asked.pop(event.request, at)  # the start, from the first look at it
            elif isinstance(event, Scored):
                found.append((at - began - away) / 1e9)
            elif isinstance(event, Moved) and event.outcome == "resumed":
                began = 0
    return found


def wall(command: list[str], rounds: int) -> float:
    """Return the median wall seconds of a command."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=ROOT)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--journal", type=Path, help="replay this one as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tiny = make(Path(folder))
        done = tiny.agent("run", str(tiny.playbook), "--plain")
        assert done.returncode in (0, 1, 6), done.stdout + done.stderr
        journals = [tiny.run() / "journal.db"] + ([options.journal] if options.journal else [])
        for path in journals:
            entries, rate = replay_rate(path, options.rounds)
            print(f"replay of {entries} entries: {rate:,.0f} entries/s (goal 5,000)")
        spent = overheads(journals[0])
        print(f"overhead of a trial: median {statistics.median(spent):.2f} s of {len(spent)} (goal 1.0 s)")
        print("   each: " + ", ".join(f"{seconds:.2f}" for seconds in spent))
        click = wall([sys.executable, "-c", "import click"], options.rounds)
        for name, words in (("--help", ["--help"]), ("runs", ["runs", "--runs", str(tiny.runs)])):
            seconds = wall([sys.executable, "-m", "agent", *words], options.rounds)
            print(f"agent {name}: {seconds:.3f} s = {seconds / click:.2f} x `import click` (goal 1.5 x)")


if __name__ == "__main__":
    main()
