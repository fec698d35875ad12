"""``agent audit RUN``: is the record whole, and on what does each step rest. Reads only; contacts no host."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HELP_ANCHORS = "heads kept elsewhere (saved output of a run does); this machine's own are always looked at"


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("audit", help="check a run's record, and show what each step rests on")
    command.add_argument("run", help="its name, a part of it, its folder, or `last`")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--anchors", type=Path, action="append", default=[], metavar="FILE", help=HELP_ANCHORS)
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import find
    from agent.cli.replay import replayed
    from agent.cli.text import safe
    from agent.errors import Exit, JournalError
    from agent.journal.anchors import anchors_file
    from agent.journal.verify import verify

    run = find(args.runs, args.run)
    own = anchors_file()
    report = verify(run.journal, anchors=[*args.anchors, *([own] if own.is_file() else [])])
    findings = [finding_json(finding) for finding in report.flaws]
    steps: list[dict[str, Any]] = []
    try:
        steps = transitions(run.journal)
        mismatch = replayed(run.journal).mismatch
        if mismatch is not None:
            findings.append({"finding": 16, "seq": mismatch.seq, "what": mismatch.what, "wanted": "equality"})
    except JournalError as error:
        if not findings:
            findings.append({"finding": 10, "seq": 0, "what": error.what, "wanted": error.remedy})
    if args.json:
        print(json.dumps({"run": run.id, "ok": not findings, "findings": findings, "transitions": steps}))
        return int(Exit.JOURNAL) if findings else 0
    for step in steps:
        for line in step_lines(step):
            print(safe(line))
    print()
    for finding in findings:
        where = f"FINDING {finding['finding']} at entry {finding['seq']}"
        print(safe(f"{where}: {finding['what']} (wanted: {finding['wanted']})"))
    if findings:
        return int(Exit.JOURNAL)
    print(f"{run.id}: the chain holds, every verdict and decision follows from what was observed")
    print(f"  {anchored(report)}")
    return 0


def anchored(report: Any) -> str:
    """Say how far anchors reach: what comes after the last one could be cut off without a trace."""
    if not report.anchors:
        return (
            "no anchor of this run is known here: that its end was cut off, or that it is an old copy, cannot be seen"
        )
    return f"{report.anchors} anchors hold, the last at entry {report.anchored_seq} of {report.seq}"


def finding_json(finding: Any) -> dict[str, Any]:
    """Return a finding of the verifier for programs."""
    return {"finding": finding.finding, "seq": finding.seq, "what": finding.found, "wanted": finding.wanted}


def transitions(journal_path: Path) -> list[dict[str, Any]]:
    """Return every move with the verdicts it rests on, and the entries that those read."""
    from agent.core.events import Judged, Moved, Noted, Observed, Requested
    from agent.journal.store import Journal

    answered: dict[str, int] = {}
    noted: dict[str, int] = {}
    asked: dict[str, str] = {}
    verdicts: dict[str, dict[str, Any]] = {}
    steps: list[dict[str, Any]] = []
    signals: list[dict[str, Any]] = []
    with Journal.open_reader(journal_path) as journal:
        for entry in journal.entries():
            event = entry.event
            if isinstance(event, Requested):
                asked[event.request] = event.action.do
                if event.action.do == "signal":
                    signals.append({"seq": entry.seq, **event.action.model_dump(mode="json")})
            elif isinstance(event, Observed):
                answered[event.request] = entry.seq
            elif isinstance(event, Noted):
                noted[event.request] = entry.seq
            elif isinstance(event, Judged):
                read = [
                    {
                        "request": request,
                        "do": asked.get(request, "?"),
                        "entry": answered.get(request) or noted.get(request),
                    }
                    for request in event.verdict.read
                ]
                verdict = event.verdict.model_dump(mode="json", exclude={"read"})
                verdicts[event.guard] = {"guard": event.guard, "entry": entry.seq, **verdict, "read": read}
            elif isinstance(event, Moved):
                move = event.model_dump(mode="json", exclude={"kind"})
                steps.append({"entry": entry.seq, **move, "verdicts": list(verdicts.values()), "signals": signals})
                verdicts, signals = {}, []
    return steps


def step_lines(step: dict[str, Any]) -> list[str]:
    """Return a move for people."""
    head = f"{step['entry']:>6}  {step['source'] or 'start'} ─{step['outcome']}→ {step['state']}"
    out = [f"{head}   [{step['trial'] or '-'} {step['launch'] or '-'} #{step['attempt']}]  {step['because'][:160]}"]
    for verdict in step["verdicts"]:
        cls = f" {verdict['finding']}" if verdict["finding"] else ""
        out.append(f"{'':>8}{verdict['result']}{cls} {verdict['guard']}: {verdict['saw'][:140]}")
        out.extend(
            f"{'':>12}read {item['do']} {item['request']} (entry {item['entry'] or 'not answered'})"
            for item in verdict["read"]
        )
    for signal in step["signals"]:
        pids = ", ".join(f"{target['pid']}@{target['start']}" for target in signal["targets"])
        whose = f"job {signal['key']}" if signal["key"] else "named by the playbook, confirmed"
        out.append(f"{'':>8}signal {signal['signal']} to {pids} ({whose}; entry {signal['seq']})")
    return out
