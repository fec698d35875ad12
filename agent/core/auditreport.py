"""What an auditor asks of a run, as plain data made from its entries: steps with their evidence, who allowed what.

``steps`` is what `agent audit` prints; ``audit`` is all of it, for the report. Pure: entries in, values out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from .actions import Ask, Owned, Probe, Signal, Start
from .campaign import Campaign, evolve
from .debugreport import inquiry
from .events import Concluded, Entry, Instructed, Judged, Moved, Noted, Observed, Opened, Requested, Resumed
from .guards.evidence import read_collected
from .observations import Completed, read_job_state, read_owned, read_sections
from .probes.processes import read_processes
from .report import summary

PART_MAX = 20_000
"""Characters of one part of gathered evidence that a report shows; the journal has all of it."""
ALLOWED = {
    "yes": "--yes: what the playbook names is confirmed without asking",
    "rebase": "--rebase: go on although the playbook or the host changed since the run began",
    "take_over": "--take-over: the host's lease is taken from the controller that holds this epoch",
    "revert": "revert: everything that this run changed on hosts goes back",
}
"""What an option of the command line allows, for somebody who was not there."""
TITLE_MAX = 200
"""Characters of a command line that a report shows."""


class Trail:
    """Collects what is needed while entries pass; blobs are not needed, except for the summary."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.signals: list[dict[str, Any]] = []
        self.orders: list[dict[str, Any]] = []
        self.overrides: list[dict[str, Any]] = []
        self.starts: list[dict[str, Any]] = []
        self.gathered: list[dict[str, Any]] = []
        """What was looked at of launches that failed, and what check scripts said."""
        self.assumptions: dict[str, dict[str, Any]] = {}
        self.controllers: list[dict[str, Any]] = []
        self.decision_seq = 0
        self._asked: dict[str, tuple[int, Any]] = {}
        self._answered: dict[str, int] = {}
        self._verdicts: dict[str, dict[str, Any]] = {}
        self._sent: list[dict[str, Any]] = []
        self._looked: dict[str, tuple[str, str]] = {}
        """By host, the newest answers that list processes: all of them, and those of our jobs."""

    def take(self, entry: Entry) -> None:
        """Take in the next entry."""
        match entry.event:
            case Opened() | Resumed():
                self._session(entry, entry.event)
            case Requested():
                self._requested(entry.seq, entry.event)
            case Noted():
                self._answered[entry.event.request] = entry.seq  # the newest part, until the end comes
            case Observed():
                self._observed(entry.seq, entry.event)
            case Instructed():
                order = entry.event.order.model_dump(mode="json")
                self.orders.append({"seq": entry.seq, "wall_ns": entry.wall_ns, "by": entry.event.by, **order})
            case Judged():
                self._judged(entry.seq, entry.event)
            case Moved():
                move = entry.event.model_dump(mode="json", exclude={"kind"})
                verdicts = list(self._verdicts.values())
                stamp = {"entry": entry.seq, "wall_ns": entry.wall_ns}
                self.steps.append({**stamp, **move, "verdicts": verdicts, "signals": self._sent})
                self._verdicts, self._sent = {}, []
            case Concluded():
                self.decision_seq = entry.seq

    def _session(self, entry: Entry, event: Opened | Resumed) -> None:
        options = event.options.model_dump(mode="json")
        self.controllers.append(
            {
                "seq": entry.seq,
                "wall_ns": entry.wall_ns,
                "how": event.kind,
                "controller": event.controller,
                "logic": event.logic,
                "versions": event.versions,
                "options": options,
            }
        )
        allowed = {name: value for name, value in options.items() if value not in (False, None, (), [], "")}
        for name, value in allowed.items():
            what = ALLOWED.get(name, f"option {name}") + ("" if value is True else f" = {value}")
            self.overrides.append({"seq": entry.seq, "what": what, "by": event.controller})
        if event.plan is not None:
            for state in event.plan.states:
                for guard in state.guards:
                    self._tolerated(entry.seq, guard, state.name)

    def _tolerated(self, seq: int, guard: Any, place: str) -> None:
        """Note settings that the playbook allows to differ from what was asked for."""
        for name, option in type(guard).model_fields.items():
            value = getattr(guard, name)
            if name.startswith("allow") and value and value != option.get_default(call_default_factory=True):
                listed = ", ".join(str(item) for item in value) if isinstance(value, (tuple, list, dict)) else name
                what = f"{guard.guard} in {place} allows {listed}"
                self.overrides.append({"seq": seq, "what": what, "by": "the playbook"})

    def _requested(self, seq: int, event: Requested) -> None:
        action = event.action
        self._asked[event.request] = (seq, action)
        if isinstance(action, Signal):
            sent = {"seq": seq, "request": event.request, **action.model_dump(mode="json"), "answer": None}
            titles = self._titles(action.host)
            for target in sent["targets"]:
                target["title"] = titles.get((target["pid"], target["start"]), "")[:TITLE_MAX]
            self._sent.append(sent)
            self.signals.append(sent)
        elif isinstance(action, Start):
            job = action.job
            self.starts.append(
                {
                    "seq": seq,
                    "request": event.request,
                    "host": action.host,
                    "key": action.key,
                    "role": job.role,
                    "argv": list(job.argv),
                    "env": job.env,
                    "files": job.files,
                    "answer": None,
                    "state": None,
                }
            )

    def _titles(self, host: str) -> dict[tuple[int, int], str]:
        """Return the command lines of processes by identity, as the newest looks at the host showed them."""
        everyone, owned = self._looked.get(host, ("", ""))
        known = {one.identity: one.title for one in read_processes(read_sections(everyone).get("processes")) or ()}
        with contextlib.suppress(ValueError):
            known |= {(one.pid, one.start): one.argv for one in read_owned(owned)}
        return known

    def _observed(self, seq: int, event: Observed) -> None:
        self._answered[event.request] = seq
        self._gather(seq, event)
        _, action = self._asked.get(event.request, (0, None))
        outcome = event.outcome
        said = outcome.out.text if isinstance(outcome, Completed) else outcome.result
        if isinstance(action, (Probe, Owned)) and isinstance(outcome, Completed):
            everyone, owned = self._looked.get(action.host, ("", ""))
            if isinstance(action, Owned):
                self._looked[action.host] = (everyone, said or "")
            elif any(section.name == "processes" for section in action.sections):
                self._looked[action.host] = (said or "", owned)
        for item in self.signals if isinstance(action, Signal) else self.starts if isinstance(action, Start) else ():
            if item["request"] == event.request:
                item["answer"] = said
                if isinstance(action, Start) and said is not None and isinstance(outcome, Completed):
                    item["state"] = read_job_state(said).model_dump(mode="json")
        if isinstance(action, Ask) and isinstance(outcome, Completed):
            word = "yes" if outcome.status == 0 else "no"
            what = f"asked: {action.question} Answer: {word} ({'; '.join(action.lines)})"
            by = self.controllers[-1]["controller"] if self.controllers else ""
            self.overrides.append({"seq": seq, "what": what, "by": f"{by}, at its terminal"})

    def _gather(self, seq: int, event: Observed) -> None:
        """Keep what a debug campaign gathered, by part; nothing for any other answer."""
        what = event.request.rpartition("/")[2].partition(".")[0]
        if not (what == "collect" or what.startswith("check-")) or what.endswith("-start"):
            return
        text = event.outcome.out.string() if isinstance(event.outcome, Completed) else f"({event.outcome.result})"
        parts = read_collected(text) if what == "collect" else {"said": text}
        cut = {name: body if len(body) <= PART_MAX else f"{body[:PART_MAX]}\n…" for name, body in (parts or {}).items()}
        self.gathered.append({"seq": seq, "request": event.request, "parts": cut})

    def _judged(self, seq: int, event: Judged) -> None:
        read = [
            {
                "request": request,
                "do": self._asked[request][1].do if request in self._asked else "?",
                "entry": self._answered.get(request),
            }
            for request in event.verdict.read
        ]
        verdict = {
            "guard": event.guard,
            "gates": event.gates,
            "entry": seq,
            **event.verdict.model_dump(mode="json", exclude={"read"}),
        }
        self._verdicts[event.guard] = {**verdict, "read": read}
        if event.guard.startswith("assumption "):
            self.assumptions[event.guard.removeprefix("assumption ")] = self._verdicts[event.guard]


def steps(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return every move with the verdicts it rests on, the entries that those read, and the signals before it."""
    trail = Trail()
    for entry in entries:
        trail.take(entry)
    return trail.steps


def audit(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the whole report of a run; ``entries`` have their blobs."""
    trail, campaign = Trail(), Campaign()
    for entry in entries:
        trail.take(entry)
        evolve(campaign, entry)
    document = summary(campaign)
    if campaign.opened is None:
        return document
    named = campaign.plan.assumptions
    return {
        **document,
        "playbook_text": _text(campaign),
        "inquiry": inquiry(campaign),
        "assumptions": [_assumption(name, named[name], trail.assumptions.get(name)) for name in named],
        "controllers": trail.controllers,
        "steps": trail.steps,
        "signals": trail.signals,
        "starts": trail.starts,
        "gathered": trail.gathered,
        "overrides": trail.overrides,
        "orders": trail.orders,
        "decision_entry": trail.decision_seq,
        "finally": campaign.plan.finally_,
    }


def _text(campaign: Campaign) -> str:
    assert campaign.opened is not None
    try:
        return campaign.opened.playbook.string()
    except LookupError:
        return ""


def _assumption(name: str, guard: Any, verdict: dict[str, Any] | None) -> dict[str, Any]:
    """Return an assumption with its fate; one that nobody judged was neither validated nor refuted."""
    fate = {"PASS": "validated", "FAIL": "refuted"}.get(verdict["result"], "open") if verdict else "not judged"
    wanted = guard.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    return {"name": name, "guard": {"guard": guard.guard, **wanted}, "fate": fate, "verdict": verdict}
