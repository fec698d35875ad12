"""Outputs too large for an entry: compressed files ``blobs/aa/<sha256>`` beside the database, named by content.

A blob is on disk before the entry that names it, so a crash leaves at most a blob that nothing names.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from pathlib import Path

from agent.errors import JournalError

from .files import sync_folder, write_durable

BLOB_BYTES_MAX = 256 * 1024 * 1024
"""Limit of one output, in bytes before compression."""
CAMPAIGN_BYTES_MAX = 5 * 1024 * 1024 * 1024
"""Limit of all blobs of a campaign together, in bytes on disk."""
_NAME = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """The blobs of one journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "blobs"
        self._stored_bytes = -1

    def path(self, name: str) -> Path:
        """Return where the blob of that SHA-256 lies; ValueError when it is no such name."""
        if not _NAME.fullmatch(name):
            raise ValueError("a blob is named by 64 hexadecimal digits")
        return self.folder / name[:2] / name

    def has(self, name: str) -> bool:
        """Say whether there is such a blob; its content is not looked at."""
        return bool(_NAME.fullmatch(name)) and self.path(name).is_file()

    def load(self, name: str) -> bytes | None:
        """Return the content, or None when the blob is missing, damaged, or not what its name says."""
        try:
            packed = self.path(name).read_bytes()
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(packed, BLOB_BYTES_MAX + 1)
        except (OSError, ValueError, zlib.error):
            return None
        whole = unpacker.eof and not unpacker.unused_data
        return data if whole and hashlib.sha256(data).hexdigest() == name else None

    def save(self, name: str, data: bytes) -> None:
        """Put ``data``, whose SHA-256 is ``name``, on disk.

        Raises JournalError E_JOURNAL_BLOB when a limit is passed, OSError when the disk refuses.
        """
        if len(data) > BLOB_BYTES_MAX:
            raise JournalError(
                f"an output of {len(data):,} bytes; the limit for one is {BLOB_BYTES_MAX:,}",
                "have the host cut it (head and tail) before it is recorded",
                "E_JOURNAL_BLOB",
            )
        if self.load(name) is not None:
            return
        packed = zlib.compress(data, 1)
        if self._stored_bytes < 0:
            self._stored_bytes = sum(file.stat().st_size for file in self.folder.glob("??/*"))
        if self._stored_bytes + len(packed) > CAMPAIGN_BYTES_MAX:
            raise JournalError(
                f"the outputs of this campaign would pass {CAMPAIGN_BYTES_MAX:,} bytes on disk",
                "end this run and start a new one, or collect fewer and smaller files",
                "E_JOURNAL_BLOB",
            )
        path = self.path(name)
        for folder in (self.folder, path.parent):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                sync_folder(folder.parent)
        write_durable(path, packed)
        self._stored_bytes += len(packed)
