"""What lies on the host is made to be what a trial wants: changes of others are taken back, its own are made.

Each change is a host job, so it is made at most once under its key, and its key is enough to take it back. What is in
place is known from the record alone; a change whose answer was lost counts as in place until a revert has said more.
"""

from __future__ import annotations

from collections.abc import Iterator

from .. import changes
from ..changes import HostChange
from ..debugging import Delta
from ..guards import failed, passed, unknown
from ..hypotheses import Past, Word, kept
from ..observations import Completed
from ..values import Finding
from .common import Context, Step, known, run_job
from .edits import HostEdit
from .keep import REPLACED
from .parts import Record
from .state import Campaign

TIMEOUT_S = 1800.0
"""Of one change; a package may have to be built."""


def deltas(campaign: Campaign) -> Iterator[Delta]:
    """Yield everything that may be changed."""
    debug = campaign.plan.debug
    if debug is not None:
        yield from debug.hypotheses
        if debug.bisect is not None:
            yield from debug.bisect.points


def dry_runs(campaign: Campaign) -> dict[str, changes.DryRun]:
    """Return what the first look said of each hypothesis or point, its changes taken together."""
    found = {}
    for delta in deltas(campaign):
        rows = [campaign.edits.dry[text] for one in delta.files if (text := changes.spec(one)) in campaign.edits.dry]
        if not rows or len(rows) < len(delta.files):
            continue
        refused = next((row for row in rows if row.refused), None)
        seen = {path: digest for row in rows for path, digest in row.seen.items()}
        found[delta.name] = refused or changes.DryRun(same=all(row.same for row in rows), seen=seen)
    return found


def do_survey(context: Context) -> Step:
    """Try every change on paper before anything is stopped. What does not fit is no failure: its trial says so."""
    debug = context.campaign.plan.debug
    if debug is None or not known(context.last("lease")):
        return Step(done=debug is None or context.last("lease") is not None)
    groups: dict[str, dict[str, HostChange]] = {}
    for delta in deltas(context.campaign):
        if len({_where(one) for one in delta.files}) < len(delta.files):
            continue  # one builds on the other: neither can be tried alone
        for one in delta.files:
            python = one.python if isinstance(one, changes.Edit) else "python3"
            groups.setdefault(python, {})[changes.spec(one)] = one
    ended = len([answer for answer in context.visit.of("survey") if known(answer)])
    for number, group in enumerate(groups.values()):
        if number == ended:
            job = changes.job("check", debug.tools, tuple(group), tuple(group.values()))
            step = run_job(context, "survey", job, 120.0, ended)
            if step.done and step.verdict is None and not known(context.last("survey")):
                step.verdict = unknown("the first look at the files did not come back", "a dry run", Finding.LOST)
            return step
    for answer in context.visit.of("survey"):
        if changes.read_check(answer.text()) is None:
            said = answer.outcome.err.string()[-300:].strip() if isinstance(answer.outcome, Completed) else ""
            verdict = unknown(f"the dry run says nothing: {said or 'no output'}", "python3 on the host")
            return Step(done=True, verdict=verdict)
    refused = [name for name, dry in dry_runs(context.campaign).items() if dry.refused]
    return Step(done=True, verdict=passed(f"dry run: {', '.join(refused)} would not fit" if refused else "dry run"))


def _where(change: HostChange) -> str:
    return str(getattr(change, "path", None) or getattr(change, "root", None) or changes.place(change))


# ---------------------------------------------------------------- what is wanted


def staying(campaign: Campaign) -> tuple[HostChange, ...]:
    """Return the changes that stay at the end, by the playbook's ``revert`` and what was found."""
    debug = campaign.plan.debug
    if debug is None or campaign.reverting:
        return ()
    past = [Past(record.trial, word=_word(record)) for record in campaign.history]
    return tuple(change for one in kept(debug, past) for change in one.files)


def _word(record: Record) -> Word | None:
    return (record.scored.verdict or None) if record.scored else None


def wanted(campaign: Campaign) -> tuple[HostChange, ...]:
    """Return the changes that are to be in place in this visit, in order."""
    record = campaign.record
    ways = [move.outcome for move in campaign.moves if move.source == "finally"]
    if campaign.reverting or campaign.stopping or (ways and ways[-1] == "stop"):
        return staying(campaign)
    if record is None or record.trial.of == REPLACED:
        return staying(campaign)
    return record.trial.files


def _same(edit: HostEdit, change: HostChange) -> bool:
    """Whether what was made is this change; what it expected to find is no part of it."""
    return edit.word == "made" and edit.plain() == changes.spec(change)


def do_change(context: Context) -> Step:
    """Take back what this trial does not want, newest first, then make what it wants."""
    campaign = context.campaign
    asked = {getattr(answer.action, "key", "") for answer in context.visit.of("apply-start")}
    target, place = wanted(campaign), campaign.edits.in_place()
    kept_ = 0
    while kept_ < min(len(target), len(place)) and _same(place[kept_], target[kept_]):
        kept_ += 1
    undo = [edit for edit in place[kept_:] if edit.key not in asked]
    if undo:
        return _undo(context, undo)
    return _make(context, target, kept_)


def _undo(context: Context, undo: list[HostEdit]) -> Step:
    debug = context.campaign.plan.debug
    assert debug is not None
    job = changes.job("revert", debug.tools, tuple(edit.key for edit in reversed(undo)))
    ended = [answer for answer in context.visit.of("undo") if known(answer)]
    if ended:
        # It has ended, and these are still there: the host says why.
        answer = changes.read_revert(ended[-1].text())
        why = "; ".join(answer[1]) if answer is not None else "the revert brought no result"
        verdict = unknown(f"not everything could be put back: {why}", "every file as it was", Finding.FOREIGN)
        return Step(done=True, verdict=verdict)
    step = run_job(context, "undo", job, TIMEOUT_S, 0)
    if step.done and step.verdict is None:
        step.verdict = unknown("the end of the revert was not seen", "every file as it was", Finding.LOST)
    return step


def _make(context: Context, target: tuple[HostChange, ...], kept_: int) -> Step:
    campaign, debug = context.campaign, context.campaign.plan.debug
    ended = [answer for answer in context.visit.of("apply") if known(answer)]
    for answer in ended:
        done, _, why = changes.read_apply(answer.text())
        if done is None:
            saw = "a change brought no result"
            return Step(done=True, verdict=unknown(saw, "what it did", Finding.LOST))
        if not done:
            verdict = failed(
                Finding.CONFIG_INVALID, why, "a file that is as expected", "look at it; nothing was changed"
            )
            return Step(done=True, verdict=verdict)
    if kept_ >= len(target):
        count = len(context.visit.of("undo"))
        words = ["what was changed is as it was"] if count else []
        words += [f"{len(target)} change{'s' if len(target) != 1 else ''} in place"] if target else []
        return Step(done=True, verdict=passed("; ".join(words) or "nothing to change"))
    change = target[kept_]
    assert debug is not None
    job = changes.job("apply", debug.tools, (changes.spec(change, _expected(campaign, change)),), (change,))
    step = run_job(context, "apply", job, TIMEOUT_S, len(ended))
    if step.done and step.verdict is None:
        step.verdict = unknown("the end of a change was not seen", "what it did", Finding.LOST)
    return step


def _expected(campaign: Campaign, change: HostChange) -> dict[str, str | None]:
    """Return what a change's files have to be: as the first look saw them, or as a change before it made them."""
    dry = campaign.edits.dry.get(changes.spec(change))
    seen = dict(dry.seen) if dry is not None else {}
    for edit in campaign.edits.in_place():
        for row in edit.files:
            seen[str(row["path"])] = row.get("after")
    return seen
