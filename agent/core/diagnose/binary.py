"""Files that are no text: what they are by their first bytes, and what to do with them instead."""

from __future__ import annotations

_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (
        b"SQLite format 3\0",
        "an SQLite database",
        "a campaign's journal is read with `agent show`, `agent audit` and `agent logs`, given the run's folder",
    ),
    (b"\x1f\x8b", "compressed by gzip", "unpack it first: gzip -dc FILE | agent diagnose -"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it first: zstd -dc FILE | agent diagnose -"),
    (b"\xfd7zXZ\0", "compressed by xz", "unpack it first: xz -dc FILE | agent diagnose -"),
    (b"BZh", "compressed by bzip2", "unpack it first: bzip2 -dc FILE | agent diagnose -"),
    (b"PK\x03\x04", "a zip archive", "unpack it first, and name the files in it"),
    (b"\x7fELF", "a program or a core dump", "give what it printed, not the program"),
    (b"GGUF", "weights (GGUF)", "give the log of the server that loads them"),
    (b"\xff\xfe", "text in UTF-16", "turn it into UTF-8 first: iconv -f UTF-16 -t UTF-8 FILE | agent diagnose -"),
    (b"\xfe\xff", "text in UTF-16", "turn it into UTF-8 first: iconv -f UTF-16 -t UTF-8 FILE | agent diagnose -"),
    (b"\x89PNG", "a picture", "give the text that is in it"),
    (b"\xff\xd8\xff", "a picture", "give the text that is in it"),
)
_TEXT = bytes({7, 8, 9, 10, 12, 13, 27, *range(0x20, 0x7F), *range(0x80, 0x100)})
"""Bytes that stand in text of any encoding with single bytes for ASCII, and in what terminals show."""
_SHARE = 0.02
"""So many other bytes make it no text. Holes of zeros, as rotated logs have them, are not counted."""
_PIECE = 8192


class BinaryError(ValueError):
    """``what`` the file is, and the ``remedy``."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


def refuse_binary(head: bytes) -> None:
    """Raise BinaryError when the file that begins with ``head`` is no text."""
    for magic, what, remedy in _MAGIC:
        if head.startswith(magic):
            raise BinaryError(what, remedy)
    if len(head) > 10 and head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 32:
        raise BinaryError("weights (safetensors)", "give the log of the server that loads them")
    full = head.replace(b"\0", b"")
    for at in range(0, len(full), _PIECE):
        piece = full[at : at + _PIECE]
        if len(piece.translate(None, _TEXT)) > _SHARE * max(len(piece), 256):
            raise BinaryError("no text (control characters between others)", "give what a program printed or logged")
    if head and not full:
        raise BinaryError("nothing but zeros", "the disk was full, or the file was cut: take an older copy")
