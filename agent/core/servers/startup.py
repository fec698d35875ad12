"""What a log tells about a start, for people and reports: how long each part took, which ranks, which models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import re2 as re

from ..probes.logs import clock_of, pairs, rank_of, stamp_of

if TYPE_CHECKING:
    from .base import ServerKind

_SECONDS = re.compile(r"(?:Time elapsed: |elapsed[=:] ?)(\d+(?:\.\d+)?) ?s")
_MODEL = re.compile(r"\btype=([A-Za-z0-9_]+)")
_TOTAL = re.compile(r"\bmax_total_num_tokens=(\d{1,15})")
_FREE = re.compile(r"\bavail mem=(\d+(?:\.\d+)?) GB")


@dataclass
class Startup:
    """The course of a start. Times are the log's own and good for differences only."""

    phase: str = ""
    at: dict[str, float] = field(default_factory=dict)
    """Time of the first line of each phase."""
    last_progress: float | None = None
    """Time of the newest line that moved the start on."""
    last_progress_at: str = ""
    stamps: dict[str, str] = field(default_factory=dict)
    """The same times as ``at``, the way the log writes them."""
    last: float | None = None
    """Time of the newest line of any kind."""
    stalls: int = 0
    """Complaints about waiting since then."""
    ranks: set[int] = field(default_factory=set)
    capture_s: float | None = None
    weights_s: float | None = None
    models: list[str] = field(default_factory=list)
    """Classes of the models that were loaded: the target, then the draft."""
    tokens: int | None = None
    free_gb: dict[int, float] = field(default_factory=dict)
    """Free memory that each rank reported last."""
    accept_len: float | None = None
    throughput: float | None = None

    @property
    def startup_s(self) -> float | None:
        """Seconds from the first line of a phase to the word that it is up."""
        if "READY" not in self.at:
            return None
        return self.at["READY"] - min(self.at.values())

    @property
    def balanced(self) -> bool:
        """Whether all ranks have nearly the same memory free: within a tenth, as the engine's own check."""
        return not self.free_gb or min(self.free_gb.values()) >= 0.9 * max(self.free_gb.values())


def read_startup(kind: ServerKind, lines: Iterable[str]) -> Startup:
    """Read a log, or its matched lines, from its first line on."""
    found = Startup()
    advance = getattr(kind, "advance", None)
    stalled = getattr(kind, "stalled", None)
    for line in lines:
        at = clock_of(line)
        found.last = at if at is not None else found.last
        rank = rank_of(line)
        if rank is not None:
            found.ranks.add(rank)
            if match := _FREE.search(line):
                found.free_gb[rank] = float(match[1])
        phase = kind.phase(line)
        if phase is not None:
            found.phase = advance(found.phase, phase) if advance is not None else phase
            found.last_progress, found.stalls = at if at is not None else found.last_progress, 0
            if at is not None:
                found.last_progress_at = stamp_of(line)
                found.at.setdefault(found.phase, at)
                found.stamps.setdefault(found.phase, found.last_progress_at)
        elif stalled is not None and stalled(line):
            found.stalls += 1
        _numbers(found, line, phase)
    return found


def _numbers(found: Startup, line: str, phase: str | None) -> None:
    seconds = _SECONDS.search(line)
    if seconds and phase == "CAPTURED":
        found.capture_s = max(found.capture_s or 0.0, float(seconds[1]))
    if "Load weight end" in line:
        model = _MODEL.search(line)
        if model and model[1] not in found.models:
            found.models.append(model[1])
        if seconds and len(found.models) < 2:
            found.weights_s = max(found.weights_s or 0.0, float(seconds[1]))
    if total := _TOTAL.search(line):
        found.tokens = int(total[1])
    if "Decode batch" in line:
        values = pairs(line)
        length, speed = values.get("accept len"), values.get("gen throughput (token/s)")
        found.accept_len = float(length) if isinstance(length, (int, float)) else found.accept_len
        found.throughput = float(speed) if isinstance(speed, (int, float)) else found.throughput
