"""What a search can cost, before anything starts: launches, trials known beforehand, and what cannot be searched.

``least`` and ``most`` count launches that succeed. What fails costs more: a point is cured, a further point of an
ordered knob is tried, a launch of the confirmation is made again. ``bound`` counts all of that as often as it may be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ..errors import PlaybookError, Problem
from .bisect import launches
from .hypotheses import rank, trial_of, wording
from .plan import LOADS, Plan, Stage, Trial
from .proof import Caution, Proof, cautions, prove
from .search import AGAIN_MAX
from .statistics import LAUNCHES_MIN
from .strategies import halving_launches, knobs, points, unimodal_launches
from .trials import Evaluate, is_skipped, point_names, resolve_trial
from .values import Value


class StageForecast(Value):
    """What one stage can cost: ``least`` counts a stage with a condition as skipped."""

    name: str
    strategy: str
    when: str | None
    points: int
    least: int
    most: int
    loads: bool = False
    """Its points differ in the load, so that several share a launch."""


class Forecast(Value):
    """Launches that a campaign needs at least and at most, by its parts, and the trials that are certain already."""

    least: int
    most: int
    base: int
    """1 when the base is launched for its own sake."""
    stages: tuple[StageForecast, ...]
    confirm: int
    bound: int
    """No run starts more servers than this, whatever fails; the one that is left running at the end included."""
    trials: tuple[Trial, ...]
    """Baseline, base and the points of the first stage, as far as they do not depend on what is measured."""
    warm: int = 0
    """Launches before the baseline that are discarded."""
    capped: bool = False
    """The budget allows fewer launches than the search could use."""
    confirm_most: int = 0
    """Launches of the confirmation when nothing is settled early."""
    again: int = 0
    """Launches at most for telling the best candidate from its rivals."""
    proof: Proof | None = None
    warnings: tuple[Caution, ...] = ()


def check(plan: Plan) -> tuple[Problem, ...]:
    """Return what in the search of a plan cannot be carried out."""
    found: list[Problem] = []

    def refuse(where: str, message: str, remedy: str) -> None:
        found.append(Problem("E_SEARCH", message, field=where, remedy=remedy))

    search = plan.search
    if 0 < search.confirm_launches < LAUNCHES_MIN:
        refuse("search.confirm", "one launch a side proves nothing", "use 2 or more, or 0 for no confirmation")
    names = [stage.name for stage in search.stages]
    for number, stage in enumerate(search.stages):
        where = f"search.stages[{number}]"
        if stage.name in names[:number]:
            refuse(where, f"a second stage is called {stage.name}", "give each stage a name of its own")
        if stage.strategy == "unimodal" and len(stage.axes) != 1:
            refuse(where, "unimodal searches one ordered knob", "give it one sweep, or use grid")
        if stage.strategy in ("random", "optuna") and not stage.sample:
            refuse(where, f"{stage.strategy} needs the number of points to draw", "add sample: N")
        if stage.when and plan.profile.method == "off" and re.search(r"\bprofile\b", stage.when):
            refuse(where, "its condition reads a profile, and profiling is off", "choose a profile method")
        for point in stage.points:
            for coordinate in point:
                if not coordinate.startswith(("flags.", "env.")):
                    refuse(where, f"a point names {coordinate}", "write flags.NAME or env.NAME")
    return tuple(found)


def forecast(plan: Plan, evaluate: Evaluate) -> Forecast:
    """Return what the search of a plan can cost; PlaybookError when it cannot be carried out."""
    if plan.debug is not None:
        return _inquiry(plan, evaluate)
    problems = check(plan)
    if problems:
        raise PlaybookError("the search cannot be carried out", problems=problems)
    search = plan.search
    baseline = resolve_trial(plan, "baseline", "baseline", "", {}, {}, {}, evaluate)
    base = resolve_trial(plan, "base", "base", "", {}, search.flags, search.env, evaluate)
    warm = [baseline.model_copy(update={"id": "warm", "role": "warm"})] if search.warm else []
    trials, seen = [baseline], {baseline.identity()}
    asked = bool(search.stages[0].when) if search.stages else bool(search.flags or search.env)
    launched = asked and base.identity() not in seen
    if launched:
        trials.append(base)
        seen.add(base.identity())
    stages, counts = [], []
    for number, stage in enumerate(search.stages):
        candidates = _candidates(plan, stage, evaluate)
        counts.append(len(candidates) if stage.strategy != "optuna" else advised_points(stage))
        if stage.strategy == "optuna":
            stages.append(_advised_stage(stage))
        elif stage.loads():
            stages.append(_load_stage(stage, candidates, trials[-1] if number == 0 else None, seen))
        else:
            before = _touched(search.stages[:number])
            stages.append(_stage(stage, candidates, base, seen if number == 0 else None, before))
        if number == 0:
            trials.extend(_certain(stage, candidates, base, seen))
    # Sides that differ in the load alone share the launch of a pair: that is sure where nothing else is searched.
    shared = bool(search.stages) and all(axis.target in LOADS for stage in search.stages for axis in stage.axes)
    sides = 1 if shared and not (search.flags or search.env) and not plan.goal.pareto else plan.sides
    confirm, farthest = sides * search.confirm_launches, sides * (search.confirm_most or search.confirm_launches)
    explored = search.warm + 1 + launched + sum(stage.most for stage in stages)
    again = AGAIN_MAX if search.confirm_most and explored > 2 + search.warm else 0
    least = search.warm + 1 + launched + sum(stage.least for stage in stages)
    most = explored + (again + farthest if stages or launched else 0)
    limit = plan.budget.launches
    capped = limit is not None and limit < most
    proof = prove(plan, explored) if confirm and (stages or launched) and not plan.goal.pareto else None
    warnings = cautions(plan, least, proof)
    bound = _bound(plan, counts, base.identity() != baseline.identity())
    if limit is not None:
        least, most, bound = min(least, limit), min(most, limit), min(bound, limit)
    return Forecast(
        least=least,
        most=most,
        base=int(launched),
        stages=tuple(stages),
        confirm=confirm,
        bound=bound + (plan.finally_ != "stop"),
        trials=(*warm, *trials),
        capped=capped,
        warm=search.warm,
        confirm_most=farthest,
        again=again,
        proof=proof,
        warnings=warnings,
    )


def _inquiry(plan: Plan, evaluate: Evaluate) -> Forecast:
    """Count the launches of a debug campaign; a hypothesis that a dry run settles costs none, so it may be fewer."""
    debug, limit = plan.debug, plan.budget.launches
    assert debug is not None
    if debug.bisect is not None:
        task = debug.bisect
        least, most = launches(task.mode, len(task.points), confirm=task.confirm)
        # Which points are tested is known as it goes: the two ends, and for a set all of it and nothing.
        ends = [task.points[-1], task.points[0]] if task.mode == "ordered" else [*task.points]
        trials = [trial_of(plan, one, evaluate) for one in ends]
    else:
        tests = [one for one in rank(debug) if not one.empty]
        baseline = resolve_trial(plan, "baseline", "baseline", "", {}, {}, {}, evaluate)
        trials = [baseline, *(trial_of(plan, one, evaluate, (), wording(one)) for one in tests)]
        least, most = 1 + bool(tests), 1 + len(tests)
        least = most if debug.until == "all" else least
    return Forecast(
        least=least if limit is None else min(least, limit),
        most=most if limit is None else min(most, limit),
        base=0,
        stages=(),
        confirm=2 if debug.bisect is not None and debug.bisect.confirm else 0,
        bound=(most if limit is None else min(most, limit)) + (plan.finally_ != "stop"),
        trials=tuple(trials),
        capped=limit is not None and limit < most,
    )


def _bound(plan: Plan, counts: Sequence[int], has_base: bool) -> int:
    """Return how many launches there are at most, whatever fails: each point tried, cured as often as it may be.

    Each class of failure is cured so often as the playbook says, for each candidate and for the base.
    """
    search = plan.search
    tries = 1 + sum(cure.attempts for cure in plan.on_fail.values())
    # A stage with a condition measures its base where nothing before it was valid.
    bases = has_base and (not search.stages or any(stage.when for stage in search.stages))
    explored = search.warm + 1 + tries * bases
    for stage, count in zip(search.stages, counts, strict=True):
        rounds = halving_launches(count) - count if stage.strategy == "halving" else 0
        explored += tries * count + rounds
    if not counts and not bases:
        return explored
    # Each side of the confirmation has one launch to spare; a budget stops exploration and confirmation alike.
    farthest = plan.sides * (search.confirm_most or search.confirm_launches)
    again = AGAIN_MAX if search.confirm_most else 0
    return explored + again + (farthest + plan.sides if farthest else 0)


def _candidates(plan: Plan, stage: Stage, evaluate: Evaluate) -> list[Trial]:
    own, search, found = points(stage, plan.seed), plan.search, []
    for name, point in zip(point_names(stage, own), own, strict=True):
        trial = resolve_trial(plan, name, "candidate", stage.name, point, search.flags, search.env, evaluate)
        try:
            if is_skipped(stage, trial, evaluate):
                continue
        except ValueError:
            pass  # what cannot be judged is tried
        found.append(trial)
    return found


def _touched(stages: Sequence[Stage]) -> set[str]:
    """Return the coordinates that these stages may change."""
    return {f"{axis.target}.{axis.key}" for stage in stages for axis in stage.axes} | {
        coordinate for stage in stages for point in stage.points for coordinate in point
    }


def _start(candidates: Sequence[Trial], base: Trial) -> int | None:
    wanted = base.identity()
    return next((index for index, trial in enumerate(candidates) if trial.identity() == wanted), None)


def _stage(
    stage: Stage, candidates: Sequence[Trial], base: Trial, seen: set[str] | None, touched: set[str]
) -> StageForecast:
    """Count the launches of one stage. ``seen`` None: a later one, whose base the stage before has measured."""
    own = {coordinate for trial in candidates for coordinate in trial.point}
    start = _start(candidates, base)
    digests = {trial.identity() for trial in candidates}
    if seen is not None:
        shared_least = shared_most = len(digests & seen)
    else:
        # Its base lies among its points: surely where no earlier stage moved these knobs, else perhaps.
        shared_most = int(start is not None and not own & touched)
        shared_least = int(shared_most or bool(own & touched))
    if stage.strategy == "unimodal":
        fits = [unimodal_launches(len(candidates), place) for place in _starts(candidates, start, bool(own & touched))]
        known = int(start is not None and (seen is None or base.identity() in seen))
        shared_least, shared_most = (known, known) if seen is not None else (shared_least, shared_most)
        least, most = min(fit[0] for fit in fits) - shared_least, max(fit[1] for fit in fits) - shared_most
    else:
        least, most = len(digests) - shared_least, len(digests) - shared_most
        if stage.strategy == "halving":
            rounds = halving_launches(len(candidates)) - len(candidates)
            least, most = least + rounds, most + rounds
    return StageForecast(
        name=stage.name,
        strategy=stage.strategy,
        when=stage.when,
        points=len(candidates),
        least=0 if stage.when else max(0, least),
        most=most,
    )


def advised_points(stage: Stage) -> int:
    """Return how many points an adviser may be asked for."""
    return min(stage.sample or 1, math.prod(knob.values for knob in knobs(stage)))


def _advised_stage(stage: Stage) -> StageForecast:
    """Count the launches of a stage whose points nobody knows yet: what its base and the baseline are is known."""
    most = advised_points(stage)
    skips = stage.when is not None or stage.skip_when is not None
    least = 0 if skips or stage.loads() else max(0, most - 2)
    return StageForecast(name=stage.name, strategy=stage.strategy, when=stage.when, points=most, least=least, most=most)


def _load_stage(stage: Stage, candidates: Sequence[Trial], up: Trial | None, seen: set[str]) -> StageForecast:
    """Count the launches of a stage whose points differ in the load: one for each server that they are measured on.

    ``up``: what is launched last before the first stage, and may be measured on; None: a later stage, whose base may
    be up when it begins, or may not.
    """
    fresh = {trial.launch_digest() for trial in candidates if up is None or trial.identity() not in seen}
    launches = len(fresh)
    free = int(up.launch_digest() in fresh) if up is not None else 0
    return StageForecast(
        name=stage.name,
        strategy=stage.strategy,
        when=stage.when,
        points=len(candidates),
        least=0 if stage.when else max(0, launches - (free if up is not None else 1)),
        most=launches - (0 if stage.when else free),
        loads=True,
    )


def _starts(candidates: Sequence[Trial], start: int | None, moved: bool) -> list[int | None]:
    """Return where an ordered knob's search may begin: anywhere once an earlier stage has moved the knob."""
    return list(range(len(candidates))) if moved else [start]


def _certain(stage: Stage, candidates: Sequence[Trial], base: Trial, seen: set[str]) -> list[Trial]:
    """Return the trials of the first stage that will be launched if the stage runs, whatever is measured."""
    if stage.strategy == "unimodal":
        start = _start(candidates, base)
        candidates = [candidates[(len(candidates) - 1) // 2 if start is None else start]]
    fresh: dict[str, Trial] = {}
    for trial in candidates:
        if trial.identity() not in seen:
            fresh.setdefault(trial.identity(), trial)
    return list(fresh.values())
