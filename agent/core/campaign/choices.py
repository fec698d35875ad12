"""Which trial comes next, what the last one was worth, and how the campaign ends.

The search itself is ``agent.core.search``; here its answers become events and ways through the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import Exit
from .. import containers
from ..events import Concluded, Proposed, Scored
from ..expressions import compile as compile_expression
from ..plan import Plan, State, Trial
from ..probes.benchmark import read_benchmark
from ..probes.engine import installed
from ..probes.trace import read_profile
from ..search import Confirm, Consult, Finished, Measure, Next, Rejects, Score, propose
from ..search import Record as Past
from ..servers import kind_of
from ..servers.base import ServerKind
from ..servers.lint import rejection
from ..statistics import mean, sd
from ..values import digest, rounded
from .keep import REPLACED
from .parts import Launch, Record, Visit
from .state import Campaign

EXITS = {
    "goal met": Exit.OK,
    "improved": Exit.GOAL_NOT_MET,
    "trade-off": Exit.GOAL_NOT_MET,
    "not improved": Exit.GOAL_NOT_MET,
    "not conclusive": Exit.INCONCLUSIVE,
    "invalid": Exit.INCONCLUSIVE,
    "none": Exit.GOAL_NOT_MET,
}


COLD_S = 10.0
"""A start that is longer than later ones by less than this says nothing of caches."""


@dataclass(frozen=True)
class Choice:
    """What a state that decides has to say before it is left, and how it is left."""

    first: list[Any] = field(default_factory=list)
    """Events to record before anything else is chosen."""
    outcome: str = ""
    proposal: Proposed | None = None
    because: str = ""


def evaluate(text: str, variables: Any) -> Any:
    """Evaluate a CEL expression of the plan."""
    return compile_expression(text).evaluate(variables)


def first(campaign: Campaign) -> Proposed:
    """Return the first trial of a campaign: its baseline."""
    step = propose(campaign.plan, [], evaluate)
    assert isinstance(step, (Measure, Confirm))
    return _proposed(campaign, step.trial, step.because)


def _proposed(campaign: Campaign, trial: Trial, because: str) -> Proposed:
    """Give a trial its launch: one that is up and equal when that is allowed, else a new one."""
    current = reusable(campaign)
    if (
        current is not None
        and current.trial.launch_digest() == trial.launch_digest()
        and may_share(current.trial, trial)
    ):
        return Proposed(trial=trial, launch=current.launch, because=because)
    return Proposed(trial=trial, launch=f"l{len(campaign.launches) + 1}", because=because)


def reusable(campaign: Campaign) -> Record | None:
    """Return the trial that was measured last on the server that is up, where another may be measured after it.

    Not where a profiler has run on it, nor where the last measurement was not accepted: what that left behind is not
    known, and it may have been the server's own fault.
    """
    current, record = running(campaign), campaign.record
    if current is None or record is None or record.launch != current.id or current.profiled or campaign.jobs:
        return None
    return record if record.accepted else None


def may_share(before: Trial, trial: Trial) -> bool:
    """Say whether a trial may be measured on the launch of one that is equal to it but for the load.

    A launch is made again for its own sake where ``of`` is named. The two sides of a pair of the confirmation may
    share one: what the launch adds to both falls out of their ratio.
    """
    if trial.role == "confirm":
        return before.role == "confirm" and before.id.split("-")[1] == trial.id.split("-")[1] and before.id != trial.id
    return trial.role in ("base", "candidate") and not trial.of


def running(campaign: Campaign) -> Launch | None:
    """Return the launch that is up and was found ready, or None."""
    for launch in reversed(campaign.launches.values()):
        if launch.key and not launch.gone:
            return launch if launch.health_s is not None else None
    return None


def way_out(campaign: Campaign, state: State) -> str:
    """Return the outcome of a state whose guards all pass: ``settled`` where nothing is left to do after it."""
    if "settled" in state.on:
        record = campaign.record
        if "watch" in state.do and record is not None and record.trial.role == "final":
            return "settled"
        ways = [move.outcome for move in campaign.moves if move.source == "finally"]
        if "change" in state.do and campaign.reverting:
            return "settled"
        if {"clean", "change"} & set(state.do) and ways and ways[-1] == "stop":
            return "settled"
    return "pass"


def choose(campaign: Campaign, visit: Visit, outcome: str) -> Choice:
    """Say how a state is left; only ``decide`` and ``finally`` have a choice."""
    return choose_by(campaign, visit, outcome, score, _next, choose_finally)


def choose_by(
    campaign: Campaign,
    visit: Visit,
    outcome: str,
    worth: Callable[[Campaign, Record], Scored],
    following: Callable[[Campaign], Choice],
    final: Callable[[Campaign], Choice],
) -> Choice:
    """Choose for a search or an inquiry: by its ``worth`` of a trial, its ``following`` one, its ``final`` server."""
    words = campaign.plan.state(visit.state).do
    if outcome == "pass" and "decide" in words:
        record = campaign.record
        assert record is not None
        if campaign.concluded is not None:
            return Choice(outcome="finish", because="the decision stands")
        if record.scored is None and record.trial.role != "final":
            return Choice(first=[worth(campaign, record)])
        return following(campaign)
    if outcome == "pass" and "finally" in words:
        return final(campaign)
    return Choice()


def _next(campaign: Campaign) -> Choice:
    step = proposed(campaign)
    assert not isinstance(step, Consult), "the state waits for its adviser"
    if isinstance(step, Finished):
        return Choice(first=[concluded(campaign, step)])
    proposal = _proposed(campaign, step.trial, "; ".join([step.because, *step.notes]))
    return Choice(outcome="next" if proposal.launch not in campaign.launches else "same-launch", proposal=proposal)


def proposed(campaign: Campaign) -> Next:
    """Return what follows from all that was measured and suggested so far."""
    started = sum(1 for launch in campaign.launches.values() if launch.key)
    past = [_past(campaign, item) for item in campaign.history if item.trial.role != "final"]
    own_s = campaign.now - campaign.away_s
    up = reusable(campaign)
    return propose(
        campaign.plan,
        past,
        evaluate,
        rejects(campaign),
        launches=started,
        elapsed_s=own_s,
        running=up.trial.launch_digest() if up is not None else "",
        advice=campaign.advice,
    )


def rejects(campaign: Campaign) -> Rejects:
    """Return what keeps trials from being launched that are known to fail: each would cost a whole start.

    Which release is installed the servers of this campaign have told, from the baseline on; else the first look has,
    where a guard asked for it.
    """
    kind = kind_of(campaign.server.kind)
    told = (kind.release(launch.inspected or {}, tuple(launch.log)) for launch in reversed(campaign.launches.values()))
    version = next(filter(None, told), "") or installed(campaign.baseline, kind.name)
    return lambda trial: rejection(campaign.plan, trial, version)


def _past(campaign: Campaign, record: Record) -> Past:
    scored, goal = record.scored, campaign.plan.goal
    if scored is None:
        return Past(record.trial, launch=record.launch)
    value = scored.values.get(goal.metric) if scored.valid else None
    return Past(
        record.trial,
        Score(
            value,
            finding=scored.finding,
            deviation=scored.deviations.get(goal.metric, 0.0),
            repeats=max(1, scored.repeats),
            profile=scored.profile,
            kernels=scored.kernels,
            busy=scored.busy,
            effective=scored.configuration,
            values={
                name: (scored.values[name], scored.deviations.get(name, 0.0))
                for name in goal.pareto
                if scored.valid and name in scored.values
            },
            broken=goal.broken(scored.values) if scored.valid else "",
        ),
        launch=record.launch,
    )


def score(campaign: Campaign, record: Record) -> Scored:
    """Say what a trial's benchmark on its launch was worth."""
    results = [
        result for text in record.benchmarks if (result := read_benchmark(text, campaign.plan.benchmark)) is not None
    ]
    tables = [campaign.plan.goal.weighed(result.metrics()) for result in results]
    names = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    profile = read_profile(record.profile) if record.profile else None
    launch = campaign.launches.get(record.launch)
    effective = configuration = ""
    if launch is not None and launch.inspected:
        kind = kind_of(campaign.server.kind)
        found = kind.effective(launch.inspected, tuple(launch.log))
        values = (dict(found.values) if found else {}) | containers.effective(launch.inspected, launch.key)
        effective = (
            digest({key: str(value) for key, value in values.items()})[:16] if found is not None or values else ""
        )
        if found:
            configuration = _configuration(kind, campaign.plan, record.trial, values)
    return Scored(
        trial=record.trial.id,
        launch=record.launch,
        valid=record.accepted,
        finding=record.finding if not record.accepted else "",
        values={name: rounded(mean([table[name] for table in tables])) for name in names},
        deviations={name: rounded(sd([table[name] for table in tables])) for name in names if len(tables) > 1},
        repeats=len(results),
        profile={name: rounded(share) for name, share in profile.shares.items()} if profile else {},
        kernels={name: rounded(share) for name, share in profile.kernels.items()} if profile else {},
        busy=rounded(profile.busy) if profile and profile.busy is not None else None,
        unprofiled=profile.why if profile and not profile.shares else "",
        because="discarded: it was launched to warm caches" if record.trial.role == "warm" else "",
        effective=effective,
        configuration=configuration,
    )


def _configuration(kind: ServerKind, plan: Plan, trial: Trial, seen: Mapping[str, Any]) -> str:
    """Return the digest of a trial's flags as they took effect, and of its environment.

    A flag that the server does not show counts as it was asked for, so that two trials are called alike only where
    everything they differ in is seen to be equal.
    """
    searched = [axis.key for stage in plan.search.stages for axis in stage.axes if axis.target == "flags"]
    names = dict.fromkeys([*trial.flags, *plan.search.flags, *searched])
    flags = {}
    for name in names:
        asked = trial.flags.get(name)
        value = seen.get(kind.canonical(name), "" if asked in (None, False) else asked)
        flags[kind.canonical(name)] = str(value)
    load = {"benchmark": trial.benchmark, "request": trial.request} if trial.benchmark or trial.request else {}
    return digest({"flags": flags, "env": trial.env, **load})[:16]


def _noise(step: Finished) -> list[str]:
    """Say what the launches showed of the noise and of the host, for people."""
    found, spread, drift = [], step.spread, step.drift
    if spread is not None and spread.launches:
        found.append(f"launches differ by {spread.launch:.2%}, repeats by {spread.repeat:.2%}")
    if drift is not None and drift.word == "drifted":
        change = f"{drift.change:+.1%} ± {drift.error:.1%}"
        found.append(f"the host drifted: its baseline moved by {change} from the first launch to the last")
    return found


def _cold(campaign: Campaign) -> list[str]:
    """Say that the first launch of a configuration that counts took far longer to be up than its later ones."""
    starts: dict[str, list[tuple[str, float]]] = {}
    seen: set[str] = set()
    for record in campaign.history:
        launch = campaign.launches.get(record.launch)
        if launch is not None and launch.health_s and launch.id not in seen:
            seen.add(launch.id)
            starts.setdefault(record.trial.launch_digest(), []).append((record.trial.role, launch.health_s))
    for rows in starts.values():
        (role, first), later = rows[0], sorted(seconds for _, seconds in rows[1:])
        if later and role != "warm" and first - later[len(later) // 2] > max(COLD_S, 0.5 * later[len(later) // 2]):
            usual = later[len(later) // 2]
            words = f"the first launch of a {role} was up after {first:.0f} s, later ones of it after {usual:.0f} s"
            return [f"{words}: caches were cold, `search: {{warm_launch: 1}}` discards such a launch"]
    return []


def concluded(campaign: Campaign, step: Finished) -> Concluded:
    """Say what a search that has finished comes to."""
    goal, comparison = campaign.plan.goal, step.comparison
    # Launches that were not paid for are no failure of validity: what was measured is valid, and too little.
    unpaid = step.reason == "budget" and "invalid" in (comparison.word if comparison else "", step.word)
    known = f"no comparison yet; the best that was explored is {step.winner}" if unpaid and step.winner else ""
    parts = (step.reason, step.because, known, *step.notes, *_noise(step), *_cold(campaign))
    because = "; ".join(part for part in parts if part)
    common: dict[str, Any] = {
        "metric": goal.metric,
        "winner": step.winner,
        "baseline": step.baseline,
        "because": because,
        "spread": step.spread,
        "drift": step.drift,
    }
    if step.front:
        word = "not conclusive" if unpaid else step.word
        code = Exit.BUDGET if step.reason == "budget" and word != "goal met" else EXITS[word]
        found = {"ratio": comparison.estimate, "low": comparison.low, "high": comparison.high} if comparison else {}
        if comparison:
            found |= {"level": comparison.level, "launches": comparison.launches}
        return Concluded(word=word, front=step.front, exit=code, **found, **common)
    if comparison is not None:
        # A winner that breaks a limit on a fresh launch has not been shown to be better, however fast it is.
        word = "not conclusive" if step.reason == "limit broken" or unpaid else comparison.word
        code = Exit.BUDGET if step.reason == "budget" and word != "goal met" else EXITS[word]
        return Concluded(
            word=word,
            ratio=comparison.estimate,
            low=comparison.low,
            high=comparison.high,
            level=comparison.level,
            launches=comparison.launches,
            exit=code,
            **common,
        )
    match step.reason:
        case "no candidate beats the baseline in exploration":
            return Concluded(word="not improved", exit=Exit.GOAL_NOT_MET, **common)
        case "budget":
            return Concluded(word="not conclusive", exit=Exit.BUDGET, **common)
        case "explored" | "limit broken":
            return Concluded(word="not conclusive", exit=Exit.INCONCLUSIVE, **common)
    return Concluded(word="invalid", exit=Exit.INCONCLUSIVE, **common)


def choose_finally(campaign: Campaign) -> Choice:
    """Choose what is left running at the end."""
    if campaign.concluded is None:
        stopped = Concluded(word="none", exit=Exit.GOAL_NOT_MET, because="stopped by the operator before a decision")
        return Choice(first=[stopped])
    passed = {move.outcome for move in campaign.moves if move.source == "finally"}
    finals = [record for record in campaign.history if record.trial.role == "final"]
    mode, nothing = campaign.plan.finally_, "nothing of this run is left running"
    if mode == "restore" and not campaign.kept:
        mode, nothing = "stop", f"no server was replaced whose command could be kept: {nothing}"
    if campaign.stopping and mode == "winner":
        mode = "stop"
    if mode == "stop" or finals or "launch" in passed:
        if "stop" in passed:
            return Choice(outcome="leave", because="everything of this run has been stopped")
        if campaign.stopping:
            return Choice(outcome="stop", because=f"the operator's order: {nothing}")
        if finals:
            up = campaign.launches[finals[-1].launch].health_s is not None
            nothing = f"what was to be left {'came up and did not hold' if up else 'did not come up'}: {nothing}"
        return Choice(outcome="stop", because=nothing)
    return _restore(campaign) if mode == "restore" else _leave_winner(campaign)


def _restore(campaign: Campaign) -> Choice:
    """Start the server again that was there before this run."""
    trial = Trial(id="restored", role="final", of=REPLACED)
    because = "the server that was replaced is started again, with its own command"
    proposal = Proposed(trial=trial, launch=f"l{len(campaign.launches) + 1}", because=because)
    return Choice(outcome="launch", proposal=proposal, because=because)


def _leave_winner(campaign: Campaign) -> Choice:
    decision = campaign.concluded
    assert decision is not None
    wanted = decision.winner if decision.word in ("goal met", "improved", "found") else decision.baseline
    valid = [record.trial for record in campaign.history if record.accepted]
    trial = next((trial for trial in valid if trial.id == wanted), None)
    if trial is None:
        return Choice(outcome="stop", because="no valid configuration is known: nothing is left running")
    current = running(campaign)
    if current is not None and not campaign.jobs:
        record = next(record for record in campaign.history if record.launch == current.id)
        if record.trial.launch_digest() == trial.launch_digest():
            return Choice(outcome="leave", because=f"{trial.id} is running and stays")
    final = trial.model_copy(update={"id": "final", "role": "final", "of": trial.id})
    proposal = Proposed(trial=final, launch=f"l{len(campaign.launches) + 1}", because=f"{trial.id} is to stay running")
    return Choice(outcome="launch", proposal=proposal, because=f"{trial.id} is to stay running")
