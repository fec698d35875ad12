"""Whether all processes of a server are still there while it is measured: a dead rank says nothing in the log.

The watch tells how many processes the server's job has. Once one has been missing for a moment, which a server that
is coming to its end by itself does not take, those that are left are listed, and held against those that were there
when the server had come up.
"""

from __future__ import annotations

from ..actions import Owned, Wait
from ..guards import Workers, failed
from ..guards.lifecycle import REMEDY, rank_of, worker_counts
from ..observations import read_owned
from ..probes.processes import read_processes
from ..values import Finding, Result, Verdict
from .common import Context, Step, ask_again

ROLE = "ranks"


def standing(context: Context) -> Step:
    """Look after the processes of the server in hand; a verdict only where some are gone for good."""
    counts, launch = worker_counts(context.evidence), context.launch
    if not counts or counts[-1][1] >= launch.workers:
        return Step(done=True)
    guard, since = _guard(context), counts[-1][0]
    if context.evidence.now - since < guard.fall:
        return _tick(context, since + guard.fall)
    asked = context.visit.of(ROLE)
    fresh = [answer for answer in asked if answer.asked_s >= since]
    ask = (ROLE, Owned(host=context.evidence.server.host, keys=(launch.key,)))
    if not fresh:
        return Step(ask=[ask])
    if fresh[-1].outcome is None:
        return Step()
    step = ask_again(context, fresh, ask)
    if not step.done:
        return step
    verdict = _dead(context, fresh[-1].text()) or guard.fallen(context.evidence)
    if verdict is not None and verdict.result is Result.FAIL:
        return Step(done=True, verdict=verdict)
    if context.evidence.now - since < guard.patience:
        return _tick(context, since + guard.patience)
    return Step(done=True)


def _guard(context: Context) -> Workers:
    """Return the limits that the plan sets for the number of processes, else the usual ones."""
    guards = [guard for state in context.evidence.plan.states for guard in state.guards]
    return next((guard for guard in guards if isinstance(guard, Workers)), Workers())


def _tick(context: Context, until_s: float) -> Step:
    """Have time pass: it alone can tell a helper that ended, or the beginning of the end, from a process that died."""
    if any(tick.outcome is None for tick in context.visit.of("lull")):
        return Step()
    return Step(ask=[("lull", Wait(until_s=round(until_s + 0.001, 3)))])


def _dead(context: Context, text: str | None) -> Verdict | None:
    """Say which of the ranks that were there when the server was up are gone; None where that cannot be told."""
    processes = read_processes(context.launch.inspected.get("processes"))
    try:
        left = {(owned.pid, owned.start) for owned in read_owned(text)} if text is not None else None
    except ValueError:
        left = None
    if left is None or processes is None:
        return None
    # Others on the host may have ranks too: ours are known by one of theirs that is left in the job.
    near = {process.sid for process in processes if process.identity in left}
    near |= {process.ppid for process in processes if process.identity in left}
    near -= {0, 1}
    ranks = [process for process in processes if process.living and rank_of(process.title)]
    ours = [process for process in ranks if process.identity in left or {process.sid, process.ppid} & near]
    dead = sorted({rank_of(process.title) for process in ours if process.identity not in left})
    if not dead or len(dead) == len({rank_of(process.title) for process in ours}):
        return None
    saw = f"{', '.join(dead[:8])} {'is' if len(dead) == 1 else 'are'} gone while others live"
    return failed(Finding.DEAD_RANK, saw, "every rank that was there when it came up", REMEDY[Finding.DEAD_RANK])
