"""The what-if of ``agent replay``: the same observations under another playbook, guard or rule of decision."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.core.whatif import Difference, WhatIf, rejudge
from agent.engine import Ledger, drive

if TYPE_CHECKING:
    from agent.core.campaign import Campaign
    from agent.core.events import Entry
    from agent.core.plan import Plan

SHOWN = 40
"""So many differences are printed; ``--json`` has all."""


class PairedLedger(Ledger):
    """A ledger that takes its inputs by the requests that are open, and compares without asking for equality."""

    def __init__(self, pairing: WhatIf, hydrate: Callable[[Entry], Entry]) -> None:
        super().__init__(iter(()), store=None, hydrate=hydrate)
        self.pairing = pairing

    def recorded_input(self) -> Any | None:
        """See Ledger; None ends the loop: the campaign rests, or the world was never asked."""
        return self.pairing.next_input()

    def record(self, event: Any, host: str = "") -> Entry:
        """See Ledger."""
        return self._hydrate(self.pairing.take(event))


def what_if(journal: Path, plan: Plan | None, change: Callable[[Plan], Plan]) -> tuple[WhatIf, list[Difference]]:
    """Derive anew under ``plan`` (None = the run's own) as changed; return that, and verdicts along the record."""
    import asyncio

    from agent.core.events import Opened, Scored
    from agent.core.whatif_rules import unmeasured
    from agent.core.wording import did_you_mean
    from agent.errors import JournalError
    from agent.journal.store import Journal

    with Journal.open_reader(journal) as reader:
        entries = list(reader.entries())
        opened = next((entry.event for entry in entries if isinstance(entry.event, Opened)), None)
        if opened is None:
            raise JournalError(f"{journal} has no opening entry", "name a run that was started")
        changed = change(plan or opened.plan)
        measured = {name for entry in entries if isinstance(entry.event, Scored) for name in entry.event.values}
        if missing := unmeasured(changed, plan or opened.plan, measured):
            what = f"goal: the run's benchmark reported no {missing}"
            raise _usage(what, did_you_mean(missing, sorted(measured)))
        pairing = WhatIf(entries, changed)

        def watch(entry: Entry, campaign: Campaign) -> None:
            pairing.seen(campaign)

        asyncio.run(drive(PairedLedger(pairing, reader.hydrate), None, watch=watch))
        return pairing, rejudge(entries, changed, reader.hydrate)


def report(run: Any, args: argparse.Namespace) -> None:
    """Print what would have been."""
    from agent.cli.loading import load
    from agent.cli.text import safe

    plan = load(args.other)[1] if args.other else None

    def change(plan: Plan) -> Plan:
        for setting in args.guard:
            plan = with_guard(plan, setting)
        for setting in sorted(args.rule, key=lambda rule: not rule.startswith("goal.metric=")):  # it sets a direction
            plan = with_rule(plan, setting)
        return plan

    pairing, verdicts = what_if(run.journal, plan, change)
    campaign = pairing.campaign
    decision = campaign.concluded
    if args.json:
        print(json.dumps(document(run.id, pairing, verdicts)))
        return
    if campaign.opened is not None and campaign.opened.rehearsal:
        print(safe(f"REHEARSAL ({campaign.opened.rehearsal}): all numbers are simulated"))
    print(f"{run.id}: what if")
    for line in lines(pairing, verdicts):
        print(safe(line))
    if decision is not None:
        print(safe(f"decision then: {decision.word}: {decision.because}"))


def document(run: str, pairing: WhatIf, verdicts: list[Difference]) -> dict[str, Any]:
    """Return the result for programs."""
    decision = pairing.campaign.concluded
    stopped = pairing.stopped
    return {
        "run": run,
        "differences": [vars(item) for item in pairing.differences],
        "verdicts_along_the_record": [vars(item) for item in verdicts],
        "decision": decision.model_dump(mode="json") if decision else None,
        "stopped": vars(stopped) if stopped else None,
        "answers_used": pairing.used,
        "answers_not_used": pairing.unused(),
    }


def lines(pairing: WhatIf, verdicts: list[Difference]) -> list[str]:
    """Return the result for people."""
    out = [
        f"  {item.what} (entry {item.seq or '-'}): was {item.recorded}; now {item.now}" for item in pairing.differences
    ]
    if not out:
        out = ["  nothing differs" + (" up to there" if pairing.stopped else "")]
    reached = {(item.what, item.seq) for item in pairing.differences}
    beyond = [item for item in verdicts if (item.what, item.seq) not in reached]
    if beyond:
        out.append("  further along the recorded path these verdicts would differ:")
        out += [f"    {item.what} (entry {item.seq}): was {item.recorded}; now {item.now}" for item in beyond]
    if len(out) > SHOWN:
        out = [*out[:SHOWN], f"  … and {len(out) - SHOWN} more lines (--json has all)"]
    if (stopped := pairing.stopped) is not None:
        out.append(f"  ends at {stopped.request} ({stopped.action}): {stopped.why}")
    out.append(f"  {pairing.used} answers of the world were used, {pairing.unused()} were not")
    return out


# ---------------------------------------------------------------- changing a plan


def with_guard(plan: Plan, setting: str) -> Plan:
    """Return the plan with every guard of that name set otherwise: ``gpus_clean.tolerance=2%``."""
    left, _, text = setting.partition("=")
    name, _, option = left.partition(".")
    if not text.strip() or not option or "\n" in text:
        raise _usage(f"--guard {setting}", "write NAME.OPTION=VALUE: --guard gpus_clean.tolerance_mib=64")
    changed = 0

    def change(guard: Any) -> Any:
        nonlocal changed
        if guard.guard != name:
            return guard
        if option not in type(guard).model_fields or option == "guard":
            known = ", ".join(sorted(set(type(guard).model_fields) - {"guard"})) or "none"
            raise _usage(f"--guard {setting}: {name} has no option {option!r}", f"its options: {known}")
        changed += 1
        return _set(guard, option, text, f"--guard {setting}")

    states = tuple(
        state.model_copy(update={"guards": tuple(change(guard) for guard in state.guards)}) for state in plan.states
    )
    assumptions = {key: change(guard) for key, guard in plan.assumptions.items()}
    if not changed:
        known = ", ".join(sorted({guard.guard for state in plan.states for guard in state.guards}))
        raise _usage(f"--guard {setting}: the plan has no guard {name!r}", f"its guards: {known}")
    return plan.model_copy(update={"states": states, "assumptions": assumptions})


RULES = ("goal", "budget", "search.confirm", "benchmark.repeats", "finally", "seed")
"""Parts of a plan that a rule may change; the rest is what ``--with`` is for."""


def with_rule(plan: Plan, setting: str) -> Plan:
    """Return the plan with one rule of decision set otherwise: ``goal.improve=5%``."""
    from agent.core import whatif_rules
    from agent.errors import PlaybookError

    name, _, text = setting.partition("=")
    known = any(name.startswith((f"{rule}.", f"{rule}_")) or name == rule for rule in RULES)
    if not text.strip() or "\n" in text or not known or name in ("goal", "budget", "search.confirm"):
        raise _usage(f"--rule {setting}", f"write NAME=VALUE, as goal.improve=5%; rules begin with {', '.join(RULES)}")
    try:
        return whatif_rules.with_rule(plan, name, text)
    except PlaybookError as error:
        what, remedy = whatif_rules.words(error)
        raise _usage(f"--rule {setting}: {what}", remedy) from error


def _set(guard: Any, option: str, text: str, what: str) -> Any:
    """Return the guard with an option set as a playbook would write it."""
    from pydantic import ValidationError

    from agent.core.check import Findings, explain
    from agent.core.whatif_rules import words
    from agent.core.yaml import load
    from agent.errors import PlaybookError

    try:
        document = load(f"{option}: {text}\n".encode(), "")
        values, findings = {**guard.model_dump(), **document.data}, Findings(document)
        try:
            return type(guard).model_validate(values)
        except ValidationError as error:
            explain(error, values, type(guard), findings)
            raise PlaybookError("it cannot be used", problems=findings.all()) from error
    except PlaybookError as error:
        said, remedy = words(error)
        raise _usage(f"{what}: {said}", remedy) from error


def _usage(what: str, remedy: str) -> Exception:
    from agent.errors import AgentError

    return AgentError(what, remedy, "E_WHAT_IF")
