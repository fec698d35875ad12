"""A journal of a million entries: what auditing and showing it cost, beside the least code that checks a chain.

    python benchmarks/large.py [--entries 1000000] [--folder DIR] [--keep] [--json]

The journal has the real mix of entries: a recorded rehearsal's trials, laid one after the other under new names, so
that its moves and verdicts are legal ones. ``--parts 400`` has every short line of a watch so many times: fewer
launches, of many hours each, as a campaign of that size has. Each figure is taken in a process of its own, with its
peak of memory; the reference reads every column of every row and checks number, link and hash, in the same run.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from agent.core.events import Opened
from agent.journal.chain import COLUMNS, Row, entry_hash
from agent.journal.store import INSERT, Journal

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "journals" / "eagle3-lab" / "journal.db.xz"
GOALS = {"audit": 2.0, "memory_mib": 300.0, "show_s": 1.0}


def recorded(folder: Path) -> list[Row]:
    """Return the rows of the recorded rehearsal."""
    path = folder / "golden.db"
    path.write_bytes(lzma.decompress(GOLDEN.read_bytes()))
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    rows = connection.execute(f"SELECT {COLUMNS} FROM event ORDER BY seq").fetchall()
    connection.close()
    path.unlink()
    return rows


def one_trial(rows: list[Row]) -> tuple[list[Row], list[Row], bytes, bytes]:
    """Return what comes before the first candidate, its entries, and the names of trial and launch in them."""
    places = [number for number, row in enumerate(rows) if row[1] == b"proposed"]
    begin, end = places[2:4]
    event = json.loads(rows[begin][-1])
    return rows[:begin], rows[begin:end], event["trial"]["id"].encode(), event["launch"].encode()


def write(path: Path, wanted: int, parts: int = 1) -> int:
    """Write a journal of about ``wanted`` entries; return how many there are."""
    rows = recorded(path.parent)
    opening, trial, name, launch = one_trial(rows)
    trial = [row for row in trial for _ in range(parts if row[1] == b"noted" and len(row[-1]) < 400 else 1)]
    campaign = Opened.model_validate_json(rows[0][-1]).campaign
    Journal.create(path, campaign, {"agent": "benchmark"}).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    (prev,) = connection.execute("SELECT hash FROM genesis").fetchone()
    connection.execute("BEGIN")
    seq, tile = 0, 0
    while seq < wanted:
        if not seq:
            pairs: tuple[tuple[bytes, bytes], ...] = ()
        else:
            tile, new = tile + 1, (b"t%d" % tile, b"l%d" % (tile + 3))
            pairs = (
                (b"/%s/%s/" % (name, launch), b"/%s/%s/" % new),
                (b'"%s"' % name, b'"%s"' % new[0]),
                (b'"%s"' % launch, b'"%s"' % new[1]),
            )
        for row in trial if seq else opening:
            _, kind, lane, host, request, _, _, boot, epoch, _, _, body = row
            for old, now in pairs:
                body = body.replace(old, now)
                request = request.replace(old, now) if request is not None else None
            seq += 1
            stamp = 1_700_000_000_000_000_000 + seq * 1_000_000
            digest = entry_hash(prev, seq, kind, lane, host, request, stamp, seq * 10**6, boot, epoch, body)
            texts = [kind.decode(), lane.decode(), host.decode(), None if request is None else request.decode()]
            connection.execute(INSERT, (seq, *texts, stamp, seq * 10**6, boot.decode(), epoch, prev, digest, body))
            prev = digest
    connection.execute("COMMIT")
    connection.close()
    return seq


RAW = """
import hashlib, sqlite3, struct, sys
pack, sha256 = struct.Struct(">qqqqiiiii").pack, hashlib.sha256
db = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
db.text_factory = bytes
(prev,), count = db.execute("SELECT hash FROM genesis").fetchone(), 0
for seq, kind, lane, host, request, wall, up, boot, epoch, before, digest, body in db.execute(
    "SELECT seq, kind, lane, host, request, wall_ns, boot_ns, boot, epoch, prev, hash, body FROM event ORDER BY seq"):
    count += 1
    asked = -1 if request is None else len(request)
    head = pack(seq, wall, up, epoch, len(kind), len(lane), len(host), asked, len(boot))
    found = sha256(b"".join((prev, head, kind, lane, host, request or b"", boot, body))).digest()
    if seq != count or before != prev or found != digest:
        raise SystemExit(f"entry {seq}")
    prev = digest
"""


def measured(*words: str) -> tuple[float, float]:
    """Run a program to its end; return seconds and its peak of memory in MiB."""
    began = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})
    _, status, usage = os.wait4(child.pid, 0)
    took = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 7):  # 7: what is tiled is not what the campaign would decide
        raise SystemExit(f"{' '.join(words)}: exit {child.returncode}")
    return took, usage.ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, default=1, help="how often each watched line is there")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="where the journal is made; default: a temporary one")
    parser.add_argument("--keep", action="store_true", help="leave the journal there, and use one that is there")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run = (given.folder or Path(temporary)) / "large"
        run.mkdir(parents=True, exist_ok=True)
        path = run / "journal.db"
        count = write(path, given.entries, given.parts) if not path.exists() else given.entries
        agent = (sys.executable, "-m", "agent.cli.main")
        works = {
            "chain": (sys.executable, "-c", RAW, str(path)),
            "audit": (*agent, "audit", str(run), "--no-replay", "--brief"),
            "show": (*agent, "show", str(run)),
        }
        best: dict[str, tuple[float, float]] = {}
        for _ in range(given.rounds):
            for name, words in works.items():
                best[name] = min(best.get(name, (9e9, 0.0)), measured(*words))
        size = path.stat().st_size
        if not given.keep:
            path.unlink()
    ratio = best["audit"][0] / best["chain"][0]
    found = {"audit": ratio, "memory_mib": best["audit"][1], "show_s": best["show"][0]}
    if given.json:
        print(json.dumps({"entries": count, "bytes": size, **found}))
    else:
        print(
            f"{count:,} entries, {size / 2**20:,.0f} MiB; best of {given.rounds} rounds; own memory of this: "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB\n"
        )
        for name, (took, memory) in best.items():
            print(f"{name:8}{took:>8.2f} s {memory:>8.0f} MiB")
        print(f"\naudit without replay: {ratio:.2f} x the chain (goal 2); {best['audit'][1]:.0f} MiB (goal 300)")
        print(f"show: {best['show'][0]:.2f} s (goal 1)")
    return int(any(found[name] > goal for name, goal in GOALS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
