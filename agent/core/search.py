"""What to measure next, from what was measured: a pure function of the plan and the history.

The order is: baseline, the stages one after the other, confirmation on fresh launches. A stage starts from the best
configuration known before it. Two rules save launches: configurations that launch alike share one measurement, and
a campaign ends as soon as nothing it could still measure would change its answer.

No state is kept between calls. Whoever asks twice with the same history is answered the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .plan import Plan, Stage, Trial
from .statistics import LAUNCHES_MIN, Comparison, LaunchMean, compare, looks
from .strategies import INVALID, Point, next_in_order, next_unimodal, points
from .trials import EXPLORING, Evaluate, point_names, resolve_trial

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


@dataclass(frozen=True, slots=True)
class Record:
    """A trial that was proposed; ``score`` None = it is still being measured."""

    trial: Trial
    score: Score | None = None


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


Reason = Literal[
    "confirmed",
    "proven early",
    "goal out of reach",
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


Next = Measure | Confirm | Finished


def propose(
    plan: Plan,
    history: Sequence[Record],
    evaluate: Evaluate,
    rejects: Rejects | None = None,
    *,
    launches: int | None = None,
    elapsed_s: float = 0.0,
) -> Next:
    """Return the next thing to measure, or why there is none.

    ``history`` is in the order of the proposals. ``launches`` counts what the budget counts; by default one a
    record. A proposal that has no score yet is repeated, so asking again does no harm.
    """
    for record in history:
        if record.score is None and record.trial.role in EXPLORING:
            return Measure(record.trial, "it was proposed and has no score yet")
    walk = _Walk(plan, history, evaluate, rejects, len(history) if launches is None else launches)
    step = walk.next()
    if not isinstance(step, Finished):
        repeated = any(record.trial.id == step.trial.id for record in history)
        spent = "" if repeated else walk.spent(elapsed_s)
        if spent:
            step = walk.finished("budget", spent)
    return replace(step, notes=tuple(dict.fromkeys(walk.notes)))


class _Walk:
    """One pass over the search with what is known; ``next`` stops at the first thing that is not."""

    def __init__(
        self, plan: Plan, history: Sequence[Record], evaluate: Evaluate, rejects: Rejects | None, launches: int
    ) -> None:
        self.plan, self.evaluate, self.rejects, self.launches = plan, evaluate, rejects, launches
        self.notes: list[str] = []
        self.ids = {record.trial.id for record in history}
        self.confirms = [record for record in history if record.trial.role == "confirm"]
        self.known: dict[str, Record] = {}
        for record in history:
            if record.trial.role in EXPLORING:
                digest = record.trial.launch_digest()
                if digest not in self.known or self.merit(self.known[digest]) == INVALID:
                    self.known[digest] = record
        self.baseline = self.winner = ""
        self.carried: Point = {}

    # ------------------------------------------------------------ what is known

    def merit(self, record: Record) -> float:
        """Return a number that is larger when better; what cannot be compared is the worst."""
        value = record.score.value if record.score else None
        if value is None or not math.isfinite(value) or value <= 0:
            return INVALID
        return value if self.plan.goal.direction == "up" else -value

    def trial(self, name: str, role: Literal["base", "candidate"], stage: str, point: Point) -> Trial:
        """Resolve a point of the search under a name that no other trial has."""
        search, number, unique = self.plan.search, 1, name
        while unique in self.ids:
            number += 1
            unique = f"{name}-{number}"
        return resolve_trial(self.plan, unique, role, stage, point, search.flags, search.env, self.evaluate)

    def spent(self, elapsed_s: float) -> str:
        """Say which budget allows no further launch, or ''."""
        budget = self.plan.budget
        if budget.launches is not None and self.launches >= budget.launches:
            return f"{self.launches} of {budget.launches} launches are used"
        if budget.time_s is not None and elapsed_s >= budget.time_s:
            return f"{elapsed_s:.0f} s of {budget.time_s:.0f} s are used"
        return ""

    def reserved(self) -> bool:
        """Say whether the launches left are those that a confirmation needs.

        A larger exploration that ends without a verified decision is worth less than a smaller one with it. A
        budget that could never pay for a confirmation reserves nothing.
        """
        limit, confirm = self.plan.budget.launches, 2 * self.plan.search.confirm_launches
        return limit is not None and limit >= 2 + confirm and limit - self.launches - 1 < confirm

    def finished(self, reason: Reason, because: str = "") -> Finished:
        """End here, with whatever the confirmation says so far."""
        comparison = None
        if self.confirms and self.winner:
            comparison = self.compared(looks(self.plan.search.confirm_launches)[-1].level)
        return Finished(reason, because, self.winner, self.baseline, comparison)

    # ------------------------------------------------------------ exploration

    def next(self) -> Next:
        """Walk baseline, stages and confirmation up to the first step that has not been taken."""
        plan = self.plan
        trial = resolve_trial(plan, "baseline", "baseline", "", {}, {}, {}, self.evaluate)
        baseline = self.known.get(trial.launch_digest())
        if baseline is None or baseline.score is None:
            return Measure(trial, "every comparison needs the baseline")
        self.baseline = baseline.trial.id
        if self.merit(baseline) == INVALID:
            finding = baseline.score.finding or "no value"
            return self.finished("baseline invalid", f"nothing can be compared with it ({finding})")
        step = self.explore(baseline.score)
        cut = step is not None and self.reserved()
        if step is not None and not cut:
            return step
        return self.choose(baseline, cut)

    def explore(self, baseline: Score) -> Measure | None:
        """Return the next launch of the stages, or None when all are done."""
        search = self.plan.search
        if not search.stages and (search.flags or search.env):
            base = self.trial("base", "base", "", {})
            return Measure(base, "the one candidate") if self.tried(base) is None else None
        for stage in search.stages:
            step = self.stage(stage, baseline)
            if step is not None:
                return step
        return None

    def tried(self, trial: Trial) -> float | None:
        """Return the merit of a trial that was measured or need not be; None for one that must be launched."""
        record = self.known.get(trial.launch_digest())
        if record is not None:
            return self.merit(record)
        reason = self.rejects(trial) if self.rejects else ""
        if reason:
            self.notes.append(f"{trial.id} is not launched: {reason}")
            return INVALID
        return None

    def stage(self, stage: Stage, baseline: Score) -> Measure | None:
        """Return the next launch of one stage; None when it is done or skipped, with its best carried on."""
        try:
            base = self.trial("base", "base", "", self.carried)
        except ValueError as problem:
            self.notes.append(f"stage {stage.name} is skipped: its base cannot be derived ({problem})")
            return None
        if stage.when:
            if self.tried(base) is None:
                return Measure(base, f"stage {stage.name} asks what limits its base")
            refusal = self.refusal(stage.when, base, baseline)
            if refusal:
                self.notes.append(f"stage {stage.name} is skipped: {refusal}")
                return None
        trials = self.candidates(stage)
        merits = [self.tried(trial) for trial in trials]
        index = self.pick(stage, base, trials, merits)
        if index is not None:
            return Measure(trials[index], f"stage {stage.name}, {stage.strategy}")
        self.carry(base, trials, merits)
        return None

    def refusal(self, when: str, base: Trial, baseline: Score) -> str:
        """Say why a stage's condition keeps it from running, or ''. What cannot be judged opens no gate."""
        record = self.known.get(base.launch_digest())
        if record is None or record.score is None:
            return "its base was not measured"
        variables = {
            "profile": profile_variables(record.score),
            "best": record.score.value,
            "baseline": baseline.value,
        }
        try:
            held = self.evaluate(when, variables)
        except ValueError as problem:
            if not record.score.profile and not record.score.kernels:
                return "UNKNOWN: there is no profile of its base to read"
            return f"UNKNOWN: its condition cannot be judged ({problem})"
        return "" if held is True else f"{when} does not hold"

    def candidates(self, stage: Stage) -> list[Trial]:
        """Return the trials of a stage's points, on top of what earlier stages chose."""
        own, found = points(stage, self.plan.seed), []
        for name, point in zip(point_names(stage, own), own, strict=True):
            try:
                found.append(self.trial(name, "candidate", stage.name, {**self.carried, **point}))
            except ValueError as problem:
                self.notes.append(f"{name} is not launched: it cannot be derived ({problem})")
        return found

    def pick(self, stage: Stage, base: Trial, trials: Sequence[Trial], merits: Sequence[float | None]) -> int | None:
        """Return the index of the trial to measure next."""
        if stage.strategy != "unimodal":
            return next_in_order(merits)
        wanted = base.launch_digest()
        start = next((index for index, trial in enumerate(trials) if trial.launch_digest() == wanted), None)
        return next_unimodal(merits, start)

    def carry(self, base: Trial, trials: Sequence[Trial], merits: Sequence[float | None]) -> None:
        """Make the best of a stage the base of the next; the base itself stays when no trial is better."""
        standing = self.tried(base)
        best, chosen = INVALID if standing is None else standing, None
        for trial, merit in zip(trials, merits, strict=True):
            # A tie goes to the trial over the base, since they may be one launch, and to the earlier of two trials.
            if merit is not None and merit > INVALID and (merit > best or (chosen is None and merit == best)):
                best, chosen = merit, trial
        if chosen:
            self.carried = dict(chosen.point)

    # ------------------------------------------------------------ decision

    def choose(self, baseline: Record, cut: bool) -> Confirm | Finished:
        """Take the best of what was explored, and confirm it if that can pay."""
        rest = [record for record in self.known.values() if record is not baseline]
        best = min(rest, key=lambda record: (-self.merit(record), record.trial.id), default=None)
        ended = "the launches left would not pay for a confirmation" if cut else ""
        if best is None or self.merit(best) == INVALID:
            return self.finished("budget" if cut else "no valid candidate", ended)
        if self.merit(best) <= self.merit(baseline):
            return self.finished("budget" if cut else "no candidate beats the baseline in exploration", ended)
        self.winner = best.trial.id
        if cut:
            self.notes.append("exploration ended early: the launches left are those of the confirmation")
        if not self.plan.search.confirm_launches:
            return self.finished("budget" if cut else "explored")
        return self.confirm({"baseline": baseline.trial, "winner": best.trial})

    def confirm(self, sides: Mapping[str, Trial]) -> Confirm | Finished:
        """Return the next launch of the confirmation: baseline, winner, baseline, winner and so on.

        One failed launch a side is made again; a side that cannot reach two valid launches ends it.
        """
        wanted = self.plan.search.confirm_launches
        spare, lost = dict.fromkeys(sides, 1), dict.fromkeys(sides, 0)
        early = {look.pairs: look.level for look in looks(wanted)[:-1]}
        for pair in range(1, wanted + 1):
            for side, of in sides.items():
                for again in (False, True):
                    name = f"confirm-{pair}-{side}{'-again' if again else ''}"
                    trial = of.model_copy(update={"id": name, "role": "confirm", "of": of.id})
                    record = next((record for record in self.confirms if record.trial.id == name), None)
                    if record is None or record.score is None:
                        return Confirm(trial, pair, f"{side} of pair {pair} of {wanted}, on a fresh launch")
                    failed = self.merit(record) == INVALID
                    if not failed or not spare[side] or again:
                        break
                    spare[side] -= 1
                lost[side] += failed
                if wanted - lost[side] < LAUNCHES_MIN:
                    return self.finished("confirmation failed", f"the {side} has too few valid launches")
            if pair in early:
                ended = self.early_end(pair, early[pair])
                if ended:
                    return ended
        return self.finished("confirmed")

    def early_end(self, pairs: int, level: float) -> Finished | None:
        """End when the first ``pairs`` settle whether the goal is met, at the early look's own level.

        Later launches are no part of this look: looking again with more of them would be another look, unplanned.
        """
        comparison, target = self.compared(level, pairs), 1 + self.plan.goal.improve
        if comparison.low is None or comparison.high is None:
            return None
        if comparison.low > 1 and comparison.low >= target:
            return replace(self.finished("proven early"), comparison=comparison)
        if comparison.high < target:
            return replace(self.finished("goal out of reach"), comparison=comparison)
        return None

    def compared(self, level: float, pairs: int | None = None) -> Comparison:
        """Compare the valid launches of the confirmation, of the first ``pairs`` or of all."""
        valid = [record for record in self.confirms if self.merit(record) > INVALID]
        valid = [record for record in valid if pairs is None or _pair(record) <= pairs]
        baseline, winner = (
            [_launch_mean(record) for record in valid if _side(record) == side] for side in ("baseline", "winner")
        )
        return compare(baseline, winner, self.plan.goal, level)


def profile_variables(score: Score) -> dict[str, Any]:
    """Return what a condition sees as ``profile``. What is not known is not there: reading it is an error."""
    found: dict[str, Any] = {"share": dict(score.profile), "kernel": dict(score.kernels)}
    return found if score.busy is None else {**found, "busy": score.busy}


def _side(record: Record) -> str:
    return record.trial.id.split("-")[2]


def _pair(record: Record) -> int:
    return int(record.trial.id.split("-")[1])


def _launch_mean(record: Record) -> LaunchMean:
    score = record.score or Score(None)
    value = math.nan if score.value is None else score.value
    return LaunchMean(value=value, deviation=score.deviation, repeats=score.repeats, pair=_pair(record))
