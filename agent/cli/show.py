"""``agent show RUN``: what was tried, what it was worth, what was decided. From the journal alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("show", help="what a run tried, found and decided")
    command.add_argument("run", help="its name, a part of it, its folder, or `last`")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.add_argument("--profile", action="store_true", help="where the time of each profiled trial went, in full")
    command.add_argument("--timeline", action="store_true", help="every move, verdict and score as well")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import find
    from agent.cli.replay import summarised
    from agent.cli.text import safe
    from agent.core.report import summary
    from agent.journal.outline import FROM_ENTRIES

    run = find(args.runs, args.run)
    document = {"run": run.id, **summary(summarised(run.journal))}
    if args.json:
        print(json.dumps(document))
        return 0
    if args.timeline:
        _timeline(run.journal)
        print()
    for line in lines(document):
        print(safe(line))
    for line in profiled(document, whole=args.profile):
        print(safe(line))
    if document.get("entries", 0) >= FROM_ENTRIES:
        print("a long record: what this follows from was read, the chain was not checked (`agent audit` does)")
    print(head_of(run.journal))
    return 0


def head_of(journal_path: Path) -> str:
    """Return the journal's head, a commitment to all of it: worth keeping elsewhere."""
    from agent.journal.anchors import Anchor
    from agent.journal.store import Journal

    with Journal.open_reader(journal_path) as journal:
        return Anchor(journal.campaign, *journal.head).shown()


def lines(document: dict[str, Any]) -> list[str]:
    """Return the summary for people."""
    if document["condition"] == "empty":
        return [f"{document['run']}: nothing was recorded"]
    out = []
    if document["rehearsal"]:
        out.append(f"REHEARSAL ({document['rehearsal']}): all numbers are simulated")
    out.append(f"{document['run']}: {document['condition']}")
    if document["condition"] == "held":
        out.append(f"  {document['because']}")
    out += ["", *_table(document["trials"])]
    decision = document["decision"]
    if decision:
        out += ["", f"decision: {decision['word'].upper()}"]
        if decision["ratio"] is not None:
            out.append(
                f"  {decision['winner']} against {decision['baseline']}: {decision['metric']} {interval(decision)}"
            )
        from agent.cli.front import front

        out += [f"  {line}" for line in front(decision)]
        out.append(f"  {decision['because']}")
    live = [launch for launch in document["launches"] if not launch["gone"]]
    out += ["", f"{len(document['launches'])} launches, {document['campaign_s']:.0f} s, {document['entries']} entries"]
    word = "was left running, until the lab closed" if document["rehearsal"] else "left running, or not proven gone"
    if live:
        last = live[-1]
        out.append(f"{word}: {last['launch']} ({last['trial']}), key {last['key']}")
    return out


def profiled(document: dict[str, Any], *, whole: bool) -> list[str]:
    """Return where the time of each profiled trial went: a line each, or all of it."""
    from agent.cli.profile_view import lines as profile_lines
    from agent.cli.profile_view import tables

    out = []
    for row in document.get("profiles", ()):
        head = f"{row['trial']} ({row['label']})" if row["label"] else row["trial"]
        if whole:
            out += ["", f"where the time of {head} went:", *(f"  {line}" for line in profile_lines(row))]
            continue
        found = tables(row)
        shown = ", ".join(f"{name} {share:.1%}" for name, share in list(found[0][1].items())[:4]) if found else ""
        doubt = f"{'phases UNKNOWN' if shown else 'UNKNOWN'}: {row['why']}" if row["why"] and not row["shares"] else ""
        out.append(f"profile of {row['trial']}: {'; '.join(part for part in (shown, doubt) if part)}")
    return out if whole or not out else ["", *out, "  more: agent show RUN --profile"]


def interval(decision: dict[str, Any]) -> str:
    """Write a decision's ratio and its interval, in percent."""
    ratio, low, high = (f"{(decision[name] - 1) * 100:+.1f}" for name in ("ratio", "low", "high"))
    launches = decision["launches"]
    return f"{ratio} %, {100 * decision['level']:.4g}% interval {low} … {high} % from {launches} confirmation launches"


def _table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    metric = rows[0]["metric"]
    head = f"{'trial':<22} {'launch':<7} {metric:>14}  {'±':>7}  {'repeats':>7}  what"
    out = [head, "-" * len(head)]
    for row in rows:
        what = row["because"] if row["verdict"] else row["label"]
        if row["role"] == "final":
            value, spread = "(left running)", ""
        elif row["verdict"]:
            value, spread = row["verdict"], ""
        elif row["valid"] and row["value"] is not None:
            value, spread = f"{row['value']:.4g}", f"{row['deviation']:.2g}" if row["deviation"] is not None else ""
        else:
            value, spread = row["finding"] or ("…" if row["valid"] is None else "invalid"), ""
        out.append(f"{row['trial']:<22} {row['launch']:<7} {value:>14}  {spread:>7}  {row['repeats'] or '':>7}  {what}")
    return out


def _timeline(journal_path: Path) -> None:
    """Print every line a live run would have printed."""
    from agent.cli.display import line_of
    from agent.cli.text import safe
    from agent.core.campaign import Campaign, evolve
    from agent.journal.store import Journal

    campaign = Campaign()
    with Journal.open_reader(journal_path) as journal:
        for entry in journal.entries():
            evolve(campaign, journal.hydrate(entry))
            if line := line_of(entry, campaign):
                print(safe(line))
