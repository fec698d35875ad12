"""``agent diff A B``: what differs between two runs, or two trials, and whether the results do."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.core.diff import Side

SHOWN = 30
"""So many lines of a section are printed; ``--json`` has all."""
SECTIONS = {
    "playbook": "playbook",
    "plan": "plan",
    "configuration": "configuration asked for",
    "effective": "configuration in effect",
    "environment": "environment",
    "versions": "versions",
    "host": "host before the run",
    "result": "result",
}


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("diff", help="what differs between two runs or trials, and whether the results do")
    command.add_argument("one", metavar="A", help="a run as in `agent show`, or RUN:TRIAL")
    command.add_argument("two", metavar="B", help="the other one")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; 0 whatever differs."""
    from agent.cli.text import safe
    from agent.core.diff import diff

    document = diff(_side(args.runs, args.one), _side(args.runs, args.two))
    if args.json:
        print(json.dumps(document))
        return 0
    for line in lines(document):
        print(safe(line))
    return 0


def _side(root: Path, name: str) -> Side:
    """Return the run, or the trial in it, that ``name`` says. A colon in a path is a path's own."""
    from agent.cli.folder import find
    from agent.cli.replay import folded
    from agent.core.diff import side
    from agent.errors import AgentError

    run, colon, trial = name.rpartition(":")
    whole = not colon or Path(name).exists()
    found = find(root, name if whole else run)
    campaign = folded(found.journal)
    if campaign.opened is None:
        raise AgentError(f"{found.id}: nothing was recorded", "name a run that was started", "E_DIFF")
    try:
        return side(found.id, campaign, "" if whole else trial)
    except LookupError as error:
        raise AgentError(str(error.args[0]), "write RUN:TRIAL", "E_DIFF") from error


def lines(document: dict[str, Any]) -> list[str]:
    """Return the differences for people."""
    one, two = document["one"], document["two"]
    marks = [(name, side["rehearsal"]) for name, side in (("A", one), ("B", two)) if side["rehearsal"]]
    out = [f"REHEARSAL: {name} ({how}): its numbers are simulated" for name, how in marks]
    out += [f"A  {one['run']}:{one['trial']}  ({one['launches']} launches of {one['from']})"]
    out.append(f"B  {two['run']}:{two['trial']}  ({two['launches']} launches of {two['from']})")
    for name, title in SECTIONS.items():
        found = document[name]
        if found:
            out += ["", f"{title}:"]
            out += [f"  {line if isinstance(line, str) else _change(line)}" for line in found[:SHOWN]]
            if len(found) > SHOWN:
                out.append(f"  … and {len(found) - SHOWN} more (--json has all)")
    if document["metrics"]:
        out += ["", f"{'metric':<28} {'A':>11} {'B':>11}  {'B/A':>8}  95 % interval"]
        out += [_metric(item) for item in document["metrics"]]
    one_profile, two_profile = document["profiles"]
    if one_profile and two_profile:
        from agent.cli.profile_view import changed

        out += [
            "",
            "where the time went (shares, not speeds):",
            *(f"  {line}" for line in changed(one_profile, two_profile)),
        ]
    elif one_profile or two_profile:
        out += ["", f"only {'A' if one_profile else 'B'} was profiled: where the time went cannot be compared"]
    for words, names in (("the same", document["same"]), ("cannot be told", document["unknown"])):
        if names:
            out += ["", f"{words}: {', '.join(SECTIONS[name] for name in names)}"]
    return [*out, "", document["verdict"]]


def _change(change: dict[str, Any]) -> str:
    one, two = ("–" if change[key] is None else _short(change[key]) for key in ("one", "two"))
    return f"{change['what']}: {one} → {two}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else f"{value:.6g}" if isinstance(value, float) else json.dumps(value)
    return text if len(text) <= 100 else text[:99] + "…"


def _metric(item: dict[str, Any]) -> str:
    head = f"{item['metric']:<28} {item['one']:>11.5g} {item['two']:>11.5g}"
    if item["ratio"] is None:
        return f"{head}  {'':>8}  {item['word']}"
    if item["one"] == item["two"]:
        return f"{head}  {'':>8}  {item['word']}"
    between = f"{item['low']:.4f} … {item['high']:.4f}  " if item["low"] is not None else ""
    return f"{head}  {item['ratio']:>8.4f}  {between}{item['word']}"
