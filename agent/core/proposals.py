"""What a search is told and what it answers: scores and records in, a launch or an end out. Values, no judgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .actions import Advise
from .noise import Drift, Spread
from .plan import Trial
from .statistics import Comparison

Rejects = Callable[[Trial], str]
"""Says why a trial is known to fail before it is launched; '' lets it pass."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a launch was worth, in the goal's metric. ``value`` None = invalid, and ``finding`` says why."""

    value: float | None
    finding: str = ""
    deviation: float = 0.0
    repeats: int = 1
    profile: Mapping[str, float] = field(default_factory=dict)
    """Shares by phase, where this launch was profiled."""
    kernels: Mapping[str, float] = field(default_factory=dict)
    """Shares by class of work on the GPU, likewise."""
    busy: float | None = None
    effective: str = ""
    """Digest of the configuration that was in effect; equal ones are one configuration, however they were asked for."""
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Mean and standard deviation by metric, of those that a front is made of."""
    broken: str = ""
    """The limit of the goal that it does not keep, in words; '' = it keeps all. Such a candidate is never chosen."""


@dataclass(frozen=True, slots=True)
class Record:
    """A trial that was proposed; ``score`` None = it is still being measured."""

    trial: Trial
    score: Score | None = None
    launch: str = ""
    """The launch it was measured on; '' = one of its own."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Launch and measure this trial. ``notes`` say what was passed over on the way, for people."""

    trial: Trial
    because: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Confirm:
    """Launch this configuration afresh: one side of a pair of the confirmation."""

    trial: Trial
    pair: int
    because: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Consult:
    """Nothing can be proposed before an adviser has been asked."""

    action: Advise


Reason = Literal[
    "confirmed",
    "proven early",
    "goal out of reach",
    "noise too large",
    "limit broken",
    "confirmation failed",
    "explored",
    "budget",
    "baseline invalid",
    "no valid candidate",
    "no candidate beats the baseline in exploration",
]


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing more is worth a launch. ``winner`` and ``baseline`` are trial ids; '' = there is none.

    ``comparison`` is None unless confirmation launches say something; exploration never does.
    """

    reason: Reason
    because: str = ""
    winner: str = ""
    baseline: str = ""
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()
    spread: Spread | None = None
    drift: Drift | None = None
    front: tuple[Any, ...] = ()
    """Rows of a front (``agent.core.pareto.FrontRow``), with the word that they come to."""
    word: str = ""


Next = Measure | Confirm | Finished | Consult

Advice = Mapping[str, Sequence[tuple[int, ...] | None]]
"""By stage, what an adviser suggested, in order: the number of each knob's value. None = it has nothing left."""


def profile_variables(score: Score) -> dict[str, Any]:
    """Return what a condition sees as ``profile``. What is not known is not there: reading it is an error."""
    found: dict[str, Any] = {"share": dict(score.profile), "kernel": dict(score.kernels)}
    return found if score.busy is None else {**found, "busy": score.busy}
