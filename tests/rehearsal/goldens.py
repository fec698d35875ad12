"""Recorded campaigns: a run's journal into the repository, and out of it again.

Journals are kept compressed: raw outputs repeat themselves, and 4 MB become a quarter of one. Uncompressed, each is a
run folder that every reading command takes.
"""

from __future__ import annotations

import lzma
import shutil
import sys
import tempfile
from pathlib import Path

from agent.journal.export import export

JOURNALS = Path(__file__).parents[1] / "journals"
PACKED = "journal.db.xz"


def names() -> list[str]:
    """Return the recorded campaigns."""
    return sorted(path.parent.name for path in JOURNALS.glob(f"*/{PACKED}"))


def pack(run: Path, dest: Path) -> None:
    """Put the journal of a run, checked and without slack, into the repository; the same bytes give the same file."""
    dest.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        report = export(run / "journal.db", Path(folder) / "copy")
        assert report.ok
        (found,) = Path(folder).rglob("journal.db")
        (dest / PACKED).write_bytes(lzma.compress(found.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
        if (found.parent / "blobs").is_dir():
            shutil.copytree(found.parent / "blobs", dest / "blobs")


def unpack(name: str, folder: Path) -> Path:
    """Lay a recorded campaign out as a run in ``folder``; return its journal."""
    source, run = JOURNALS / name, folder / name
    run.mkdir(parents=True)
    (run / "journal.db").write_bytes(lzma.decompress((source / PACKED).read_bytes()))
    if (source / "blobs").is_dir():
        shutil.copytree(source / "blobs", run / "blobs")
    return run / "journal.db"


if __name__ == "__main__":
    (only,) = Path(sys.argv[1]).iterdir()
    pack(only, Path(sys.argv[2]))
