"""What a guard may look at: everything observed so far that concerns one visit to a state, read on demand.

Reading is remembered, so that a verdict can name the observations it rests on. An answer that was lost, timed
out or cannot be parsed reads as None: guards turn that into UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .actions import Action
from .observations import Completed, JobState, Outcome, SectionResult, read_job_state, read_sections
from .values import MissingBlobError, is_count

if TYPE_CHECKING:
    from .plan import Plan, Server, Trial
    from .servers.base import ServerKind


@dataclass(slots=True)
class Answer:
    """A request, what it asked, and what is known of its answer so far."""

    request: str
    action: Action
    role: str
    """What the request is for, in the words of the state that made it: ``probe``, ``watch``, ``inspect`` …"""
    asked_s: float
    outcome: Outcome | None = None
    closed_s: float | None = None
    parts: list[tuple[float, str]] = field(default_factory=list)
    """Parts of a stream, each with the campaign time at which it came."""
    superseded: bool = False
    """The same start was asked again under its key; that answer counts."""

    def text(self) -> str | None:
        """Return standard output of a completed request, or None when nothing is known."""
        if not isinstance(self.outcome, Completed):
            return None
        try:
            return self.outcome.out.string()
        except MissingBlobError:
            return None


@dataclass(frozen=True)
class WatchFacts:
    """What a watch has shown so far, in order."""

    state: JobState | None = None
    health: tuple[tuple[float, int], ...] = ()
    """(campaign time, HTTP status); 0 = no answer."""
    workers: int | None = None
    workers_max: int = 0
    log: tuple[tuple[float, str], ...] = ()
    """(campaign time, line) of matched lines of the server's output."""
    said: tuple[str, ...] = ()
    """The last lines of all, matched or not, once the job has ended."""


def read_watch(parts: Iterable[tuple[float, str]]) -> WatchFacts:
    """Fold the lines of a watch stream; lines of a kind not known here are skipped."""
    state: JobState | None = None
    health: list[tuple[float, int]] = []
    log: list[tuple[float, str]] = []
    said: list[str] = []
    seen: set[str] = set()
    workers, most = None, 0
    for at, text in parts:
        for line in text.split("\n"):
            word, _, rest = line.partition(" ")
            if word == "state":
                state = read_job_state(rest)
            elif word == "health" and is_count(rest):
                health.append((at, int(rest)))
            elif word == "workers" and is_count(rest):
                workers = int(rest)
                most = max(most, workers)
            elif word == "log":
                if rest not in seen:  # two watches may have read the same line: the same words at the same place
                    log.append((at, rest.partition(" ")[2]))
                seen.add(rest)
            elif word == "said":
                said.append(rest)
    return WatchFacts(state, tuple(health), workers, most, tuple(log), tuple(said))


@dataclass(slots=True)
class Evidence:
    """The view that guards get. ``answers`` are those of this visit, oldest first."""

    plan: Plan
    server: Server
    kind: ServerKind
    trial: Trial | None
    now: float
    entered_s: float
    answers: Sequence[Answer]
    launch_key: str = ""
    launched: JobState | None = None
    """What the host said of the server's job when it was started (supervisor's identity)."""
    ours: frozenset[str] = frozenset()
    """Keys of every server this run has launched."""
    confirmed: frozenset[str] = frozenset()
    baseline: Mapping[str, SectionResult] = field(default_factory=dict)
    """Sections of the first probe of this host in this run: what it looked like before we did anything."""
    launch_log: tuple[str, ...] = ()
    """Matched lines of the server's output since its launch."""
    results: Sequence[str] = ()
    """Standard output of each benchmark repeat of this trial on this launch, oldest first."""
    answered: str = ""
    """What this launch answered to the questions of ``accuracy``; '' = it was not asked, or nothing came back."""
    reference: str = ""
    """What the baseline's first launch answered to them."""
    passed: frozenset[str] = frozenset()
    """States that this trial on this launch was seen to leave by ``pass``."""
    finding: str = ""
    """The class of the first thing that went wrong on this launch; '' = nothing did."""
    profile: str = ""
    """Standard output of this trial's profile; '' when none was taken."""
    read: set[str] = field(default_factory=set)

    @property
    def benchmarks(self) -> Sequence[str]:
        """The results of the benchmark, remembering that they were read."""
        self.all("bench")
        return self.results

    def latest(self, role: str) -> Answer | None:
        """Return the newest closed answer to a request of this role, and remember that it was read."""
        for answer in reversed(self.answers):
            if answer.role == role and answer.outcome is not None:
                self.read.add(answer.request)
                return answer
        return None

    def all(self, role: str) -> list[Answer]:
        """Return all closed answers of this role, oldest first."""
        found = [answer for answer in self.answers if answer.role == role and answer.outcome is not None]
        self.read.update(answer.request for answer in found)
        return found

    def sections(self, role: str = "probe") -> Mapping[str, SectionResult] | None:
        """Return the sections of the newest probe of this role; None when its answer is not known."""
        answer = self.latest(role)
        text = answer.text() if answer else None
        return read_sections(text) if text is not None else None

    def watch(self) -> WatchFacts | None:
        """Return what the newest watch has shown so far, closed or not, and what was read of the log after it."""
        parts: list[tuple[float, str]] = []
        for answer in reversed(self.answers):
            if answer.role in ("watch", "drain"):
                self.read.add(answer.request)
                parts = answer.parts + parts
            if answer.role == "watch":
                return read_watch(parts)
        return read_watch(parts) if parts else None
