"""What a campaign is made of, as the fold builds it: visits of states, launches of servers, trials with their worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..events import Scored
from ..evidence import Answer
from ..observations import JobState, SectionResult
from ..plan import Trial
from ..values import Verdict, is_count

NO_LAUNCH = "-"
"""The launch of a hypothesis that was decided without one."""

LANE = "main"
"""The one lane there is so far. Lanes are in every entry, so that more of them change no format."""


@dataclass(slots=True)
class Visit:
    """One stay in a state, from the move into it to the move out of it."""

    state: str
    attempt: int
    trial: str
    launch: str
    entered_s: float
    answers: list[Answer] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    told: dict[str, Verdict] = field(default_factory=dict)
    """What was looked at and gates nothing."""
    facts: int = 0
    """How much has been learnt in this visit; verdicts are worked out once for each count (a memo, no more)."""
    judged_at: int = -1
    judged: dict[str, Verdict] = field(default_factory=dict)
    observed_at: int = -1
    observed: dict[str, Verdict] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """lane/trial/launch/state/attempt: where requests of this visit live."""
        return f"{LANE}/{self.trial or '-'}/{self.launch or '-'}/{self.state}/{self.attempt}"

    def of(self, role: str) -> list[Answer]:
        """Return the requests of one role, oldest first, open ones included."""
        return [answer for answer in self.answers if answer.role == role]

    def count(self, role: str) -> int:
        """Return how many requests of a role there are; one that was asked again under its key counts once."""
        return sum(1 for answer in self.answers if answer.role == role and "~" not in answer.request)

    def open(self) -> list[Answer]:
        """Return the requests that have no answer yet."""
        return [answer for answer in self.answers if answer.outcome is None]


@dataclass(slots=True)
class Launch:
    """A server that this run started, or means to."""

    id: str
    trial: str
    keys: list[str] = field(default_factory=list)
    """Every key that a start of it was asked under; more than one after failed attempts."""
    started: JobState | None = None
    asked_s: float = 0.0
    log: list[str] = field(default_factory=list)
    """Lines of its output that matched, in order, each once."""
    offsets: set[int] = field(default_factory=set)
    """Where in its output those lines begin."""
    inspected: Mapping[str, SectionResult] = field(default_factory=dict)
    """What the running server said of itself."""
    health_s: float | None = None
    """Seconds from the start to the move out of health-wait by ``pass``."""
    answers: dict[str, str] = field(default_factory=dict)
    """What it answered to the questions of ``accuracy``, by the way they were asked (``Trial.asked``)."""
    workers: int = 0
    """The most processes of it that were counted."""
    profiled: bool = False
    gone: bool = False
    """A kill has proved that nothing of it lives."""

    @property
    def key(self) -> str:
        """The key of the newest start; '' before any."""
        return self.keys[-1] if self.keys else ""

    @property
    def read_to(self) -> int:
        """Where the last line begins that was seen of its output."""
        return max(self.offsets, default=0)

    def begin(self, key: str, now: float) -> None:
        """Take up a start: another key is another server, of which nothing is known yet."""
        self.asked_s, self.gone = now, False
        if key in self.keys:
            return
        self.keys.append(key)
        self.started, self.health_s, self.profiled, self.inspected = None, None, False, {}
        self.answers.clear()
        self.workers = 0
        self.log.clear()
        self.offsets.clear()

    def heard(self, text: str) -> None:
        """Take in what a watch says of its output."""
        for line in text.split("\n"):
            match line.split(" ", 2):
                case ["log", offset, said] if offset.isdecimal() and int(offset) not in self.offsets:
                    self.offsets.add(int(offset))
                    self.log.append(said)
                case ["workers", number] if is_count(number):
                    self.workers = max(self.workers, int(number))


@dataclass(slots=True)
class Record:
    """A trial on a launch, and what it was worth once that is known."""

    trial: Trial
    launch: str
    scored: Scored | None = None
    benchmarks: list[str] = field(default_factory=list)
    profile: str = ""
    accepted: bool = False
    """The benchmark's guards passed on this launch."""
    finding: str = ""
    """The class of the first thing that went wrong."""
    told: dict[str, Verdict] = field(default_factory=dict)
    """What was looked at and gates nothing, by its last name: a later look at the same replaces it."""
