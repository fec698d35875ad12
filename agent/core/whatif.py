"""What would have followed from the same observations under another plan: other rules, guards or playbook.

The loop and the decisions are those of a run. Only where answers come from differs: a request is answered with what
the world once answered to the request of the same name, if it was asked the same. The first request that the world
was never asked ends it, since nobody knows what it would have said. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from .actions import Cancel, Probe, Wait
from .campaign import Campaign, evolve
from .campaign.decide import evidence_of, named
from .events import (
    WORDING,
    Concluded,
    Entry,
    Instructed,
    Judged,
    Moved,
    Noted,
    Observed,
    Opened,
    Requested,
    Resumed,
    Scored,
)
from .guards import judge
from .observations import Cancelled, Completed
from .plan import Plan
from .values import Verdict

SAW = ": saw "
"""Between a verdict and its prose."""
LOCAL = (Wait, Cancel)
"""Requests that the controller answers itself: time passes, and things are given up, in any world."""


@dataclass(frozen=True)
class Difference:
    """A verdict, a move or a decision that is another one. ``seq`` is the recorded entry, 0 = there is none."""

    what: str
    seq: int
    recorded: str
    now: str


@dataclass(frozen=True)
class Stopped:
    """Where the world was never asked: the request, what it asks, and how it differs from what was asked then."""

    request: str
    action: str
    why: str


@dataclass
class Answers:
    """What the world said to one request: parts in order, then the end."""

    asked: Entry
    entries: list[Entry] = field(default_factory=list)


def by_request(entries: Iterable[Entry]) -> dict[str, Answers]:
    """Collect the recorded answers by the request's name."""
    found: dict[str, Answers] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, Requested):
            found[event.request] = Answers(entry)
        elif isinstance(event, (Noted, Observed)) and event.request in found:
            found[event.request].entries.append(entry)
    return found


def unlike(was: Any, now: Any) -> str:
    """Say how an action asks something else than the recorded one; '' when the recorded answer answers it.

    Wording and limits of time do not matter to an answer that is there; a probe may ask for less than was asked.
    """
    if was == now:
        return ""
    if isinstance(was, Probe) and isinstance(now, Probe):
        had = {section.name for section in was.sections}
        more = [section.name for section in now.sections if section.name not in had]
        return f"the probe also asks for {', '.join(more)}" if more else ""
    old, new = _plain(was.model_dump(mode="json")), _plain(now.model_dump(mode="json"))
    return "" if old == new else f"it asked {_shown(old, new)}, not {_shown(new, old)}"


_LIMITS = WORDING | {"timeout_s"}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if key not in _LIMITS}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _shown(one: Any, two: Any) -> str:
    """Return what of one action is not so in the other, cut short."""
    for key in [key for key in one if one[key] != two.get(key)] if isinstance(two, dict) else []:
        if isinstance(one[key], dict) and isinstance(two.get(key), dict):
            return f"{key}.{_shown(one[key], two[key])}"
        if isinstance(one[key], list) and isinstance(two.get(key), list):
            pairs = zip_longest(one[key], two[key], fillvalue="nothing")
            return f"{key} … {next(mine for mine, theirs in pairs if mine != theirs)}"[:120]
        return f"{key} {one[key]}"[:120]
    return "otherwise"


class WhatIf:
    """The ledger of a what-if: hands out inputs by the requests that are open, and compares what is derived.

    ``next_input`` and ``take`` are what the loop needs of a ledger. Inputs keep their recorded order as far as they
    are asked for; times are those of the record, and a wait that the record does not have passes at its end.
    """

    def __init__(self, recorded: list[Entry], plan: Plan) -> None:
        self.campaign = Campaign()
        """What the loop works on; whoever drives says so with each entry, by ``seen``."""
        self.differences: list[Difference] = []
        self.stopped: Stopped | None = None
        self.used = 0
        """Answers of the world that were used."""
        self._plan = plan
        self._answers = by_request(recorded)
        self._inputs = [e for e in recorded if isinstance(e.event, (Opened, Resumed, Noted, Observed, Instructed))]
        self._given: set[int] = set()
        self._first = 0
        self._open: dict[str, Any] = {}
        self._cancelled: list[str] = []
        self._recorded = _Derived(recorded)
        self._left = ""
        self._stamp = recorded[0]
        self._seq = 0

    def seen(self, campaign: Campaign) -> None:
        """Take note of the campaign after an entry."""
        self.campaign = campaign

    # ------------------------------------------------------------ inputs

    def next_input(self) -> Any | None:
        """Return the next input; None when the campaign rests for good, or the world was never asked."""
        if self.stopped is not None:
            return None
        over = self.campaign.over or self.campaign.interrupted
        for request, action in self._open.items():
            if not isinstance(action, LOCAL) and (why := self._never(request, action)):
                self.stopped = Stopped(request, action.do, why)
                return None
        if (event := self._given_up()) is not None:
            return event
        if (entry := self._recorded_input(over)) is not None:
            self._given.add(entry.seq)
            self._stamp = replace(entry, boot_ns=max(entry.boot_ns, self._same_boot(entry)))
            self.used += self._told(entry)
            return self._changed(entry.event)
        return None if over else self._time_passes()

    def _never(self, request: str, action: Any) -> str:
        answers = self._answers.get(request)
        if answers is None:
            return "the world was never asked this"
        difference = unlike(answers.asked.event.action, action)
        return f"the world was asked something else in entry {answers.asked.seq}: {difference}" if difference else ""

    def _given_up(self) -> Observed | None:
        """Return the end of what was given up here and not in the record; where it was, that entry says so."""
        for request in self._cancelled:
            if not self._to_come(request):
                return Observed(request=request, outcome=Cancelled())
        for request, action in self._open.items():
            if isinstance(action, Cancel) and not self._cancelled and not self._to_come(request):
                return Observed(request=request, outcome=Completed(status=0))
        return None

    def _to_come(self, request: str) -> bool:
        answers = self._answers.get(request)
        return answers is not None and any(entry.seq not in self._given for entry in answers.entries)

    def _recorded_input(self, over: bool) -> Entry | None:
        """Return the first recorded input that is due: an answer to an open request, or an order in its place."""
        while self._first < len(self._inputs) and self._inputs[self._first].seq in self._given:
            self._first += 1
        for entry in self._inputs[self._first :]:
            if entry.seq in self._given:
                continue
            if isinstance(entry.event, (Noted, Observed)):
                if self._due(entry.event):
                    return entry
            elif isinstance(entry.event, Opened) or over or not self._waits_for_earlier(entry.seq):
                return entry
        return None

    def _due(self, event: Noted | Observed) -> bool:
        """Whether an answer is asked for. That something was given up is one only if it is given up here, too."""
        if event.request not in self._open:
            return False
        given_up = isinstance(event, Observed) and isinstance(event.outcome, Cancelled)
        return not given_up or event.request in self._cancelled

    def _waits_for_earlier(self, seq: int) -> bool:
        """Whether an open request has an answer that was recorded before this entry."""
        return any(
            answer.seq < seq and answer.seq not in self._given and self._due(answer.event)
            for request in self._open
            if request in self._answers
            for answer in self._answers[request].entries
        )

    def _time_passes(self) -> Any | None:
        """Let the wait that ends first come to its end, unless the world is still being waited for."""
        asked = [(request, action.do) for request, action in self._open.items() if not isinstance(action, LOCAL)]
        if asked:
            # It was given up, or cut off, in the record: what it would have said after that is not known.
            self.stopped = Stopped(*asked[0], "the record has no further word on it")
            return None
        waits = sorted((action.until_s, request) for request, action in self._open.items() if isinstance(action, Wait))
        if not waits:
            return None
        later_s = max(0.0, waits[0][0] - self.campaign.now)
        self._stamp = replace(self._stamp, boot_ns=self._stamp.boot_ns + int(later_s * 1e9) + 1_000_000)
        return Observed(request=waits[0][1], outcome=Completed(status=0))

    def _same_boot(self, entry: Entry) -> int:
        return self._stamp.boot_ns if entry.boot_id == self._stamp.boot_id else 0

    def _changed(self, event: Any) -> Any:
        if isinstance(event, Opened):
            return event.model_copy(update={"plan": self._plan})
        if isinstance(event, Resumed) and event.plan is not None:
            return event.model_copy(update={"plan": self._plan})
        return event

    # ------------------------------------------------------------ what is recorded, and what is derived

    def take(self, event: Any) -> Entry:
        """Return the entry for an event; a derived one is compared with its counterpart in the record."""
        self._seq += 1
        if isinstance(event, Requested):
            self._open[event.request] = event.action
            if isinstance(event.action, Cancel):
                self._cancelled += [name for name in event.action.requests if name in self._open]
        elif isinstance(event, Observed):
            self._open.pop(event.request, None)
            if event.request in self._cancelled:
                self._cancelled.remove(event.request)
        else:
            self._compare(event)
        return replace(self._stamp, seq=self._seq, event=event)

    def _compare(self, event: Any) -> None:
        key = _key(event, self._left)
        if isinstance(event, Moved):
            self._left = visit_of(event)
        if key is None:
            return
        seq, was = self._recorded.next(key)
        now = said(event)
        if outcome_of(was) != outcome_of(now):
            self.differences.append(Difference(_name(event), seq, was, now))

    def unused(self) -> int:
        """Return how many recorded answers of the world were not used."""
        return sum(entry.seq not in self._given and self._told(entry) for entry in self._inputs)

    def _told(self, entry: Entry) -> bool:
        """Whether an entry is the world's word: not our own waits, and not that we gave something up."""
        event = entry.event
        if not isinstance(event, (Noted, Observed)) or event.request not in self._answers:
            return False
        if isinstance(self._answers[event.request].asked.event.action, LOCAL):
            return False
        return not (isinstance(event, Observed) and isinstance(event.outcome, Cancelled))


class _Derived:
    """The derived entries of the record, found by what they are about."""

    def __init__(self, recorded: Iterable[Entry]) -> None:
        self._found: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        left = ""
        for entry in recorded:
            if (key := _key(entry.event, left)) is not None:
                self._found.setdefault(key, []).append((entry.seq, said(entry.event)))
            if isinstance(entry.event, Moved):
                left = visit_of(entry.event)

    def next(self, key: tuple[str, ...]) -> tuple[int, str]:
        """Return entry and words of the next one of that key, (0, 'nothing') when there is none."""
        waiting = self._found.get(key)
        return waiting.pop(0) if waiting else (0, "nothing")


def visit_of(move: Moved) -> str:
    """Return the path of the visit that a move begins."""
    return f"{move.lane}/{move.trial or '-'}/{move.launch or '-'}/{move.state}/{move.attempt}"


def _key(event: Any, left: str) -> tuple[str, ...] | None:
    """Return what a derived event is about; a move is about the visit that it leaves."""
    match event:
        case Judged():
            return "judged", event.at, event.guard
        case Moved():
            return "moved", left
        case Scored():
            return "scored", event.trial, event.launch
        case Concluded():
            return ("concluded",)
    return None


def _name(event: Any) -> str:
    match event:
        case Judged():
            return f"verdict of {event.guard} in {event.at}"
        case Moved():
            return f"move out of {event.source or 'the start'}"
        case Scored():
            return f"score of {event.trial} on {event.launch}"
    return "decision"


def said(event: Any) -> str:
    """Say what is compared of a derived event, in a few words."""
    match event:
        case Judged():
            return told(event.verdict)
        case Moved():
            return f"{event.outcome} → {event.state} ({event.trial or '-'} on {event.launch or '-'})"
        case Scored():
            return "valid" if event.valid else f"invalid ({event.finding})"
        case Concluded():
            found = [f"{value:.4g}" for value in (event.ratio, event.low, event.high) if value is not None]
            interval = f" {event.metric} ×{found[0]} [{', '.join(found[1:])}]" if found else ""
            return f"{event.word}{interval}, winner {event.winner or 'none'}"
    return str(event.kind)


def told(verdict: Verdict) -> str:
    """Say a verdict in a few words."""
    return f"{verdict.result}{f' {verdict.finding}' if verdict.finding else ''}{SAW}{verdict.saw}"


def outcome_of(text: str) -> str:
    """Return the part of ``said`` that is compared: prose is not."""
    return text.partition(SAW)[0]


def rejudge(entries: Iterable[Entry], plan: Plan, hydrate: Callable[[Entry], Entry]) -> list[Difference]:
    """Return every recorded verdict that the plan's guards would not have given on what was known then.

    This goes along the recorded path to its end, also where another verdict would have led elsewhere.
    """
    campaign, found = Campaign(), []
    for entry in entries:
        event = entry.event
        if isinstance(event, Judged) and campaign.visit is not None and campaign.visit.path == event.at:
            now = _judge(campaign, plan, event.guard)
            if now is not None and (now.result, now.finding) != (event.verdict.result, event.verdict.finding):
                found.append(Difference(_name(event), entry.seq, told(event.verdict), told(now)))
        evolve(campaign, hydrate(entry))
    return found


def _judge(campaign: Campaign, plan: Plan, name: str) -> Verdict | None:
    assert campaign.visit is not None
    state = next((state for state in plan.states if state.name == campaign.visit.state), None)
    guards: dict[str, Any] = named(state.guards) if state is not None else {}
    guards |= {f"assumption {key}": guard for key, guard in plan.assumptions.items()}
    guard = guards.get(name)
    return judge(guard, replace(evidence_of(campaign, campaign.visit), plan=plan)) if guard is not None else None
