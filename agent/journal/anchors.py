"""Anchors: heads of journals written down elsewhere. Only they show that a tail is gone or that an old copy is back.

A head commits to everything before it, so one anchor per step is enough. Where anchors are kept is the caller's affair.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_LINE = re.compile(r"(?:head: )?([0-9a-f]{32}) (\d{1,18}) ([0-9a-f]{64})(?: (\d{1,12}(?:\.\d{1,9})?))?", re.ASCII)


def anchors_file() -> Path:
    """Return where this machine keeps the heads of its runs: outside every run's folder."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "agent" / "anchors.log"


class Anchor(NamedTuple):
    """A head at a moment: campaign (32 hex), entry number, its hash (64 hex), uptime of who wrote it in seconds."""

    campaign: str
    seq: int
    hash: str
    uptime_s: float = 0.0

    def line(self) -> str:
        """Return the anchor as it stands in a file, without the newline."""
        return f"{self.campaign} {self.seq} {self.hash} {self.uptime_s:.2f}"

    def shown(self) -> str:
        """Return the anchor as a run prints it in its last line; a saved terminal output is a file of anchors."""
        return f"head: {self.campaign} {self.seq} {self.hash}"


def read_anchor(line: str) -> Anchor | None:
    """Return the anchor in a line of a file or of a run's output, or None when the line is no anchor."""
    found = _LINE.fullmatch(line.strip())
    return Anchor(found[1], int(found[2]), found[3], float(found[4] or 0)) if found else None


def append_anchor(path: Path, anchor: Anchor) -> None:
    """Add an anchor to the file, in one write, on disk when this returns; OSError when the disk refuses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(handle).st_size
        # After a line that a crash cut short, ours begins a line of its own.
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, f"{chr(10) if torn else ''}{anchor.line()}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def read_anchors(path: Path, campaign: str = "") -> list[Anchor]:
    """Return the anchors in a file, of one campaign or of all; other lines are passed over. OSError if unreadable."""
    lines = path.read_text(errors="replace").splitlines()
    found = [anchor for line in lines if (anchor := read_anchor(line)) is not None]
    return [anchor for anchor in found if campaign in ("", anchor.campaign)]
