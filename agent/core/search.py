"""What to measure next, from what was measured: a pure function of the plan and the history.

The order is: baseline, the stages one after the other, confirmation on fresh launches. A stage starts from the best
configuration known before it. Two rules save launches: configurations that launch alike share one measurement, and
a campaign ends as soon as nothing it could still measure would change its answer.

No state is kept between calls. Whoever asks twice with the same history is answered the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from .confirmation import Confirmation
from .consulting import listed, question
from .explored import Explored
from .pareto import FrontConfirmation, confirmation
from .plan import Plan, Stage, Trial
from .proposals import (
    Advice,
    Confirm,
    Consult,
    Finished,
    Measure,
    Next,
    Reason,
    Record,
    Rejects,
    Score,
    profile_variables,
)
from .purse import Purse
from .statistics import LAUNCHES_MIN
from .strategies import INVALID, Point, draw, next_halving, next_in_order, next_unimodal
from .trials import EXPLORING, Evaluate, is_skipped, point_names, resolve_trial, together

__all__ = ["Confirm", "Consult", "Finished", "Measure", "Next", "Reason", "Record", "Rejects", "Score", "propose"]

WORTH = 0.0005
"""Launching a rival again is worth it while choosing the leader is expected to lose more than this (a log ratio)."""

AGAIN_MAX = 4
"""Launches spent at most on telling the leader from its rivals, in one campaign."""

RESERVE = 0.75
"""The share of the wanted pairs that launches of rivals leave alone: the right winner is worth a pair or two."""

SURELY = 1.96
"""How many standard errors below the goal a leader must lie for the goal to be out of its reach: a chance of 2.5 %."""


def propose(
    plan: Plan,
    history: Sequence[Record],
    evaluate: Evaluate,
    rejects: Rejects | None = None,
    *,
    launches: int | None = None,
    elapsed_s: float = 0.0,
    running: str = "",
    advice: Advice | None = None,
) -> Next:
    """Return the next thing to measure, or why there is none.

    ``history`` is in the order of the proposals. ``launches`` counts what the budget counts; by default one a
    record. ``running`` is the launch digest of the server that is up and may be measured once more: a trial that
    differs from it in the load alone costs no launch. ``advice`` is what advisers have suggested. A proposal that has
    no score yet is repeated, so asking again does no harm.
    """
    for record in history:
        if record.score is None and record.trial.role in (*EXPLORING, "warm"):
            return Measure(record.trial, "it was proposed and has no score yet")
    walk = _Walk(plan, history, evaluate, rejects, len(history) if launches is None else launches, elapsed_s, running)
    walk.advice = advice or {}
    step = walk.next()
    if isinstance(step, Consult):
        return step
    if not isinstance(step, Finished):
        repeated = any(record.trial.id == step.trial.id for record in history)
        spent = "" if repeated else walk.purse.spent(step)
        if spent:
            step = (walk.confirmed or walk.fronted or walk).finished("budget", spent)
    return replace(step, notes=tuple(dict.fromkeys([*walk.notes, *step.notes])))


class _Walk:
    """One pass over the search with what is known; ``next`` stops at the first thing that is not."""

    def __init__(
        self,
        plan: Plan,
        history: Sequence[Record],
        evaluate: Evaluate,
        rejects: Rejects | None,
        launches: int,
        elapsed_s: float,
        running: str = "",
    ) -> None:
        self.plan, self.evaluate, self.rejects = plan, evaluate, rejects
        self.purse = Purse(plan, history, launches, elapsed_s, running)
        self.notes: list[str] = []
        self.history = history
        self.ids = {record.trial.id for record in history}
        self.known = Explored(plan, history)
        self.confirming = any(record.trial.role == "confirm" for record in history)
        self.baseline = self.winner = ""
        self.carried: Point = {}
        self.cures: dict[str, str] = {}
        self.confirmed: Confirmation | None = None
        self.fronted: FrontConfirmation | None = None
        self.advice: Advice = {}
        self.places: list[int] = []

    # ------------------------------------------------------------ what is known

    def trial(self, name: str, role: Literal["base", "candidate"], stage: str, point: Point) -> Trial:
        """Resolve a point of the search under a name that no other trial has."""
        search = self.plan.search
        return resolve_trial(self.plan, self.unique(name), role, stage, point, search.flags, search.env, self.evaluate)

    def unique(self, name: str) -> str:
        """Return the name, with a number where another trial has it."""
        number, unique = 1, name
        while unique in self.ids:
            number += 1
            unique = f"{name}-{number}"
        return unique

    def finished(self, reason: Reason, because: str = "") -> Finished:
        """End here, without a comparison: only a confirmation has one."""
        return Finished(reason, because, self.winner, self.baseline, spread=self.known.spread())

    # ------------------------------------------------------------ exploration

    def next(self) -> Next:
        """Walk baseline, stages and confirmation up to the first step that has not been taken."""
        plan = self.plan
        trial = resolve_trial(plan, "baseline", "baseline", "", {}, {}, {}, self.evaluate)
        if sum(record.trial.role == "warm" for record in self.history) < plan.search.warm:
            own = trial.model_copy(update={"id": self.unique("warm"), "role": "warm"})
            return Measure(own, "caches may be cold: no number of this launch counts")
        baseline = self.known.record(trial.identity())
        if baseline is None or baseline.score is None:
            return Measure(trial, "every comparison needs the baseline")
        self.baseline = baseline.trial.id
        if self.known.level(baseline.trial.identity()) == INVALID:
            finding = baseline.score.finding or "no value"
            return self.finished("baseline invalid", f"nothing can be compared with it ({finding})")
        step = self.explore(baseline.score)
        cut = step is not None and (self.confirming or self.purse.short(step))
        if step is not None and not cut:
            return step
        return self.choose(baseline, cut)

    def explore(self, baseline: Score) -> Measure | Consult | None:
        """Return the next launch of the stages, or None when all are done."""
        search = self.plan.search
        if not search.stages and (search.flags or search.env):
            base = self.cured(self.trial("base", "base", "", {}))
            return Measure(base, "the one candidate") if self.tried(base) is None else None
        for stage in search.stages:
            step = self.stage(stage, baseline)
            if step is not None:
                return step
        return None

    def tried(self, trial: Trial, *, first: bool = False) -> float | None:
        """Return the merit of a trial that was measured or need not be; None for one that must be launched.

        ``first``: by its first launch alone. What a stage chose must not change when a later one learns more.
        """
        if self.known.has(trial.identity()):
            return self.known.merit(trial.identity(), first=first)
        reason = self.rejects(trial) if self.rejects else ""
        if reason:
            self.notes.append(f"{trial.id} is not launched: {reason}")
            return INVALID
        return None

    def stage(self, stage: Stage, baseline: Score) -> Measure | Consult | None:
        """Return the next launch of one stage; None when it is done or skipped, with its best carried on."""
        try:
            base = self.cured(self.trial("base", "base", "", self.carried))
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
        trials, first = self.candidates(stage), stage is not self.plan.search.stages[-1]
        merits = [self.tried(trial, first=first) for trial in trials]
        for trial, merit in zip(trials, merits, strict=True):
            if merit is None and trial.id in self.cures:
                return Measure(trial, self.cures[trial.id])
        index = self.pick(stage, base, trials, merits)
        if index is not None:
            hint = self.hint(trials[index])
            known = f"; earlier runs found it {math.expm1(hint):+.1%}" if hint else ""
            return self.once_more(trials[index], f"stage {stage.name}, {stage.strategy}{known}")
        if stage.strategy == "optuna":
            tried = sum(1 for trial in trials if self.known.has(trial.identity()))
            measured = dict(zip(self.places, merits, strict=True))
            step = question(stage, self.plan.seed, self.advice.get(stage.name, ()), tried, measured)
            if step is not None:
                return step
        self.carry(base, trials, merits)
        return None

    def refusal(self, when: str, base: Trial, baseline: Score) -> str:
        """Say why a stage's condition keeps it from running, or ''. What cannot be judged opens no gate."""
        record = self.known.record(base.identity())
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
        own, found = listed(stage, self.plan.seed, self.advice.get(stage.name, ())), []
        self.places = []
        for place, (name, point) in enumerate(zip(point_names(stage, own), own, strict=True)):
            try:
                trial = self.trial(name, "candidate", stage.name, {**self.carried, **point})
            except ValueError as problem:
                self.notes.append(f"{name} is not launched: it cannot be derived ({problem})")
                continue
            try:
                if is_skipped(stage, trial, self.evaluate):
                    self.notes.append(f"{name} is not launched: skip_when holds")
                    continue
            except ValueError as problem:
                self.notes.append(f"{name} is tried: its skip_when cannot be judged ({problem})")
            found.append(self.cured(trial))
            self.places.append(place)
        if stage.strategy in ("unimodal", "optuna"):
            return found
        if self.plan.search.confirm_most is not None and stage.strategy in ("grid", "halving"):
            # In an order that is drawn, so that a drift of the host favours no end of a sweep.
            found.sort(key=lambda trial: draw(f"{self.plan.seed}/{stage.name}/{trial.identity()}"))
        # What earlier runs found good comes first, what they found bad last.
        found.sort(key=lambda trial: -self.hint(trial))
        return together(found) if stage.loads() else found

    def hint(self, trial: Trial) -> float:
        """Return what earlier runs found of a trial, a log ratio to their baseline; 0 where they say nothing."""
        return self.plan.search.hints.get(trial.identity(), 0.0) if self.plan.search.hints else 0.0

    def cured(self, trial: Trial) -> Trial:
        """Return the trial, or what the playbook puts in its place after a failure of a class that it has a cure for.

        A cure counts for the class that it names, so often as it says; then the failure stands.
        """
        used: Counter[str] = Counter()
        while True:
            record = self.known.record(trial.identity())
            if record is None or record.score is None or record.score.value is not None:
                return trial
            finding = record.score.finding
            cure = self.plan.on_fail.get(finding)
            if cure is None or used[finding] >= cure.attempts:
                return trial
            used[finding] += 1
            try:
                change = cure.point(trial.flags)
                name = f"{record.trial.id.partition('-cured')[0]}-cured"
                role: Literal["base", "candidate"] = "base" if trial.role == "base" else "candidate"
                other = self.trial(name, role, trial.stage, {**trial.point, **change})
            except ValueError as problem:
                self.notes.append(f"{record.trial.id} failed with {finding} and cannot be cured ({problem})")
                return trial
            if other.identity() == trial.identity():
                return trial
            words = ", ".join(f"{key.split('.', 1)[1]}={value}" for key, value in change.items())
            self.cures[other.id] = f"{record.trial.id} failed with {finding}: tried again with {words}"
            trial = other

    def pick(self, stage: Stage, base: Trial, trials: Sequence[Trial], merits: Sequence[float | None]) -> int | None:
        """Return the index of the trial to measure next."""
        if stage.strategy == "halving":
            known = [self.known.logs(trial.identity()) for trial in trials]
            return next_halving([None if merit == INVALID else own for own, merit in zip(known, merits, strict=True)])
        if stage.strategy != "unimodal":
            served = [trial.launch_digest() == self.purse.running for trial in trials]
            free = next_in_order([merit if up else INVALID for up, merit in zip(served, merits, strict=True)])
            return next_in_order(merits) if free is None else free
        promised = max(range(len(trials)), key=lambda index: self.hint(trials[index]), default=None)
        if promised is not None and merits[promised] is None and self.hint(trials[promised]) > 0:
            return promised
        wanted = base.identity()
        start = next((index for index, trial in enumerate(trials) if trial.identity() == wanted), None)
        return next_unimodal(merits, start)

    def once_more(self, trial: Trial, because: str) -> Measure:
        """Return the launch of a trial; of one that was launched before, a fresh one under a name of its own."""
        record = self.known.record(trial.identity())
        if record is None:
            return Measure(trial, because)
        source = record.trial.of or record.trial.id
        name = self.unique(f"{source}-again")
        again = record.trial.model_copy(update={"id": name, "role": "candidate", "of": source})
        return Measure(again, because)

    def carry(self, base: Trial, trials: Sequence[Trial], merits: Sequence[float | None]) -> None:
        """Make the best of a stage the base of the next; the base itself stays when no trial is better."""
        standing = self.tried(base, first=True)
        best, chosen = INVALID if standing is None else standing, None
        for trial, merit in zip(trials, merits, strict=True):
            # A tie goes to the trial over the base, since they may be one launch, and to the earlier of two trials.
            if merit is not None and merit > INVALID and (merit > best or (chosen is None and merit == best)):
                best, chosen = merit, trial
        if chosen:
            self.carried = dict(chosen.point)

    # ------------------------------------------------------------ decision

    def choose(self, baseline: Record, cut: bool) -> Next:
        """Take the best of what was explored, and confirm it if that can pay."""
        own, ended = baseline.trial.identity(), "the launches left would not pay for a confirmation" if cut else ""
        if self.plan.goal.pareto:
            self.fronted, why = confirmation(self.plan, self.known, self.history, self.purse.launches, baseline)
            return self.fronted.next() if self.fronted else self.finished("budget" if cut else why, ended)
        rest = [name for name in self.known.names() if name != self.known.name(own)]
        best = self.known.record(rest[0]) if rest else None
        if best is None or self.known.merit(rest[0]) == INVALID:
            return self.finished("budget" if cut else "no valid candidate", ended or self.known.barred(rest))
        lead = self.known.merit(rest[0]) - self.known.level(own)
        if not self.confirming and not self.promising(lead):
            return self.finished("budget" if cut else "no candidate beats the baseline in exploration", ended)
        if not self.confirming and not cut and (step := self.again(rest, baseline)):
            return step
        self.winner = best.trial.id
        if cut:
            self.notes.append("exploration ended early: the launches left are those of the confirmation")
        if not self.plan.search.confirm_launches:
            return self.finished("budget" if cut else "explored")
        shared = baseline.trial.launch_digest() == best.trial.launch_digest()
        lack = "" if self.confirming else self.purse.lacks(LAUNCHES_MIN * (1 if shared else 2))
        if lack:
            return self.finished("budget", lack)
        self.confirmed = Confirmation(self.plan, self.known, self.history, baseline, best)
        return self.confirmed.next()

    def promising(self, lead: float) -> bool:
        """Say whether a leader with this lead, a log ratio, may truly be worth a confirmation.

        One that looks better is. One that looks worse may still have been unlucky: it is given up when the goal lies
        beyond its measured value by more than chance, and the playbook allows the pairs that it would take.
        """
        if lead > 0 or self.plan.search.confirm_most is None:
            return lead > 0
        return lead + SURELY * self.known.spread().of_difference() >= math.log1p(self.plan.goal.improve)

    def again(self, names: Sequence[str], baseline: Record) -> Measure | None:
        """Return a fresh launch of the leader or of its rival, where choosing between them is worth one.

        Only launches that the confirmation does not need are spent so, and only where it may adapt to noise.
        """
        search, limit = self.plan.search, self.plan.budget.launches
        if search.confirm_most is None or not search.confirm_launches or len(names) < 2:
            return None
        spent = [record for record in self.known.records if record.trial.of]
        best = self.known.record(names[0])
        assert best is not None
        left = AGAIN_MAX - len(spent)
        if limit is not None:
            planned = Confirmation(self.plan, self.known, self.history, baseline, best)
            spare = limit - self.purse.launches
            # An odd launch makes no pair: it is free for this.
            left = min(left, max(spare % 2, spare - 2 * math.ceil(RESERVE * planned.wanted())))
        if left <= 0:
            return None
        rival, lost = self.known.rival(names)
        if rival is None or lost <= WORTH:
            return None
        fewer = len(self.known.launches(rival)) < len(self.known.launches(names[0]))
        chosen = self.known.record(rival if fewer else names[0])
        assert chosen is not None
        other = self.known.record(rival if chosen is best else names[0])
        assert other is not None
        words = f"{chosen.trial.id} and {other.trial.id} are too close to tell apart by the launches so far"
        return self.once_more(chosen.trial, words)
