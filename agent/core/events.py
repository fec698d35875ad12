"""The entries of the journal: what the world said, and what follows from it.

Inputs cannot be recomputed; derived events are recomputed in replay and compared. An event is never changed:
a new need is a new kind or a new optional field (and a new FORMAT number). Volatile stamps stand in the envelope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

from pydantic import Field, TypeAdapter

from .actions import AnyAction
from .noise import Drift, Spread
from .observations import Completed, Outcome
from .pareto import FrontRow
from .plan import Plan, Trial
from .values import Output, Value, Verdict

FORMAT = 1
"""The number of the entry format. It grows when a kind or a field is added."""

LOGIC = 3
"""The number of the decision logic. It grows when the same observations would lead elsewhere."""


# ---------------------------------------------------------------- inputs


class Options(Value):
    """What the operator allowed on the command line."""

    yes: bool = False
    """Confirm what the playbook names (``server.replaces``) without asking."""
    rebase: bool = False
    """Go on although the playbook or the host changed since the run began."""
    take_over: int | None = None
    """Take the host's lease from the controller that holds this epoch."""
    revert: bool = False
    """Put everything back that this run changed on hosts, also after its end."""


class Opened(Value):
    """A run begins: what was asked, resolved in full."""

    kind: Literal["opened"] = "opened"
    format: int = FORMAT
    logic: int = LOGIC
    campaign: str = Field(pattern=r"^[0-9a-f]{32}$")
    plan: Plan
    playbook: Output
    """The playbook's own bytes, for the auditor."""
    options: Options = Options()
    versions: dict[str, str] = {}
    controller: str = ""
    adopted: tuple[str, ...] = ()
    """Keys of servers that an earlier run of ours left, and that this run may end as its own."""
    rehearsal: str = ""
    """Not empty: hosts are simulated, and this says how. Shown wherever numbers of this run appear."""


class Resumed(Value):
    """Another process goes on with the run. ``gap_s`` is campaign time that passed in between, clamped."""

    kind: Literal["resumed"] = "resumed"
    format: int = FORMAT
    logic: int = LOGIC
    options: Options = Options()
    digests: dict[str, str] = {}
    versions: dict[str, str] = {}
    controller: str = ""
    gap_s: float = Field(default=0.0, ge=0)
    plan: Plan | None = None
    """With ``rebase``: the plan that holds from here on. Measurements stay; what they are compared with may not."""
    adopted: tuple[str, ...] = ()
    """Keys of servers that other runs of ours left, and that this run may end as its own from here on."""


class Noted(Value):
    """A part of the answer to a request that goes on."""

    kind: Literal["noted"] = "noted"
    request: str
    part: Output


class Observed(Value):
    """The answer to a request, exactly once; it closes the request."""

    kind: Literal["observed"] = "observed"
    request: str
    outcome: Outcome


class Stop(Value):
    """Stop the campaign and what it started, in order; nothing else is touched."""

    order: Literal["stop"] = "stop"
    revert: bool = False
    """Every change on the host goes back, also those that were to stay."""


class Interrupt(Value):
    """Stop scheduling and leave everything as it is (Ctrl-C once)."""

    order: Literal["interrupt"] = "interrupt"


class Note(Value):
    """A remark of the operator's, for the record."""

    order: Literal["note"] = "note"
    text: str


class Confirm(Value):
    """The operator's answer to the Ask with this digest."""

    order: Literal["confirm"] = "confirm"
    digest: str
    yes: bool


Order = Annotated[Stop | Interrupt | Note | Confirm, Field(discriminator="order")]


class Instructed(Value):
    """An order of the operator's. ``by`` is user@host of who gave it."""

    kind: Literal["instructed"] = "instructed"
    order: Order
    by: str = ""


# ---------------------------------------------------------------- derived


class Requested(Value):
    """The campaign wants something done. ``request`` is a path: lane/trial/launch/state/attempt/action."""

    kind: Literal["requested"] = "requested"
    request: str
    action: AnyAction


class Judged(Value):
    """A guard's verdict on what had been observed in a visit to a state (``at`` is lane/trial/launch/state/attempt)."""

    kind: Literal["judged"] = "judged"
    at: str
    guard: str
    verdict: Verdict
    gates: bool = True
    """False: it was only looked at, and opens and closes nothing."""


class Moved(Value):
    """A lane goes from one state to the next. ``because`` is prose."""

    kind: Literal["moved"] = "moved"
    lane: str
    source: str
    outcome: str
    state: str
    trial: str = ""
    launch: str = ""
    attempt: int = 1
    because: str = ""


class Proposed(Value):
    """The next trial, or the next launch of one that was seen before."""

    kind: Literal["proposed"] = "proposed"
    trial: Trial
    launch: str
    """The launch it is measured on: a new one, or one that is up and equal."""
    because: str = ""


class Scored(Value):
    """What a trial's benchmark on one launch is worth. ``values`` are means over the repeats, by metric."""

    kind: Literal["scored"] = "scored"
    trial: str
    launch: str
    valid: bool
    finding: str = ""
    values: dict[str, float] = {}
    deviations: dict[str, float] = {}
    """Standard deviation of the repeats within this launch, by metric."""
    repeats: int = 0
    profile: dict[str, float] = {}
    """Shares of the phases (or of what else was profiled), by name; empty when they are not known."""
    kernels: dict[str, float] = {}
    """Shares of the classes of work on the GPU, by name."""
    busy: float | None = None
    """The part of the time in which anything ran on the GPU."""
    unprofiled: str = ""
    """Why phases are not known, where a profile was taken."""
    verdict: Literal["", "supported", "refuted", "undecided"] = ""
    """Of a hypothesis: what its test came to."""
    because: str = ""
    effective: str = ""
    """Digest of the effective configuration that was measured."""
    configuration: str = ""
    """Digest of what was asked for and searched over, as the server says that it took effect: trials with the same
    one are the same configuration, however they were written. '' = the server does not say."""


class Concluded(Value):
    """The decision. ``ratio`` is winner over baseline; the interval is two-sided at ``level``."""

    kind: Literal["concluded"] = "concluded"
    word: Literal[
        "goal met",
        "improved",
        "trade-off",
        "not improved",
        "not conclusive",
        "invalid",
        "none",
        "found",
        "not found",
    ]
    metric: str = ""
    winner: str = ""
    baseline: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    level: float = 0.95
    launches: int = 0
    """Confirmation launches behind the interval; 0 means that there is none."""
    exit: int
    spread: Spread | None = None
    """How much launches and repeats scattered; what was planned with, no part of the interval."""
    drift: Drift | None = None
    """Whether the baseline moved over the campaign; None where too few of its launches could tell."""
    front: tuple[FrontRow, ...] = ()
    """With several metrics: what fresh launches show of each configuration that may lie on their front."""
    because: str = ""


INPUTS = (Opened, Resumed, Noted, Observed, Instructed)
DERIVED = (Requested, Judged, Moved, Proposed, Scored, Concluded)

Event = Annotated[
    Union[  # noqa: UP007 - built from the two tuples' members, spelled out for the type checker
        Opened, Resumed, Noted, Observed, Instructed, Requested, Judged, Moved, Proposed, Scored, Concluded
    ],
    Field(discriminator="kind"),
]
EVENTS: TypeAdapter[Any] = TypeAdapter(Event)
"""One adapter for the whole union: the fastest way to read a typed entry."""

PROSE = frozenset({"because", "saw", "wanted", "remedy", "question", "predicts"})
"""Fields that are written for people: not compared in replay, free to be reworded."""

WORDING = frozenset({"command", "patterns"})
"""How a probe or a watch puts its question. The record keeps it; a replay reads the recorded answer whatever the
question would be worded like today, so it is not compared either. What a job runs (``argv``) is."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event in its envelope.

    ``wall_ns`` is Unix time, for people; order is ``seq``. ``boot_ns`` is CLOCK_BOOTTIME of the controller,
    comparable within one ``boot_id``. ``host`` is the one concerned ('' = none) and ``epoch`` the fencing epoch
    the controller held there.
    """

    seq: int
    wall_ns: int
    boot_ns: int
    boot_id: str
    lane: str
    host: str
    epoch: int
    event: Any


def is_durable(event: Any, *, answers_effect: bool = False) -> bool:
    """Say whether an event must be on disk before anything else happens.

    So are a request with an effect (before the effect), its answer (``answers_effect``), moves, decisions and
    whatever an operator said. All else is written in groups, at the latest with the next of those.
    """
    if isinstance(event, Requested):
        return event.action.effect
    if isinstance(event, Observed):
        return answers_effect
    return isinstance(event, (Opened, Resumed, Instructed, Moved, Concluded))


def map_outputs(event: Any, change: Callable[[Output], Output]) -> Any:
    """Return the event with each of its outputs replaced by ``change(output)``; the same event if none changes."""
    if isinstance(event, Noted):
        part = change(event.part)
        return event if part is event.part else event.model_copy(update={"part": part})
    if isinstance(event, Opened):
        playbook = change(event.playbook)
        return event if playbook is event.playbook else event.model_copy(update={"playbook": playbook})
    if isinstance(event, Observed) and isinstance(event.outcome, Completed):
        out, err = change(event.outcome.out), change(event.outcome.err)
        if out is event.outcome.out and err is event.outcome.err:
            return event
        return event.model_copy(update={"outcome": event.outcome.model_copy(update={"out": out, "err": err})})
    return event
