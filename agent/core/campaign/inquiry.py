"""What a debug campaign finds out next, what a test came to, and how it ends: ``agent.core.hypotheses`` as events."""

from __future__ import annotations

from dataclasses import replace

from ...errors import Exit
from ..events import Concluded, Proposed, Scored
from ..hypotheses import Ended, Past, Settled, judged, propose, verdict_of
from ..plan import Trial
from ..search import Measure
from ..values import Result
from .change import dry_runs, staying
from .choices import Choice, choose_by, choose_finally, evaluate, rejects, score
from .parts import NO_LAUNCH, Record, Visit
from .state import Campaign

EXITS = {"found": Exit.OK, "not found": Exit.GOAL_NOT_MET, "not conclusive": Exit.INCONCLUSIVE}


def first(campaign: Campaign) -> Proposed:
    """Return the first trial: the fault as it is, or an end of what is bisected."""
    step = _propose(campaign)
    assert isinstance(step, Measure)
    return _proposed(campaign, step.trial, step.because)


def choose(campaign: Campaign, visit: Visit, outcome: str) -> Choice:
    """Say how a state is left; only ``decide`` and ``finally`` have a choice."""
    return choose_by(campaign, visit, outcome, _scored, _next, _finally)


def _finally(campaign: Campaign) -> Choice:
    """Choose what is left running; it runs on a host where only what is to stay is changed."""
    choice = choose_finally(campaign)
    if choice.proposal is None:
        return choice
    trial = choice.proposal.trial.model_copy(update={"files": staying(campaign)})
    return replace(choice, proposal=choice.proposal.model_copy(update={"trial": trial}))


def _next(campaign: Campaign) -> Choice:
    step = _propose(campaign)
    match step:
        case Ended():
            return Choice(first=[_concluded(campaign, step)])
        case Settled(trial=trial, word=word, because=because):
            # Said before it is decided, as every other prediction, although it costs no launch.
            proposal = Proposed(trial=trial, launch=NO_LAUNCH, because=because)
            told = Scored(trial=trial.id, launch=NO_LAUNCH, valid=False, verdict=word, because=because)
            return Choice(first=[proposal, told])
    proposal = _proposed(campaign, step.trial, step.because)
    return Choice(outcome="next" if proposal.launch not in campaign.launches else "same-launch", proposal=proposal)


def _propose(campaign: Campaign) -> Measure | Settled | Ended:
    started = sum(1 for launch in campaign.launches.values() if launch.key)
    past = [_past(record) for record in campaign.history if record.trial.role != "final"]
    return propose(
        campaign.plan,
        past,
        evaluate,
        rejects(campaign),
        dry_runs(campaign),
        launches=started,
        elapsed_s=campaign.now - campaign.away_s,
    )


def _past(record: Record) -> Past:
    scored = record.scored
    if scored is None:
        return Past(record.trial, told=record.told)
    return Past(record.trial, True, scored.verdict or None, scored.because, record.told)


def _proposed(campaign: Campaign, trial: Trial, because: str) -> Proposed:
    """Give a trial its launch: where it only looks, the one that is there, even if it never came up; else a new one."""
    current = next(reversed(campaign.launches.values()), None)
    if current is not None and not current.gone and not trial.of:
        of = next(record.trial for record in campaign.history if record.launch == current.id)
        if of.launch_digest() == trial.launch_digest():
            return Proposed(trial=trial, launch=current.id, because=because)
    return Proposed(trial=trial, launch=f"l{len(campaign.launches) + 1}", because=because)


def _scored(campaign: Campaign, record: Record) -> Scored:
    """Say what a trial came to: its numbers, and of a hypothesis the verdict."""
    scored, debug = score(campaign, record), campaign.plan.debug
    assert debug is not None
    if debug.of(record.trial.id) is not None:
        word, because = verdict_of(record.told, record.finding)
        return scored.model_copy(update={"verdict": word, "because": because})
    kind = "bad" if debug.bisect is not None else "healthy"
    result, saw = judged(record.told, kind)
    words = {
        "bad": {Result.PASS: "the fault is there", Result.FAIL: "the fault is not there"},
        "healthy": {Result.PASS: "healthy", Result.FAIL: "the fault shows"},
    }[kind]
    because = f"{words.get(result, 'not testable') if result else 'not testable'}: {saw}" if saw else ""
    return scored.model_copy(update={"because": because})


def _concluded(campaign: Campaign, step: Ended) -> Concluded:
    baseline = next((record.trial.id for record in campaign.history if record.trial.role == "baseline"), "")
    return Concluded(
        word=step.word,
        winner=step.winner,
        baseline=baseline,
        exit=Exit.BUDGET if step.budget else EXITS[step.word],
        because=step.because,
    )
