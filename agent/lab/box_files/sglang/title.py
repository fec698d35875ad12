"""Rename a process the way setproctitle does, so that ``ps``, ``/proc/PID/cmdline`` and ``environ`` look the same.

The argument strings of a process lie on its stack; they are overwritten in place. As with the real thing, the
environment behind them is wiped too, unless ``SPT_NOENV`` is set when the process starts.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


def _areas() -> tuple[int, int, int]:
    """Return the addresses of the arguments' start, their end, and the environment's end (fields 48, 49, 51)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46]), int(fields[48])


def set_title(title: str) -> None:
    """Make the process show as ``title``; its short name (comm) is cut to 15 bytes by the kernel."""
    start, arguments_end, environment_end = _areas()
    end = arguments_end if os.environ.get("SPT_NOENV") else environment_end
    if start and end > start:
        raw = title.encode()[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, raw, len(raw))
    Path("/proc/self/comm").write_text(title[:15])
