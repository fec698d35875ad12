"""What to find out next, from what was found out: a pure function of the plan and the history of a debug campaign.

Hypotheses: the baseline shows the fault; then each hypothesis in turn, those first that need no launch, then by what
a launch of theirs costs and by how many others either verdict rules out. Bisection: ``agent.core.bisect`` says which
point is next, here it becomes a trial. Nothing is kept between calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from . import bisect
from .changes import DryRun
from .debugging import Debug, Delta, FlagGiven, Hypothesis
from .plan import Plan, Trial
from .search import Measure, Rejects
from .trials import Evaluate, resolve_trial
from .values import Result, Verdict

Word = Literal["supported", "refuted", "undecided"]


@dataclass(frozen=True, slots=True)
class Past:
    """A trial that was proposed. ``word`` None = it is still being tested; for the baseline it says nothing.

    ``told``: verdicts of what was looked at and gates nothing, by name.
    """

    trial: Trial
    done: bool = False
    word: Word | None = None
    because: str = ""
    told: Mapping[str, Verdict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settled:
    """A hypothesis that is decided without a launch of its own."""

    trial: Trial
    word: Word
    because: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more is to be found out. ``winner`` is the trial without the fault; '' = there is none."""

    word: Literal["found", "not found", "not conclusive"]
    because: str
    winner: str = ""
    budget: bool = False


Next = Measure | Settled | Ended

POINT = "point-"
"""What ids of bisected trials begin with."""


def judged(told: Mapping[str, Verdict], kind: str) -> tuple[Result | None, str]:
    """Return the worst verdict of one kind (``predict``, ``evidence``, ``healthy``, ``bad``), with what was seen.

    FAIL counts more than UNKNOWN: one prediction that fails refutes. None = nothing of the kind was judged.
    """
    rows = [verdict for name, verdict in told.items() if name.split(" ")[0] == kind]
    for wanted in (Result.FAIL, Result.UNKNOWN, Result.WAIT):
        for row in rows:
            if row.result is wanted:
                return wanted, row.saw
    return (Result.PASS, "; ".join(row.saw for row in rows)) if rows else (None, "")


def verdict_of(told: Mapping[str, Verdict], finding: str) -> tuple[Word, str]:
    """Return what a test of a hypothesis came to, and why. ``finding``: the class of what its trial ended in."""
    evidence, saw = judged(told, "evidence")
    if evidence not in (None, Result.PASS):
        return "undecided", f"the test does not count: {saw}"
    result, saw = judged(told, "predict")
    if result is Result.PASS:
        return "supported", saw
    if result is Result.FAIL:
        return "refuted", saw
    return "undecided", saw or f"it ended before the prediction could be tested{f': {finding}' if finding else ''}"


# ---------------------------------------------------------------- trials


def trial_of(plan: Plan, delta: Delta, evaluate: Evaluate, base: Sequence[Delta] = (), predicts: str = "") -> Trial:
    """Return the trial of a difference on top of others; raises what ``evaluate`` raises."""
    point: dict[str, FlagGiven] = {}
    for one in (*base, delta):
        point |= {f"flags.{key}": value for key, value in one.flags.items()}
        point |= {f"env.{key}": value for key, value in one.env.items()}
    files = tuple(change for one in (*base, delta) for change in one.files)
    trial = resolve_trial(plan, delta.name, "hypothesis", "", point, {}, {}, evaluate)
    return trial.model_copy(update={"files": files, "predicts": predicts})


def wording(hypothesis: Hypothesis) -> str:
    """Say what a hypothesis predicts."""
    return "; ".join(guard.wants() for guard in hypothesis.predict)


def rank(debug: Debug) -> list[Hypothesis]:
    """Return the hypotheses in the order in which they are tested."""

    def key(item: tuple[int, Hypothesis]) -> tuple[int, int, int]:
        number, one = item
        decides = len({*one.rules_out.get("supported", ()), *one.rules_out.get("refuted", ())})
        return one.cost, -decides, number

    return [one for _, one in sorted(enumerate(debug.hypotheses), key=key)]


def kept(debug: Debug, history: Sequence[Past]) -> list[Hypothesis]:
    """Return the hypotheses whose changes stay, in the order in which they were made."""
    found = []
    for past in history:
        one = debug.of(past.trial.id) if past.trial.role == "hypothesis" else None
        if one is None or past.word is None or one in found:
            continue
        if one.revert == "never" or (one.revert == "unless-supported" and past.word == "supported"):
            found.append(one)
    return found


# ---------------------------------------------------------------- hypotheses


def propose(
    plan: Plan,
    history: Sequence[Past],
    evaluate: Evaluate,
    rejects: Rejects | None = None,
    surveyed: Mapping[str, DryRun] | None = None,
    *,
    launches: int = 0,
    elapsed_s: float = 0.0,
) -> Next:
    """Return the next thing to find out, or what was found. ``surveyed``: dry runs, by hypothesis or point."""
    debug = plan.debug
    assert debug is not None
    pending = next((past for past in history if not past.done), None)
    if pending is not None:
        return Measure(pending.trial, "it was proposed and has no verdict yet")
    if debug.bisect is not None:
        step = _bisect(plan, history, evaluate, surveyed or {})
    else:
        step = _hypotheses(plan, debug, history, evaluate, rejects, surveyed or {})
    budget = plan.budget
    if isinstance(step, Measure):
        if budget.launches is not None and launches >= budget.launches and step.trial.id:
            return Ended("not conclusive", f"{launches} of {budget.launches} launches are used", budget=True)
        if budget.time_s is not None and elapsed_s >= budget.time_s:
            return Ended("not conclusive", f"{elapsed_s:.0f} s of {budget.time_s:.0f} s are used", budget=True)
    return step


def _hypotheses(
    plan: Plan,
    debug: Debug,
    history: Sequence[Past],
    evaluate: Evaluate,
    rejects: Rejects | None,
    surveyed: Mapping[str, DryRun],
) -> Next:
    baseline = next((past for past in history if past.trial.role == "baseline"), None)
    if baseline is None:
        trial = resolve_trial(plan, "baseline", "baseline", "", {}, {}, {}, evaluate)
        return Measure(trial, "the fault as it is, before anything is changed")
    healthy, saw = judged(baseline.told, "healthy")
    if healthy is Result.PASS:
        return Ended("not conclusive", f"the fault does not show: {saw}", baseline.trial.id)
    words = {past.trial.id: past for past in history if past.trial.role == "hypothesis"}
    supported = [name for name, past in words.items() if past.word == "supported" and not _looks(debug, name)]
    if supported and debug.until == "supported":
        return _end(debug, words, supported)
    ruled = _ruled_out(debug, words)
    for one in rank(debug):
        if one.name not in words and one.name not in ruled:
            return _test(plan, debug, one, baseline, history, evaluate, rejects, surveyed.get(one.name))
    return _end(debug, words, supported)


def _looks(debug: Debug, name: str) -> bool:
    """Whether a hypothesis only looks: it shows something, and cures nothing."""
    one = debug.of(name)
    return one is not None and one.empty


def _ruled_out(debug: Debug, words: Mapping[str, Past]) -> dict[str, str]:
    """Return which hypotheses need no test, by the one whose verdict says so."""
    found: dict[str, str] = {}
    for one in debug.hypotheses:
        past = words.get(one.name)
        if past is not None and past.word in ("supported", "refuted"):
            found |= dict.fromkeys(one.rules_out.get(past.word, ()), f"{one.name} is {past.word}")
    return found


def _test(
    plan: Plan,
    debug: Debug,
    one: Hypothesis,
    baseline: Past,
    history: Sequence[Past],
    evaluate: Evaluate,
    rejects: Rejects | None,
    dry: DryRun | None,
) -> Next:
    """Propose the test of a hypothesis; one whose outcome is known beforehand costs no launch."""
    base = kept(debug, history)
    try:
        trial = trial_of(plan, one, evaluate, base, wording(one))
    except ValueError as problem:
        return Settled(
            baseline.trial.model_copy(update={"id": one.name, "role": "hypothesis"}), "undecided", str(problem)
        )
    if one.empty:
        return Measure(trial, one.because)
    if dry is not None and dry.refused:
        return Settled(trial, "undecided", f"its change does not fit: {dry.refused}")
    same = not base and _plain(trial) == _plain(baseline.trial) and (dry.same if dry is not None else not one.files)
    if same:
        return Settled(trial, "refuted", "everything is so already, and the fault is there")
    before, saw = judged({n: v for n, v in baseline.told.items() if n.split(" ")[1:2] == [one.name]}, "predict")
    if before is Result.PASS:
        return Settled(trial, "undecided", f"the baseline shows it as well: {saw}")
    reason = rejects(trial) if rejects else ""
    if reason:
        return Settled(trial, "undecided", f"it is not launched: {reason}")
    return Measure(trial, one.because)


def _plain(trial: Trial) -> str:
    return trial.model_copy(update={"files": ()}).launch_digest()


def _end(debug: Debug, words: Mapping[str, Past], supported: Sequence[str]) -> Ended:
    names = {word: [name for name, past in words.items() if past.word == word] for word in ("refuted", "undecided")}
    rest = [one.name for one in debug.hypotheses if one.name not in words]
    parts = [f"{word}: {', '.join(found)}" for word, found in names.items() if found]
    parts += [f"not tested: {', '.join(rest)}"] if rest else []
    if supported:
        # One that shows what would go wrong is supported, and no cure.
        well = [name for name in supported if judged(words[name].told, "healthy")[0] in (None, Result.PASS)]
        return Ended("found", "; ".join([f"supported: {', '.join(supported)}", *parts]), (well or [""])[-1])
    seen = [name for name, past in words.items() if past.word == "supported"]
    if seen and all(one.empty for one in debug.hypotheses):
        return Ended("found", "; ".join([f"supported: {', '.join(seen)}", *parts]))
    if names["undecided"]:
        return Ended("not conclusive", "; ".join(parts))
    return Ended("not found", "; ".join(parts) or "there was no hypothesis")


# ---------------------------------------------------------------- bisection


def subset_name(points: Sequence[int], plan: Plan) -> str:
    """Name a set of changes: by what they are called where that is short."""
    assert plan.debug is not None
    assert plan.debug.bisect is not None
    names = [plan.debug.bisect.points[point].name for point in points]
    joined = "+".join(names) or "none"
    return f"{POINT}{joined if len(joined) <= 40 else '-'.join(str(point + 1) for point in points)}"


def _delta(plan: Plan, points: Sequence[int], id_: str) -> Delta:
    """Return several changes as one."""
    assert plan.debug is not None
    assert plan.debug.bisect is not None
    parts = [plan.debug.bisect.points[point] for point in points]
    return Delta(
        name=id_,
        flags={key: value for part in parts for key, value in part.flags.items()},
        env={key: value for part in parts for key, value in part.env.items()},
        files=tuple(change for part in parts for change in part.files),
    )


def point_word(past: Past) -> bisect.Word:
    """Return whether the fault was there."""
    result, _ = judged(past.told, "bad")
    return "bad" if result is Result.PASS else "good" if result is Result.FAIL else "unknown"


def _bisect(plan: Plan, history: Sequence[Past], evaluate: Evaluate, surveyed: Mapping[str, DryRun]) -> Next:
    debug = plan.debug
    assert debug is not None
    task = debug.bisect
    assert task is not None
    by_id = {past.trial.id: past for past in history}
    by_launch = {past.trial.launch_digest(): past for past in history if not past.trial.of}
    known: dict[tuple[int, ...], bisect.Word] = {}

    def trial(points: Sequence[int], suffix: str = "", of: str = "") -> Trial:
        name = subset_name(points, plan) + suffix
        made = trial_of(plan, _delta(plan, points, name), evaluate, (), "; ".join(guard.wants() for guard in task.bad))
        return made.model_copy(update={"of": of})

    while True:
        ordered = {points[0]: word for points, word in known.items() if len(points) == 1}
        step = (
            bisect.halve(len(task.points), ordered)
            if task.mode == "ordered"
            else bisect.reduce(len(task.points), known)
        )
        if isinstance(step, bisect.Found):
            break
        fresh = trial(step.points)
        past = by_id.get(fresh.id) or by_launch.get(fresh.launch_digest())
        refused = [
            dry.refused for point in step.points if (dry := surveyed.get(task.points[point].name)) and dry.refused
        ]
        if past is not None:
            known[step.points] = point_word(past)
        elif refused:
            known[step.points] = "unknown"
        else:
            return Measure(fresh, step.because)
    if step.word != "found":
        said = {
            "not there": "the fault does not show where it was to be",
            "always there": "the fault is there without any of the changes",
            "not testable": "one of the ends cannot be tested",
        }[step.word]
        return Ended("not conclusive", said)
    return _confirmed(plan, step, by_id, trial)


def _confirmed(plan: Plan, found: bisect.Found, by_id: Mapping[str, Past], trial: object) -> Next:
    """Launch both sides once more; a fault that then behaves otherwise is no finding."""
    assert plan.debug is not None
    task = plan.debug.bisect
    assert task is not None
    assert callable(trial)
    sides = {"bad": found.bad, "good": found.good if task.mode == "ordered" else ()}
    names = [task.points[point].name for point in found.bad]
    blamed = ", ".join(names)
    skipped = [task.points[point].name for point in found.between]
    if task.mode == "ordered":
        before = task.points[found.good[0]].name
        said = f"it comes with {blamed}: {before} is without it"
        if skipped:
            said = f"it comes in between {before} and {blamed}; not testable: {', '.join(skipped)}"
    else:
        said = f"it takes {blamed}, and no less"
        if skipped:
            said += f"; whether it takes {', '.join(skipped)} could not be tested"
    if not task.confirm:
        return Ended("found", said, subset_name(sides["good"], plan))
    for word, points in sides.items():
        suffix = f"-{word}-again"
        past = by_id.get(subset_name(points, plan) + suffix)
        if past is None:
            fresh: Trial = trial(points, suffix, subset_name(points, plan))
            return Measure(fresh, f"{word} once more, on a fresh launch")
        if point_word(past) != word:
            now = point_word(past)
            return Ended("not conclusive", f"{said}; but launched again, {subset_name(points, plan)} was {now}")
    return Ended("found", f"{said}; confirmed both ways", subset_name(sides["good"], plan))
