"""What a person sees of a run while it goes on. A display is told of every entry; it never decides anything.

``PlainLines`` for pipes and files, ``JsonLines`` for programs; the live view is in ``agent.cli.live``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import IO, Any, Protocol

from agent.cli.text import one_line, safe
from agent.core.campaign import Campaign
from agent.core.campaign.parts import NO_LAUNCH
from agent.core.events import (
    Concluded,
    Entry,
    Instructed,
    Judged,
    Moved,
    Opened,
    Proposed,
    Resumed,
    Scored,
)
from agent.core.values import Result, duration_text


class Display(Protocol):
    """Shows a run."""

    def say(self, text: str) -> None:
        """Show a remark of the program's own."""

    def show(self, entry: Entry, campaign: Campaign, *, live: bool) -> None:
        """Show what an entry means. ``live`` is false for entries that were recorded before."""

    def pause(self) -> None:
        """Leave the terminal to a question and its answer, until ``unpause``."""

    def unpause(self) -> None:
        """Go on after ``pause``."""

    def close(self) -> None:
        """Give the terminal back."""


def write(line: str, out: IO[str]) -> None:
    """Print a line; that nobody can read it (a closed pipe, a full disk) is no reason to end a campaign."""
    try:
        print(line, file=out, flush=True)
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


class PlainLines:
    """One line for each thing that matters."""

    def __init__(self, out: IO[str] = sys.stdout) -> None:
        self._out = out

    def say(self, text: str) -> None:
        """See Display."""
        write(safe(text), self._out)

    def show(self, entry: Entry, campaign: Campaign, *, live: bool) -> None:
        """See Display."""
        if live and (line := line_of(entry, campaign)):
            self.say(line)

    def pause(self) -> None:
        """See Display."""

    def unpause(self) -> None:
        """See Display."""

    def close(self) -> None:
        """See Display."""


class JsonLines:
    """Every entry as one line of JSON, without what the host printed."""

    def __init__(self, out: IO[str] = sys.stdout) -> None:
        self._out = out

    def say(self, text: str) -> None:
        """See Display."""
        write(json.dumps({"say": text}), self._out)

    def show(self, entry: Entry, campaign: Campaign, *, live: bool) -> None:
        """See Display."""
        if live:
            write(json.dumps(entry_json(entry, campaign)), self._out)

    def pause(self) -> None:
        """See Display."""

    def unpause(self) -> None:
        """See Display."""

    def close(self) -> None:
        """See Display."""


def entry_json(entry: Entry, campaign: Campaign | None = None) -> dict[str, Any]:
    """Return an entry for programs. Plans and outputs stay in the journal."""
    event = entry.event.model_dump(mode="json", exclude_defaults=True, exclude={"plan", "playbook"})
    event.setdefault("kind", entry.event.kind)
    head = {"seq": entry.seq, "wall_ns": entry.wall_ns, "lane": entry.lane, "host": entry.host}
    if campaign is not None:
        head["campaign_s"] = round(campaign.now, 3)
    return head | {"event": event}


def stamp(campaign: Campaign) -> str:
    """Campaign time in a column."""
    seconds = campaign.now
    return f"{seconds:6.1f}s" if seconds < 600 else f"{duration_text(seconds):>7}"


def line_of(entry: Entry, campaign: Campaign) -> str | None:
    """Return an entry as a line for people, or None when it is not worth one."""
    event = entry.event
    match event:
        case Opened():
            return opening(event)
        case Resumed():
            return f"{stamp(campaign)}  resumed after {duration_text(event.gap_s)} without a controller"
        case Instructed():
            return f"{stamp(campaign)}  order: {event.order.order} {('by ' + event.by) if event.by else ''}".rstrip()
        case Proposed():
            label, why = one_line(event.trial.label(), 80), one_line(event.because, 200)
            if event.trial.role == "hypothesis":
                return proposal(event, campaign)
            return f"{stamp(campaign)}  trial {event.trial.id} ({label}) on {event.launch}: {why}"
        case Moved():
            way = f"{event.source or 'start':>12} ─{event.outcome}→ {event.state}"
            return f"{stamp(campaign)}  {way}  {one_line(event.because, 300)}".rstrip()
        case Judged(gates=False):
            return observed(event, campaign)
        case Judged() if event.verdict.result is Result.FAIL:
            verdict = event.verdict
            words = f"{verdict.finding or ''} {verdict.saw}; wanted {verdict.wanted}".strip()
            tail = f"\n{'':9}  → {safe(verdict.remedy)}" if verdict.remedy else ""
            return f"{stamp(campaign)}  ✗ {event.guard}: {one_line(words, 400)}{tail}"
        case Scored():
            return f"{stamp(campaign)}  {score_line(event, campaign)}"
        case Concluded():
            return "\n".join(conclusion(event, campaign))
    return None


def proposal(event: Proposed, campaign: Campaign) -> str:
    """Say what is believed, what is changed for it, and what is predicted, before the test."""
    trial, changed = event.trial, one_line(event.trial.label(), 160)
    where = "" if event.launch == NO_LAUNCH else f" on {event.launch}"
    out = f"{stamp(campaign)}  ? {trial.id}{where}: {one_line(event.because, 200)}"
    if changed != trial.role:
        out += f"\n{'':11}change: {changed}"
    return out + (f"\n{'':11}predicts: {one_line(trial.predicts, 200)}" if trial.predicts else "")


def observed(event: Judged, campaign: Campaign) -> str | None:
    """Say what was looked at and gates nothing: only what is not as it should be, and of a test nothing twice."""
    kind = event.guard.partition(" ")[0]
    if event.verdict.result is Result.PASS or kind == "predict":
        return None  # a prediction is told with its verdict
    record = campaign.record
    if record is not None and record.trial.role == "hypothesis" and kind in ("healthy", "bad"):
        return None
    return f"{stamp(campaign)}  · {event.guard}: {one_line(event.verdict.saw, 300)}; wanted {event.verdict.wanted}"


def opening(event: Opened) -> str:
    """Return the first line of whatever shows a run; a rehearsal says so here."""
    plan = event.plan
    mark = f"REHEARSAL ({event.rehearsal}): numbers below are simulated\n" if event.rehearsal else ""
    hosts = ", ".join(f"{host.name} = {host.address}" for host in plan.hosts.values())
    return f"{mark}campaign {event.campaign[:8]}: {plan.name} ({plan.aim}) on {safe(hosts)}"


def score_line(event: Scored, campaign: Campaign) -> str:
    """Say what a trial was worth."""
    metric = campaign.plan.goal.metric
    if event.verdict:
        sign = {"supported": "✓", "refuted": "✗"}.get(event.verdict, "?")
        return f"{sign} {event.trial}: {event.verdict.upper()}: {one_line(event.because, 300)}"
    if event.because:
        return f"= {event.trial}: {one_line(event.because, 300)}"
    if not event.valid or metric not in event.values:
        return f"= {event.trial}: not valid ({event.finding or 'no numbers'})"
    spread = event.deviations.get(metric, 0.0)
    extra = "".join(
        f", {name.replace('_', ' ')} {event.values[name]:.3g}"
        for name in ("accept_len", "ttft_ms_mean")
        if name in event.values
    )
    most = sorted(event.profile, key=lambda name: (-event.profile[name], name))
    phases = [name for name in most if not name.startswith("object:")][:2]
    extra += "".join(f", {one_line(name, 20)} {event.profile[name]:.0%} of the time" for name in phases[:1])
    extra += "".join(f", {one_line(name, 20)} {event.profile[name]:.0%}" for name in phases[1:] if event.profile[name])
    return f"= {event.trial}: {metric} {event.values[metric]:.4g} ± {spread:.2g} ({event.repeats} repeats){extra}"


def conclusion(event: Concluded, campaign: Campaign) -> list[str]:
    """Return the decision in a few lines."""
    lines = ["", f"decision: {event.word.upper()}"]
    if event.ratio is not None:
        interval = (
            f", {100 * event.level:.4g}% interval {_percent(event.low)} … {_percent(event.high)}"
            f" from {event.launches} confirmation launches"
            if event.low is not None
            else " (exploration only, no interval)"
        )
        winner = next((r.trial.label() for r in campaign.history if r.trial.id == event.winner), event.winner)
        lines.append(f"  {one_line(winner)} against {event.baseline}: {event.metric} {_percent(event.ratio)}{interval}")
        goal = campaign.plan.goal
        sign = "+" if goal.direction == "up" else "-"
        lines.append(f"  goal: {goal.metric} {sign}{goal.improve * 100:.3g} %" + (", proven" if goal.strict else ""))
    if event.front:
        from agent.cli.front import front

        lines += [f"  {one_line(line, 400)}" for line in front(event.model_dump(mode="json"))]
    if event.because:
        lines.append(f"  {one_line(event.because, 400)}")
    if campaign.opened is not None and campaign.opened.rehearsal:
        lines.append(f"  a rehearsal ({campaign.opened.rehearsal}): these numbers are simulated")
    return lines


def _percent(ratio: float | None) -> str:
    return "?" if ratio is None else f"{(ratio - 1) * 100:+.1f} %"
