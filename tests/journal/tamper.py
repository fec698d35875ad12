"""Change a finished journal at random, as somebody could who has the file and time, and see whether the audit tells.

``python tests/journal/tamper.py --rounds 1000`` prints a table. A round counts as *missed* when what can be read of
the journal is not what was written and the audit has no finding. The guards of the file are put back after each
change and, where it says ``rechained``, all hashes are made right again: only heads kept elsewhere show those.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from agent.core.events import Moved  # noqa: E402
from agent.journal import schema  # noqa: E402
from agent.journal.anchors import Anchor, append_anchor  # noqa: E402
from agent.journal.chain import COLUMNS, entry_hash  # noqa: E402
from agent.journal.store import Journal  # noqa: E402
from agent.journal.verify import verify  # noqa: E402
from tests.cli.runs import CAMPAIGN, campaign, opened  # noqa: E402
from tests.support.scripted import Box  # noqa: E402

TEXTS = ("kind", "lane", "host", "boot")
NUMBERS = ("wall_ns", "boot_ns", "epoch")


@dataclass
class Score:
    """What became of the rounds of one kind."""

    tried: int = 0
    harmless: int = 0
    """Only bytes that hold no entry were hit, and nothing else was found."""
    missed: int = 0
    found: Counter[int] = field(default_factory=Counter)


def make_run(folder: Path) -> tuple[Path, Path]:
    """Write a whole campaign; return its database, and the heads that were kept after each move."""
    anchors = folder / "anchors.log"
    journal = Journal.create(folder / "run", CAMPAIGN, {"agent": "test"})

    def keep(entry: object, _: object) -> None:
        if isinstance(getattr(entry, "event", None), Moved):
            append_anchor(anchors, Anchor(journal.campaign, *journal.head, 1.0))

    with journal:
        asyncio.run(campaign(journal, Box(), opened(), watch=keep))
        journal.flush()
        append_anchor(anchors, Anchor(journal.campaign, *journal.head, 1.0))
    return folder / "run" / "journal.db", anchors


def content(path: Path) -> object:
    """Return what the journal says, or why it cannot be read."""
    try:
        connection = schema.connect_reader(path, damaged=True)
        try:
            rows = connection.execute(f"SELECT {COLUMNS} FROM event ORDER BY seq").fetchall()
            return rows, connection.execute("SELECT campaign, hash, info, salvaged FROM genesis").fetchall()
        finally:
            connection.close()
    except schema.READ_ERRORS as error:
        return repr(error)


# ---------------------------------------------------------------- ways to change it


def flip(path: Path, rng: random.Random) -> None:
    """Turn one bit anywhere in the file."""
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def overwrite(path: Path, rng: random.Random) -> None:
    """Write a few random bytes in a row."""
    data = bytearray(path.read_bytes())
    at, count = rng.randrange(len(data)), rng.randrange(1, 64)
    data[at : at + count] = rng.randbytes(len(data[at : at + count]))
    path.write_bytes(data)


def truncate(path: Path, rng: random.Random) -> None:
    """Cut off the end of the file."""
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(1, len(data))])


def edit(path: Path, rng: random.Random) -> None:
    """Change one column of one entry, hashes left as they were."""
    _edit(path, rng, rechain=False)


def edit_rechained(path: Path, rng: random.Random) -> None:
    """Change one column of one entry, and make every hash from there on right."""
    _edit(path, rng, rechain=True)


def _edit(path: Path, rng: random.Random, *, rechain: bool) -> None:
    with Unlocked(path) as connection:
        seq = rng.randint(1, _last(connection))
        column = rng.choice(("body", "body", "body", *TEXTS, *NUMBERS))
        (old,) = connection.execute(f"SELECT {column} FROM event WHERE seq = ?", (seq,)).fetchone()
        if isinstance(old, int):
            new: object = old + rng.choice((-1, 1, 1000))
        elif isinstance(old, bytes):
            at = rng.randrange(len(old))
            new = old[:at] + bytes([old[at] ^ 1 << rng.randrange(7)]) + old[at + 1 :]
        else:
            new = old + "x"
        connection.execute(f"UPDATE event SET {column} = ? WHERE seq = ?", (new, seq))
        if rechain:
            _rechain(connection)


def drop(path: Path, rng: random.Random) -> None:
    """Take an entry out of the middle."""
    with Unlocked(path) as connection:
        connection.execute("DELETE FROM event WHERE seq = ?", (rng.randint(1, _last(connection) - 1),))


def drop_rechained(path: Path, rng: random.Random) -> None:
    """Take an entry out, renumber the rest, make every hash right."""
    with Unlocked(path) as connection:
        seq = rng.randint(1, _last(connection))
        connection.execute("DELETE FROM event WHERE seq = ?", (seq,))
        for (later,) in connection.execute("SELECT seq FROM event WHERE seq > ? ORDER BY seq", (seq,)).fetchall():
            connection.execute("UPDATE event SET seq = ? WHERE seq = ?", (later - 1, later))
        _rechain(connection)


def swap(path: Path, rng: random.Random) -> None:
    """Exchange the contents of two entries of a kind."""
    with Unlocked(path) as connection:
        kind = rng.choice(("judged", "moved", "scored"))
        rows = connection.execute("SELECT seq, body FROM event WHERE kind = ?", (kind,)).fetchall()
        (one, body), (two, other) = rng.sample(rows, 2)
        connection.execute("UPDATE event SET body = ? WHERE seq = ?", (other, one))
        connection.execute("UPDATE event SET body = ? WHERE seq = ?", (body, two))


def roll_back(path: Path, rng: random.Random) -> None:
    """Put an older copy back: all entries after some moment are gone, nothing else is wrong."""
    with Unlocked(path) as connection:
        connection.execute("DELETE FROM event WHERE seq > ?", (rng.randrange(_last(connection)),))


def append(path: Path, rng: random.Random) -> None:
    """Add an entry at the end after the fact, with a right hash."""
    with Unlocked(path) as connection:
        last = connection.execute(f"SELECT {COLUMNS} FROM event ORDER BY seq DESC LIMIT 1").fetchone()
        row = (last[0] + 1, "judged", *last[2:4], None, *last[5:9], last[10], bytes(32), b'{"kind":"judged"}')
        connection.execute(f"INSERT INTO event({COLUMNS}) VALUES({','.join('?' * 12)})", row)
        _rechain(connection)


WAYS: tuple[Callable[[Path, random.Random], None], ...] = (
    flip, overwrite, truncate, edit, edit_rechained, drop, drop_rechained, swap, roll_back, append,
)  # fmt: skip


class Unlocked:
    """A journal open to be changed: its triggers out of the way, and back afterwards."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)

    def __enter__(self) -> sqlite3.Connection:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        self._triggers = self._db.execute(query).fetchall()
        self._db.execute("BEGIN")
        for name, _ in self._triggers:
            self._db.execute(f"DROP TRIGGER {name}")
        return self._db

    def __exit__(self, *_: object) -> None:
        for _name, sql in self._triggers:
            self._db.execute(sql)
        self._db.execute("COMMIT")
        self._db.close()


def _last(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT max(seq) FROM event").fetchone()[0])


def _rechain(connection: sqlite3.Connection) -> None:
    (prev,) = connection.execute("SELECT hash FROM genesis").fetchone()
    for row in connection.execute(f"SELECT {COLUMNS} FROM event ORDER BY seq").fetchall():
        seq, kind, lane, host, request, wall, boot_ns, boot, epoch, _, _, body = row
        asked = None if request is None else request.encode()
        texts = (kind.encode(), lane.encode(), host.encode(), asked)
        digest = entry_hash(prev, seq, *texts, wall, boot_ns, boot.encode(), epoch, body)
        connection.execute("UPDATE event SET prev = ?, hash = ? WHERE seq = ?", (prev, digest, seq))
        prev = digest


# ---------------------------------------------------------------- rounds


def rounds(folder: Path, count: int, seed: int) -> dict[str, Score]:
    """Change and audit ``count`` times; return what came of it, by way."""
    source, anchors = make_run(folder)
    written, rng = content(source), random.Random(seed)
    scores = {way.__name__: Score() for way in WAYS}
    for number in range(count):
        way = WAYS[number % len(WAYS)]
        path = folder / "changed" / "journal.db"
        shutil.rmtree(path.parent, ignore_errors=True)
        shutil.copytree(source.parent, path.parent)
        try:
            way(path, rng)
        except sqlite3.IntegrityError:
            continue  # the file's own constraints would not have it
        score = scores[way.__name__]
        score.tried += 1
        report = verify(path, anchors=[anchors])
        if not report.ok:
            score.found[report.finding] += 1
        elif way is append or content(path) == written:
            # After the last anchor anything can be added: replay tells what of it follows, anchors cannot.
            score.harmless += 1
        else:
            score.missed += 1
    return scores


def main() -> int:
    """Print the table; 1 when anything was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scores = rounds(Path(folder), options.rounds, options.seed)
    print(f"{'way':<16} {'tried':>6} {'found':>6} {'harmless':>9} {'missed':>7}  first finding: how often")
    for name, score in scores.items():
        kinds = ", ".join(f"{finding}: {times}" for finding, times in sorted(score.found.items()))
        total = sum(score.found.values())
        print(f"{name:<16} {score.tried:>6} {total:>6} {score.harmless:>9} {score.missed:>7}  {kinds}")
    return int(any(score.missed for score in scores.values()))


if __name__ == "__main__":
    sys.exit(main())
