"""The journal beside the least code that could do the same work, in one run; the best of interleaved rounds.

    python benchmarks/journal.py [--events 20000] [--durable 1500] [--rounds 7] [--folder DIR] [--json]

The best round is the one that other work on the machine disturbed least. The references write and read a table
with the same columns and hash the same bytes, without triggers, indexes, checks and classes. ``minimal`` keeps
number, body and two hashes only: less work than a journal has to do, shown to tell what the envelope costs. The
event is an answer of about 600 bytes, as JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sqlite3
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from agent.core.events import EVENTS, Observed
from agent.core.observations import Completed
from agent.core.values import Output
from agent.journal import schema
from agent.journal.opening import read_genesis
from agent.journal.store import BATCH_EVENTS_MAX, Journal
from agent.journal.verify import Report, check_chain

CAMPAIGN = "0123456789abcdef" * 2
BOOT = "5f0c6c1e-8f3b-4f3c-9d7e-000000000001"
TEXT = "#4f1c begin gpu\n0, GPU-1, 71204 MiB, 81559 MiB, 12 %\n" * 6
PACK = struct.Struct(">qqqqiiiii").pack
COLUMNS = "seq, kind, lane, host, request, wall_ns, boot_ns, boot, epoch, prev, hash, body"


def event(number: int) -> Observed:
    return Observed(request=f"main/t{number}/1/probe/1", outcome=Completed(status=0, out=Output.of(TEXT)))


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def raw_append(path: Path, events: list[Observed], batch: int) -> None:
    """Write what a journal writes: the event's JSON in the same envelope, chained."""
    db = connect(path)
    db.execute(
        "CREATE TABLE event(seq INTEGER PRIMARY KEY, kind TEXT, lane TEXT, host TEXT, request TEXT, wall_ns INTEGER,"
        " boot_ns INTEGER, boot TEXT, epoch INTEGER, prev BLOB, hash BLOB, body BLOB)"
    )
    prev, insert = bytes(32), f"INSERT INTO event({COLUMNS}) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    for seq, each in enumerate(events, 1):
        body = EVENTS.dump_json(each)
        texts = (each.kind.encode(), b"main", b"box", each.request.encode(), BOOT.encode())
        head = PACK(seq, seq, seq, 1, *map(len, texts))
        digest = hashlib.sha256(b"".join((prev, head, *texts, body))).digest()
        if batch > 1 and seq % batch == 1:
            db.execute("BEGIN IMMEDIATE")
        db.execute(insert, (seq, each.kind, "main", "box", each.request, seq, seq, BOOT, 1, prev, digest, body))
        if batch > 1 and seq % batch == 0:
            db.execute("COMMIT")
        prev = digest
    if db.in_transaction:
        db.execute("COMMIT")
    db.close()


def minimal_append(path: Path, events: list[Observed], batch: int) -> None:
    """Write number, body and chain only."""
    db = connect(path)
    db.execute("CREATE TABLE event(seq INTEGER PRIMARY KEY, body BLOB, prev BLOB, hash BLOB)")
    prev = bytes(32)
    for seq, each in enumerate(events, 1):
        body = EVENTS.dump_json(each)
        digest = hashlib.sha256(prev + body).digest()
        if batch > 1 and seq % batch == 1:
            db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO event VALUES(?, ?, ?, ?)", (seq, body, prev, digest))
        if batch > 1 and seq % batch == 0:
            db.execute("COMMIT")
        prev = digest
    if db.in_transaction:
        db.execute("COMMIT")
    db.close()


def our_append(journal: Journal, events: list[Observed], durable: bool) -> None:
    stamps: dict[str, Any] = {"lane": "main", "host": "box", "epoch": 1, "boot_id": BOOT, "durable": durable}
    for seq, each in enumerate(events, 1):
        journal.append(each, wall_ns=seq, boot_ns=seq, **stamps)
    journal.flush()


def raw_chain(path: Path, typed: bool) -> int:
    """Read every column, check number, link and hash of each row; ``typed`` also makes each event an object."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    db.text_factory = bytes
    prev, count, sha256, load = bytes(32), 0, hashlib.sha256, EVENTS.validate_json
    rows = db.execute(f"SELECT {COLUMNS} FROM event ORDER BY seq")
    for seq, kind, lane, host, request, wall, up, boot, epoch, before, digest, body in rows:
        count += 1
        head = PACK(seq, wall, up, epoch, len(kind), len(lane), len(host), len(request), len(boot))
        found = sha256(b"".join((prev, head, kind, lane, host, request, boot, body))).digest()
        if seq != count or before != prev or found != digest:
            raise SystemExit(f"entry {seq}")
        if typed:
            keep = (load(body), lane.decode(), host.decode(), boot.decode())  # noqa: F841 - as a caller would hold it
        prev = digest
    db.close()
    return count


def minimal_chain(path: Path) -> int:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    prev, count, sha256 = bytes(32), 0, hashlib.sha256
    for seq, body, before, digest in db.execute("SELECT seq, body, prev, hash FROM event ORDER BY seq"):
        count += 1
        if seq != count or before != prev or sha256(prev + body).digest() != digest:
            raise SystemExit(f"entry {seq}")
        prev = digest
    db.close()
    return count


def our_chain(path: Path) -> int:
    db, report = schema.connect_reader(path), Report("")
    seq, _ = check_chain(db, read_genesis(db, path).hash, report)
    db.close()
    if not report.ok:
        raise SystemExit(str(report.flaws[0]))
    return seq


def our_read(path: Path) -> int:
    with Journal.open_reader(path) as journal:
        return sum(1 for _ in journal.entries())


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(folder: Path, count: int, durable: int, rounds: int) -> dict[str, float]:
    """Return events per second by name: from the best of the rounds, in which everything runs in turn."""
    many, few = [event(number) for number in range(count)], [event(number) for number in range(durable)]
    seconds: dict[str, list[float]] = {}

    def note(name: str, events: int, work: Callable[[], Any]) -> None:
        seconds.setdefault(name, []).append(timed(work) / events)

    for number in range(rounds):
        place = folder / str(number)
        place.mkdir()
        with Journal.create(place / "durable", CAMPAIGN, {}) as journal:
            works = [
                ("append: ours", lambda journal=journal: our_append(journal, few, True)),
                ("append: raw", lambda place=place: raw_append(place / "a.db", few, 1)),
                ("append: minimal", lambda place=place: minimal_append(place / "b.db", few, 1)),
            ]
            for name, work in works if number % 2 else reversed(works):
                note(name, durable, work)
        with Journal.create(place / "batch", CAMPAIGN, {}) as journal:
            works = [
                ("batch: ours", lambda journal=journal: our_append(journal, many, False)),
                ("batch: raw", lambda place=place: raw_append(place / "raw.db", many, BATCH_EVENTS_MAX)),
                ("batch: minimal", lambda place=place: minimal_append(place / "minimal.db", many, BATCH_EVENTS_MAX)),
            ]
            for name, work in works if number % 2 else reversed(works):
                note(name, count, work)
        ours, raw, minimal = place / "batch" / "journal.db", place / "raw.db", place / "minimal.db"
        for _ in range(3):
            note("verify: ours", count, lambda ours=ours: our_chain(ours))
            note("verify: raw", count, lambda raw=raw: raw_chain(raw, typed=False))
            note("verify: minimal", count, lambda minimal=minimal: minimal_chain(minimal))
            note("read: ours", count, lambda ours=ours: our_read(ours))
            note("read: raw", count, lambda raw=raw: raw_chain(raw, typed=True))
        shutil.rmtree(place)
    return {name: 1 / min(values) for name, values in seconds.items()}


GOALS = {"append": (0.8, 0.9), "batch": (0.8, 0.9), "verify": (0.7, 0.9), "read": (0.8, 0.8)}
WORDS = {
    "append": "durable append",
    "batch": f"batches of {BATCH_EVENTS_MAX}",
    "verify": "chain verification",
    "read": "typed read",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--durable", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure; default: the temporary one")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        rates = measure(Path(folder), given.events, given.durable, given.rounds)
    ratios = {name: rates[f"{name}: ours"] / rates[f"{name}: raw"] for name in GOALS}
    if given.json:
        print(json.dumps({"events_per_s": rates, "ratios": ratios}, indent=1))
    else:
        size = len(EVENTS.dump_json(event(1)))
        print(f"events of {size} bytes; SQLite {sqlite3.sqlite_version}; events/s, best of {given.rounds} rounds\n")
        print(f"{'':20}{'ours':>10}{'raw':>10}{'ratio':>8}{'goal':>12}{'minimal':>10}{'ratio':>8}")
        for name, (first, final) in GOALS.items():
            ours, raw, minimal = (rates.get(f"{name}: {who}") for who in ("ours", "raw", "minimal"))
            tail = f"{minimal:>10,.0f}{ours / minimal:>8.2f}" if minimal else ""
            print(f"{WORDS[name]:20}{ours:>10,.0f}{raw:>10,.0f}{ratios[name]:>8.2f}{f'{first}/{final}':>12}{tail}")
    return int(any(ratios[name] < first for name, (first, _) in GOALS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
