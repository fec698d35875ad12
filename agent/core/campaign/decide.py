"""The only brain: what follows from what is known.

``decide`` looks at the campaign and returns the next derived events, none when there is nothing to do but wait
for the world. It has no clock, no randomness but the plan's seed, and no I/O. The engine records what it returns,
folds it and asks again until it is quiet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..actions import Cancel, Start, Wait
from ..events import Judged, Moved, Requested
from ..evidence import Evidence
from ..guards import Guard, judge
from ..machine import ENDS, HOLD
from ..observations import Completed, Refused
from ..plan import State
from ..probes.inputs import changed_inputs
from ..servers import kind_of
from ..values import Finding, Result, Verdict, worst
from . import choices, inquiry
from .common import RELEASE_S, Context, Step, again, inputs_action, merge, sure
from .examine import passed_states, told_guards
from .keep import REPLACED
from .lease import fenced, lease_of, look_up, refused, untouched
from .parts import LANE, Visit
from .state import Campaign, is_cancelled
from .steps import STEPS

LOST_MAX = 2
"""How often a trial's launch is made again after the host lost its server."""
UNKNOWN_ROUNDS = 5
"""How many rounds of polling may end in UNKNOWN before the state is left by ``unknown``."""


def decide(campaign: Campaign) -> list[Any]:
    """Return the events that follow now, in order; [] when only the world can go on."""
    if campaign.opened is None or campaign.interrupted:
        return []
    if campaign.visit is None:
        return _begin(campaign)
    if campaign.visit.state == HOLD:
        return _take_up(campaign)
    if campaign.over:
        return _take_back(campaign, campaign.visit) or _wind_up(campaign, campaign.visit)
    return _live(campaign, campaign.visit)


def _begin(campaign: Campaign) -> list[Any]:
    proposal = (inquiry if campaign.plan.debug is not None else choices).first(campaign)
    first = campaign.machine.first
    move = Moved(lane=LANE, source="", outcome="open", state=first, trial=proposal.trial.id, launch=proposal.launch)
    return [proposal, move]


def _take_up(campaign: Campaign) -> list[Any]:
    """Leave a hold: a later resume does that, once; what holds again, even an order to stop, rests again."""
    held = campaign.held
    if held is None or not campaign.take_up:
        return []
    # Where the host was not clean, what has been adopted since is ended first.
    kill = next((state.name for state in campaign.plan.states if "kill" in state.do), held.state)
    unclean = campaign.adopted and held.state not in ENDS and "clean" in campaign.plan.state(held.state).do
    return [_move(campaign, held, "resumed", kill if unclean else held.state, source=HOLD)]


def left_behind(campaign: Campaign) -> bool:
    """Whether a run that rests has left something of its own; a server that it put back is its operator's again."""
    record = campaign.record
    return bool(campaign.keys()) and not (record is not None and record.trial.of == REPLACED)


def _wind_up(campaign: Campaign, visit: Visit) -> list[Any]:
    """End what a finished run left running, when the operator says so; else it rests."""
    if not campaign.stopping or not left_behind(campaign) or campaign.machine.step(visit.state, "stop", {}) is None:
        return []
    if campaign.renew:
        context = Context(campaign, visit, evidence_of(campaign, visit))
        if (renewal := _renewal(campaign, context)) is not None:
            return renewal
    return [_move(campaign, visit, "stop", "finally", because="the operator's order, after the end")]


def _take_back(campaign: Campaign, visit: Visit) -> list[Any]:
    """After the end only an order leads anywhere: to put back on the hosts what was to stay."""
    state = next((state.name for state in campaign.plan.states if "change" in state.do), "")
    if not campaign.reverting or not campaign.edits.in_place() or not state or not campaign.renew:
        return []
    return [_move(campaign, visit, "revert", state, because="the operator's order")]


def _live(campaign: Campaign, visit: Visit) -> list[Any]:
    """One visit: ask what is to be asked, judge what is known, leave when it is settled."""
    state = campaign.plan.state(visit.state)
    context = Context(campaign, visit, evidence_of(campaign, visit))
    if campaign.renew and not untouched(campaign) and (renewal := _renewal(campaign, context)) is not None:
        return renewal
    if (review := _review(campaign, context)) is not None:
        return review
    if (fence := fenced(visit)) is not None:
        return _leave(campaign, context, "fenced", f"another controller holds the host: {fence}; nothing more is done")
    if campaign.stopping and not _is_stopping(campaign):
        return _leave(campaign, context, "stop", "the operator's order")
    step = _step(context, state)
    # Once it is being left, a state is left on what was judged: what comes in meanwhile is not judged again.
    leaving = any(isinstance(answer.action, Cancel) for answer in visit.answers)
    verdicts = dict(visit.verdicts) if leaving else _verdicts(context, state, step)
    events: list[Any] = [
        Judged(at=visit.path, guard=name, verdict=verdict)
        for name, verdict in verdicts.items()
        if _is_news(visit.verdicts.get(name), verdict)
    ]
    told = visit.told if leaving or not step.done else _told(context, state)
    events += [
        Judged(at=visit.path, guard=name, verdict=verdict, gates=False)
        for name, verdict in told.items()
        if _is_news(visit.told.get(name), verdict)
    ]
    if events:
        return events
    outcome, because = _outcome(context, state, step, verdicts)
    if outcome is not None:
        # What the state is left on stands in the record as it was last seen, not as it was first.
        last = [name for name, verdict in verdicts.items() if visit.verdicts.get(name) != verdict]
        if last:
            return [Judged(at=visit.path, guard=name, verdict=verdicts[name]) for name in last]
        return _leave(campaign, context, outcome, because)
    asks = list(step.ask)
    if step.done and not asks and not any(answer.outcome is None for answer in visit.of("pause")):
        asks = again(context)  # the guards want another look
    if not visit.of("deadline"):
        asks.insert(0, ("deadline", Wait(until_s=round(visit.entered_s + state.timeout_s, 3))))
    return list(_requests(context, asks))


def _requests(context: Context, asks: list[tuple[str, Any]]) -> Iterator[Requested]:
    made: dict[str, int] = {}
    for role, action in asks:
        if isinstance(action, Start) and action.again:
            # The same start under the same key: named after the first, so that later ones keep their names.
            first = action.again.partition("~")[0]
            yield Requested(request=f"{first}~{_asked_again(context, first) + 2}", action=action)
            continue
        count = context.visit.count(role) + made.get(role, 0)
        made[role] = made.get(role, 0) + 1
        name = role + (f".{count + 1}" if count else "")
        yield Requested(request=f"{context.visit.path}/{name}", action=action)


def _asked_again(context: Context, request: str) -> int:
    """Return how often a start has been asked again so far."""
    return sum(1 for answer in context.visit.answers if answer.request.startswith(f"{request}~"))


def evidence_of(campaign: Campaign, visit: Visit) -> Evidence:
    """Return what guards may look at in this visit."""
    record, launch = campaign.record, campaign.launches.get(visit.launch)
    return Evidence(
        plan=campaign.plan,
        server=campaign.server,
        kind=kind_of(campaign.server.kind),
        trial=record.trial if record else None,
        now=campaign.now,
        entered_s=visit.entered_s,
        answers=visit.answers,
        launch_key=launch.key if launch else "",
        launched=launch.started if launch else None,
        ours=frozenset(campaign.keys()),
        confirmed=frozenset(campaign.confirmed),
        baseline=campaign.baseline,
        launch_log=tuple(launch.log) if launch else (),
        passed=passed_states(campaign, visit.launch) if campaign.plan.debug is not None else frozenset(),
        finding=record.finding if record else "",
        results=record.benchmarks if record else (),
        answered=launch.answers.get(record.trial.asked() if record else "", "") if launch else "",
        reference=campaign.reference,
        profile=record.profile if record else "",
    )


def _step(context: Context, state: State) -> Step:
    steps = [STEPS[word](context) for word in state.do]
    step = merge(*steps) if steps else Step(done=True)
    verdicts = [found.verdict for found in steps if found.verdict is not None]
    if verdicts:
        step.verdict = max(verdicts, key=lambda verdict: list(Result).index(verdict.result))
    return step


def _verdicts(context: Context, state: State, step: Step) -> dict[str, Verdict]:
    """Judge every guard on what is known; worked out once for each new fact."""
    visit = context.visit
    if visit.judged_at != visit.facts:
        # An order to stop ends what is ours; who else is on the host is then no longer our affair.
        last = context.campaign.stopping and "clean" in state.do
        guards = named(state.guards) if not last else {}
        if state.name == context.campaign.machine.first:
            guards |= {f"assumption {name}": guard for name, guard in context.campaign.plan.assumptions.items()}
        visit.judged = {name: judge(guard, context.evidence) for name, guard in guards.items()} if visit.facts else {}
        visit.judged_at = visit.facts
    own = {state.do[0]: step.verdict} if step.verdict is not None else {}
    return {**own, **visit.judged}


def _told(context: Context, state: State) -> dict[str, Verdict]:
    """Judge what gates nothing, once for each new fact: what the state observes, and what a test predicts."""
    visit = context.visit
    if visit.observed_at != visit.facts:
        guards = named(state.observe)
        if "test" in state.do:
            guards |= told_guards(context.campaign)
        visit.observed = {name: judge(guard, context.evidence) for name, guard in guards.items()}
        visit.observed_at = visit.facts
    return visit.observed


def named(guards: Sequence[Guard]) -> dict[str, Guard]:
    """Give each guard of a state a name of its own: its kind, numbered from the second of a kind on."""
    found: dict[str, Guard] = {}
    for guard in guards:
        count = sum(1 for other in found.values() if other.guard == guard.guard)
        found[guard.guard if not count else f"{guard.guard}.{count + 1}"] = guard
    return found


def _is_news(old: Verdict | None, new: Verdict) -> bool:
    return old is None or (old.result, old.finding) != (new.result, new.finding)


def _outcome(context: Context, state: State, step: Step, verdicts: dict[str, Verdict]) -> tuple[str | None, str]:
    """Return how the state is left, or None while it goes on."""
    failures = [(name, verdict) for name, verdict in verdicts.items() if verdict.result is Result.FAIL]
    if failures:
        for name, verdict in failures:
            if verdict.finding is Finding.LOST and "lost" in state.on and _may_be_lost(context):
                return "lost", f"{name}: {verdict.saw}"
        name, verdict = failures[0]
        return _retry(context, state, "fail"), f"{name}: {verdict.saw}"
    deadline = context.visit.of("deadline")
    if deadline and isinstance(deadline[0].outcome, Completed):
        waiting = [name for name, verdict in verdicts.items() if verdict.result is not Result.PASS]
        return _retry(context, state, "timeout"), f"{state.timeout_s:g} s passed; open: {', '.join(waiting) or 'work'}"
    if not step.done:
        return None, ""
    result = worst([verdict.result for verdict in verdicts.values()]) if verdicts or state.guards else Result.PASS
    match result:
        case Result.PASS:
            told = "change" in state.do and step.verdict is not None and step.verdict.saw
            return choices.way_out(context.campaign, state), told or ("all guards pass" if verdicts else "")
        case Result.WAIT:
            return None, ""
    rounds = len(context.visit.of("pause"))
    if "clean" in state.do and rounds < UNKNOWN_ROUNDS:
        return None, ""
    unclear = [f"{name}: {verdict.saw}" for name, verdict in verdicts.items() if verdict.result is Result.UNKNOWN]
    return _retry(context, state, "unknown"), unclear[0] if unclear else "nothing was judged"


def _may_be_lost(context: Context) -> bool:
    """Whether the server may be launched again: where every launch is lost, the trial is given up in the end."""
    visit = context.visit
    moves = [move for move in context.campaign.moves if (move.trial, move.launch) == (visit.trial, visit.launch)]
    return sum(1 for move in moves if move.outcome == "lost") < LOST_MAX


def _retry(context: Context, state: State, outcome: str) -> str:
    """Take another attempt where the state has one left and the trouble is of a kind that may pass."""
    final = {Finding.FOREIGN, Finding.WEDGED, Finding.CONFIG_INVALID, Finding.CONFIG_OVERRIDDEN, Finding.UNSUPPORTED}
    found = {verdict.finding for verdict in context.visit.verdicts.values() if verdict.result is Result.FAIL}
    return "retry" if context.visit.attempt < state.attempts and not found & final else outcome


def _leave(campaign: Campaign, context: Context, outcome: str, because: str) -> list[Any]:
    """Give up what is still open, await it, then move."""
    visit = context.visit
    # Giving the lease back is part of leaving: given up itself, it would lock the host to everybody for half an hour.
    kept = {"release", "patience"} if visit.of("release") else {"release"}
    given_up = [answer for answer in visit.open() if answer.role not in kept and not isinstance(answer.action, Cancel)]
    waiting = [answer.request for answer in given_up]
    fresh = tuple(request for request in waiting if not is_cancelled(campaign, request))
    if fresh:
        return list(_requests(context, [("cancel", Cancel(requests=fresh))]))
    if visit.open():
        return []
    rests = outcome == "changed" or (outcome == "stop" and campaign.machine.stop == HOLD)
    if rests and (release := _release(campaign, visit, HOLD)) is not None:
        return release
    if outcome in ("fenced", "changed"):
        return [_move(campaign, visit, outcome, HOLD, because=because)]
    if outcome == "stop":
        missing = "; its graph has no `finally`, so what it started stays as it is"
        because += missing if campaign.machine.stop == HOLD else ""
        return [_move(campaign, visit, "stop", campaign.machine.stop, because=because)]
    return _go(campaign, visit, outcome, because)


def _go(campaign: Campaign, visit: Visit, outcome: str, because: str) -> list[Any]:
    """Move by the table; a state that decides first says what it found and chose."""
    choose = inquiry.choose if campaign.plan.debug is not None else choices.choose
    chosen = choose(campaign, visit, outcome)
    if chosen.first:
        return chosen.first
    outcome, because = chosen.outcome or outcome, chosen.because or because
    state = campaign.plan.state(visit.state)
    target = campaign.machine.step(visit.state, outcome, visit.verdicts, state.attempts - visit.attempt)
    if target is None:
        # The table or its condition refuses: never silent, never a way around a guard.
        because = f"the table has no way out of {visit.state} by {outcome}: {because}"
        return [_move(campaign, visit, f"refused {outcome}", HOLD, because=because)]
    if target in ENDS and (release := _release(campaign, visit, target)) is not None:
        return release
    proposal = chosen.proposal
    trial = proposal.trial.id if proposal else visit.trial
    launch = proposal.launch if proposal else visit.launch
    move = _move(campaign, visit, outcome, target, trial, launch, because=because)
    return [proposal, move] if proposal else [move]


def _release(campaign: Campaign, visit: Visit, target: str) -> list[Any] | None:
    """Give the lease back before the lane rests, unless a server of ours is left to a hold; None when that is done."""
    ours = any(launch.key and not launch.gone for launch in campaign.launches.values())
    if not campaign.leased or (target == HOLD and ours):
        return None
    context = Context(campaign, visit, evidence_of(campaign, visit))
    # A lost answer would leave the host leased to nobody; a host that is gone must not keep the run from its end.
    step = sure(context, "release", lease_of(campaign, give_back=True), away_s=RELEASE_S)
    return None if step.done else list(_requests(context, step.ask))


def _move(
    campaign: Campaign,
    visit: Visit,
    outcome: str,
    target: str,
    trial: str | None = None,
    launch: str | None = None,
    *,
    source: str | None = None,
    because: str = "",
) -> Moved:
    trial, launch = visit.trial if trial is None else trial, visit.launch if launch is None else launch
    return Moved(
        lane=LANE,
        source=visit.state if source is None else source,
        outcome=outcome,
        state=target,
        trial=trial,
        launch=launch,
        attempt=campaign.visits.get((trial, launch, target), 0) + 1,
        because=because,
    )


def _renewal(campaign: Campaign, context: Context) -> list[Any] | None:
    """Take the lease again after a resume, or hold; None when there is nothing (more) to be done about it."""
    step = look_up(context, f"devices-{campaign.resumes}")
    if step.verdict is not None:
        return _leave(campaign, context, "fenced", f"the lease cannot be taken again: {step.verdict.saw}")
    if not step.done:
        return list(_requests(context, step.ask))
    role = f"renew-{campaign.resumes}"
    step = sure(context, role, lease_of(campaign))
    if not step.done:
        return list(_requests(context, step.ask))
    outcome, said = context.visit.of(role)[-1].outcome, "no answer"
    if isinstance(outcome, Refused):
        verdict = refused(outcome.text, campaign.server.host)
        said = f"{verdict.saw}; {verdict.remedy}"
    how = "taken again" if campaign.worked else "taken"
    return _leave(campaign, context, "fenced", f"the lease cannot be {how}: {said}")


def _review(campaign: Campaign, context: Context) -> list[Any] | None:
    """Look at the inputs again after a resume, and hold when they changed; None when there is nothing (more) to do.

    An order to stop, or to put back what was changed, is obeyed whatever became of them.
    """
    if not campaign.resumes or not campaign.inputs or campaign.stopping or campaign.reverting:
        return None
    if campaign.inputs_now is None:
        step = sure(context, f"inputs-{campaign.resumes}", inputs_action(context))
        if not step.done:
            return list(_requests(context, step.ask))
        return _leave(
            campaign, context, "changed", "whether the inputs changed is not known: the look at them was lost"
        )
    # What this run changed on the host itself, and may have yet to put back, is nobody else's doing.
    changed = changed_inputs(campaign.inputs, campaign.inputs_now, files=not campaign.edits.made)
    if not changed:
        return None
    because = f"the inputs changed: {'; '.join(changed)}"
    return _leave(campaign, context, "changed", f"{because}; undo that, or go on with it by `agent resume --rebase`")


def _is_stopping(campaign: Campaign) -> bool:
    """Whether the way to the end has been taken already."""
    return any(move.outcome == "stop" and move.state == "finally" for move in campaign.moves)
