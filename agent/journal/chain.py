"""The chain: what exactly is hashed, and how a row is checked against the row before it.

Stored bytes are hashed, never a re-serialisation. Nothing here opens a file.
"""

from __future__ import annotations

import hashlib
import struct

from agent.core.values import canonical

_GENESIS = b"agent-journal/1 genesis\0"

pack_head = struct.Struct(">qqqqiiiii").pack
"""Numbers of an entry and the lengths of its texts. Lengths make the concatenation unambiguous; -1 says NULL."""

COLUMNS = "seq, kind, lane, host, request, wall_ns, boot_ns, boot, epoch, prev, hash, body"
"""The order in which rows are read everywhere in this package."""

Row = tuple[int, bytes, bytes, bytes, bytes | None, int, int, bytes, int, bytes, bytes, bytes]
"""A row in the order of COLUMNS, with every text as the bytes that are stored."""


def genesis_hash(campaign: bytes, info: bytes) -> bytes:
    """Return what the first entry's ``prev`` must be, from the campaign's 16 bytes and the stored info."""
    return hashlib.sha256(_GENESIS + campaign + info).digest()


def info_bytes(info: dict[str, str]) -> bytes:
    """Return the info of a journal in the form in which it is stored and hashed."""
    return canonical(info)


def entry_hash(
    prev: bytes,
    seq: int,
    kind: bytes,
    lane: bytes,
    host: bytes,
    request: bytes | None,
    wall_ns: int,
    boot_ns: int,
    boot: bytes,
    epoch: int,
    body: bytes,
) -> bytes:
    """Return the hash of an entry: SHA-256 over the previous hash, the numbers, the lengths, the texts and the body."""
    asked = -1 if request is None else len(request)
    head = pack_head(seq, wall_ns, boot_ns, epoch, len(kind), len(lane), len(host), asked, len(boot))
    return hashlib.sha256(b"".join((prev, head, kind, lane, host, request or b"", boot, body))).digest()


def first_break(rows: list[Row], seq: int, prev: bytes) -> tuple[int, bytes, str]:
    """Check rows that should go on after ``seq`` with hash ``prev``.

    Return the last good number, its hash, and what is wrong with the next row ('' = all are good).
    The loop is spelled out instead of calling ``entry_hash``: the call would cost a fifth of the whole check.
    """
    sha256, join, pack = hashlib.sha256, b"".join, pack_head
    try:
        for found, kind, lane, host, request, wall, up, boot, epoch, before, digest, body in rows:
            if found != seq + 1:
                return seq, prev, f"entry {seq + 1} is missing: the next one stored is {found}"
            if before != prev:
                return seq, prev, "its prev is not the hash of the entry before it"
            if request is None:
                head = pack(found, wall, up, epoch, len(kind), len(lane), len(host), -1, len(boot))
                data = join((prev, head, kind, lane, host, boot, body))
            else:
                head = pack(found, wall, up, epoch, len(kind), len(lane), len(host), len(request), len(boot))
                data = join((prev, head, kind, lane, host, request, boot, body))
            if sha256(data).digest() != digest:
                return seq, prev, "its content does not have the stored hash"
            seq, prev = found, digest
    except (TypeError, struct.error):
        return seq, prev, "a column holds a value of another type"
    return seq, prev, ""
