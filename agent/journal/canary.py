"""Looking for text that must not be anywhere: declared secrets, in a run's entries, blobs and other files.

Redaction happens before anything is written; this is the check from the other side. A hit names the place and the
number of the line in the list, never the text.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from . import schema
from .blobs import Blobs

CHARS_MIN = 8
"""Shorter lines would be found in ordinary text."""


def forms(secret: str) -> tuple[bytes, ...]:
    """Return the secret as it may stand in a file: plain, inside JSON, inside JSON inside JSON, in base64."""
    once = json.dumps(secret)[1:-1]
    raw = secret.encode()
    # In base64 of a longer text: the middle, which does not depend on what stands before and after.
    whole = [base64.b64encode(bytes(shift) + raw).rstrip(b"=")[4 if shift else 0 : -2] for shift in range(3)]
    return tuple(dict.fromkeys((raw, once.encode(), json.dumps(once)[1:-1].encode(), *whole)))


def find(journal: Path, listed: str) -> Iterator[tuple[int, str, int]]:
    """Yield (entry or 0, place, line of the list) for every secret that is found in the run of this journal."""
    wanted = [
        (number, forms(line))
        for number, line in enumerate((text.strip() for text in listed.splitlines()), 1)
        if len(line) >= CHARS_MIN
    ]
    for seq, place, data in _places(journal):
        for number, texts in wanted:
            if any(text in data for text in texts):
                yield seq, place, number


def _places(journal: Path) -> Iterator[tuple[int, str, bytes]]:
    try:
        connection = schema.connect_reader(journal, damaged=True)
        try:
            for seq, body in connection.execute("SELECT seq, body FROM event ORDER BY seq"):
                yield seq, f"entry {seq}", body
        finally:
            connection.close()
    except schema.READ_ERRORS as error:
        if not isinstance(error, sqlite3.DatabaseError):
            raise
    blobs = Blobs(journal.parent)
    for path in sorted(journal.parent.rglob("*")):
        if not path.is_file():
            continue
        data = blobs.load(path.name) if blobs.folder in path.parents else None
        try:
            yield 0, str(path.relative_to(journal.parent)), data if data is not None else path.read_bytes()
        except OSError:
            continue
