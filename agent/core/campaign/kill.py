"""Ending processes: what this run started and what the playbook names, by identity, TERM first, then a proof."""

from __future__ import annotations

from dataclasses import dataclass

from ..actions import Action, Ask, Owned, Signal, Start, Target
from ..containers import replaced
from ..evidence import Answer
from ..guards import failed, passed, unknown, waiting
from ..observations import Completed, Refused, read_owned
from ..probes import processes as procs
from ..probes import sockets as socks
from ..probes.containers import Container as Running
from ..probes.containers import read_containers
from ..values import Finding, Verdict, digest
from .common import LINK_AWAY_S, TRIES, Context, Step, again, known, look_action, owned_action, poll
from .keep import keep
from .lease import refused

GRACE_S = 15.0
"""How long a server may take to end after TERM before it gets KILL."""
GIVE_UP_S = 20.0
"""How long after KILL a process may still be listed before it is called unkillable."""


@dataclass(frozen=True)
class Prey:
    """Processes that are to be ended: our own by key, and those that the playbook names."""

    own: dict[str, tuple[Target, ...]]
    named: tuple[Target, ...]
    lines: tuple[str, ...]
    roots: tuple[Target, ...]
    stuck: tuple[str, ...]
    container: Running | None = None
    """The container that the named ones live in; it is what is stopped."""

    @property
    def any(self) -> bool:
        """Whether there is any."""
        return bool(self.own or self.named)


def _prey(context: Context) -> Prey | None:
    """Read the newest survey; None when it does not tell."""
    sections = context.evidence.sections("probe")
    own: dict[str, list[Target]] = {}
    lines: list[str] = []
    stuck: list[str] = []
    seen: set[tuple[int, int]] = set()
    if owned_action(context) is not None:
        text = answer.text() if (answer := context.evidence.latest("owned")) else None
        if text is None:
            return None
        for owned in read_owned(text):
            own.setdefault(owned.key, []).append(Target(pid=owned.pid, start=owned.start))
            seen.add((owned.pid, owned.start))
            lines.append(f"ours: pid {owned.pid} {owned.argv[:120]}")
            if owned.state == "D":
                stuck.append(f"pid {owned.pid} {owned.argv[:60]}")
    named: list[Target] = []
    roots: tuple[Target, ...] = ()
    container = None
    # On the way to an end nothing is to be launched here: what the playbook names may stay.
    replaces = context.evidence.server.replaces if not _is_last(context) else None
    if replaces is not None:
        table = procs.read_processes(sections.get("processes")) if sections is not None else None
        listeners = socks.read_listeners(sections.get("sockets")) if sections is not None else None
        if table is None or listeners is None:
            return None
        assert sections is not None
        listed = _listed(context)
        if listed:
            # Only the list that was confirmed: whatever came since is for verify-clean to find, not to be ended.
            found = [process for process in table if process.identity in listed]
        else:
            matched = replaced(sections, replaces)
            if matched is None:
                return None
            matches = [p for p in matched if p.identity not in seen]
            roots = tuple(Target(pid=root.pid, start=root.start) for root in matches if root.start > 0)
            found = [process for root in matches for process in procs.tree(table, root)]
        if replaces.container is not None:
            running = read_containers(sections.get("containers"))
            ids = {named_container.partition(" ")[2] for named_container in _halted(context)}
            container = next(
                (one for one in running or () if one.id in ids or (roots and one.pid == roots[0].pid)), None
            )
            if container is not None:
                lines.append(f"container {container.name} ({container.tool} {container.id[:12]}): stopped, not removed")
        for process in found:
            if process.identity in seen or not process.living or process.start <= 0:
                continue
            seen.add(process.identity)
            named.append(Target(pid=process.pid, start=process.start))
            lines.append(f"{process.user}: pid {process.pid} {process.title[:120]}")
            if process.state[:1] == "D":
                stuck.append(f"pid {process.pid} {process.title[:60]}")
    return Prey(
        {key: tuple(found) for key, found in own.items()}, tuple(named), tuple(lines), roots, tuple(stuck), container
    )


def _is_last(context: Context) -> bool:
    """Whether this run has chosen to end with nothing of its own left running."""
    ways = [move.outcome for move in context.campaign.moves if move.source == "finally"]
    return bool(ways) and ways[-1] == "stop"


def _listed(context: Context) -> frozenset[tuple[int, int]]:
    """Identities of processes that the operator confirmed and that were signalled in this visit."""
    actions = [answer.action for answer in context.visit.of("signal")]
    return frozenset(
        (target.pid, target.start)
        for action in actions
        if isinstance(action, Signal) and not action.key
        for target in action.targets
    )


def _halted(context: Context) -> list[str]:
    """Return the containers that were signalled in this visit."""
    actions = [answer.action for answer in context.visit.of("signal")]
    return [action.container for action in actions if isinstance(action, Signal) and action.container]


def _lost(context: Context, saw: str) -> Step:
    """Ask again for a list of processes that did not come back, so often; without one nothing is ended."""
    verdict = unknown(saw, "a list", Finding.LOST)
    pauses = context.visit.of("pause")
    away = any(answer is not None and not known(answer) for answer in (context.last("owned"), context.last("probe")))
    more = len(pauses) < TRIES or (away and context.evidence.now - pauses[0].asked_s < LINK_AWAY_S)
    return Step(ask=again(context), verdict=verdict) if more else Step(done=True, verdict=verdict)


def do_kill(context: Context) -> Step:
    """End what this run started and what the playbook names, by identity, TERM first; prove that it is gone."""
    # Whose processes there are is asked for only where some that are not ours may have to go.
    named = context.evidence.server.replaces is not None and not _is_last(context)
    look = look_action(context, "processes", "sockets") if named else None
    survey = poll(context, ("probe", look), ("owned", owned_action(context)))
    if not survey.done:
        return survey
    try:
        prey = _prey(context)
    except ValueError:  # an answer that cannot be read is no answer; it must not become a shorter list
        prey = None
    if prey is None:
        return _lost(context, "the survey of processes did not come back")
    if any(answer.outcome is None for answer in context.visit.of("signal")):
        return Step()
    if (busy := _others(context)) is not None:
        return Step(done=True, verdict=busy)
    if not prey.any:
        sent = len(context.visit.of("signal"))
        return Step(done=True, verdict=passed(f"{_ended(context)} ended, none is left" if sent else "nothing to end"))
    if prey.named and (step := _permission(context, prey)) is not None:
        return step
    if prey.container is not None and prey.container.auto_remove and context.evidence.plan.finally_ == "restore":
        saw = f"container {prey.container.name} was started with --rm: once it is stopped it is gone"
        remedy = "write `finally: winner` or `finally: stop`; nothing was signalled"
        return Step(done=True, verdict=failed(Finding.FOREIGN, saw, "a container that can be started again", remedy))
    if prey.named and prey.container is None and _is_kept(context, prey):
        kept = keep(context, prey.roots[0].pid, prey.roots[0].start)
        if not kept.done:
            return kept
    return _next_signal(context, prey)


def _others(context: Context) -> Verdict | None:
    """Say that another campaign works with what the playbook names, so that the host sent nothing; None = none does."""
    for answer in context.visit.of("signal"):
        if isinstance(answer.outcome, Refused) and answer.outcome.code == "BUSY":
            said = refused(answer.outcome.text, context.evidence.server.host)
            saw = f"`server.replaces` matches what another campaign works with: {said.saw}"
            remedy = "narrow `replaces` (its port, its user), or wait for that campaign; nothing was signalled"
            return failed(Finding.FOREIGN, saw, "a server that nobody works with", remedy)
    return None


def end_jobs(context: Context) -> Step:
    """End what earlier visits left of the jobs beside the server; done when none of it lives."""
    starts = [answer.action.key for answer in context.visit.answers if isinstance(answer.action, Start)]
    left = tuple(key for key in context.campaign.jobs if key not in starts)
    asked = [answer.action.keys for answer in context.visit.of("owned") if isinstance(answer.action, Owned)]
    left = asked[0] if asked else left
    if not left:
        return Step(done=True)
    survey = poll(context, ("owned", Owned(host=context.evidence.server.host, keys=left)))
    if not survey.done:
        return survey
    text = answer.text() if (answer := context.evidence.latest("owned")) else None
    try:
        found = read_owned(text) if text is not None else None
    except ValueError:
        found = None
    if found is None:
        return _lost(context, "what is left of an earlier attempt is not known")
    if any(answer.outcome is None for answer in context.visit.of("signal")):
        return Step()
    if not found:
        return Step(done=True)
    own: dict[str, tuple[Target, ...]] = {}
    for owned in found:
        own[owned.key] = (*own.get(owned.key, ()), Target(pid=owned.pid, start=owned.start))
    lines = tuple(f"ours: pid {owned.pid} {owned.argv[:120]}" for owned in found)
    stuck = tuple(f"pid {owned.pid} {owned.argv[:60]}" for owned in found if owned.state == "D")
    return _next_signal(context, Prey(own, (), lines, (), stuck))


def _is_kept(context: Context, prey: Prey) -> bool:
    """Whether the one server that goes is to come back in the end."""
    return context.evidence.plan.finally_ == "restore" and len(prey.roots) == 1


def _ended(context: Context) -> str:
    """Say how many processes were signalled in this visit."""
    actions = [answer.action for answer in context.visit.of("signal")]
    targets = {(t.pid, t.start) for action in actions if isinstance(action, Signal) for t in action.targets}
    return f"{len(targets)} process{'es' if len(targets) != 1 else ''}"


def _permission(context: Context, prey: Prey) -> Step | None:
    """Return what still stands between us and the processes that the playbook names; None = nothing."""
    replaces = context.evidence.server.replaces
    assert replaces is not None
    asked = [answer for answer in context.visit.of("confirm") if known(answer)]
    if asked or context.visit.of("signal"):
        allowed = not asked or _yes(asked[-1])
        return None if allowed else Step(done=True, verdict=_refused(prey))
    if len(prey.roots) != replaces.expect:
        found = "; ".join(prey.lines[:6])
        return Step(
            done=True,
            verdict=failed(
                Finding.FOREIGN,
                f"`server.replaces` matches {len(prey.roots)} processes: {found}",
                f"exactly {replaces.expect}",
                "narrow `replaces`, or set `expect`; nothing was signalled",
            ),
        )
    name = digest(list(prey.lines))[:16]
    if context.campaign.options.yes or name in context.campaign.confirmed:
        return None
    answer = context.last("confirm")
    if answer is None:
        question = f"End these {len(prey.named)} processes on {context.evidence.server.host}?"
        return Step(ask=[("confirm", Ask(question=question, lines=prey.lines, digest=name))])
    if answer.outcome is None:
        return Step()
    return Step(done=True, verdict=_refused(prey))


def _yes(answer: Answer) -> bool:
    return isinstance(answer.outcome, Completed) and answer.outcome.status == 0


def _refused(prey: Prey) -> Verdict:
    return failed(
        Finding.FOREIGN,
        f"`server.replaces` names {len(prey.named)} processes, and nobody said yes: {'; '.join(prey.lines[:3])}",
        "the operator's yes to exactly this list",
        "agent resume RUN --yes, or end them yourself and resume; nothing was signalled",
    )


def _next_signal(context: Context, prey: Prey) -> Step:
    """TERM, then KILL after the grace, then give up; each after a fresh look."""
    # A signal whose answer was lost may never have been sent: it does not count.
    signals = [answer for answer in context.visit.of("signal") if known(answer)]
    host, now = context.evidence.server.host, context.evidence.now
    first = {answer.action.signal: answer.asked_s for answer in reversed(signals) if isinstance(answer.action, Signal)}
    if "TERM" not in first:
        word = "TERM"
    elif "KILL" not in first and now - first["TERM"] >= GRACE_S:
        word = "KILL"
    elif "KILL" in first and now - first["KILL"] >= GIVE_UP_S:
        finding = Finding.DSTATE if prey.stuck else Finding.OURS
        saw = f"{len(prey.lines)} processes outlive KILL: {'; '.join(prey.lines[:4])}"
        return Step(done=True, verdict=failed(finding, saw, "none", "look at them by hand; the campaign holds"))
    else:
        return Step(ask=again(context), verdict=waiting(f"{len(prey.lines)} processes are still ending"))
    asks: list[tuple[str, Action]] = [
        ("signal", Signal(host=host, signal=word, targets=targets, key=key)) for key, targets in prey.own.items()
    ]
    if prey.named:
        where = f"{prey.container.tool} {prey.container.id}" if prey.container is not None else ""
        asks.append(("signal", Signal(host=host, signal=word, targets=prey.named, container=where)))
    return Step(ask=[*asks, *again(context)])
