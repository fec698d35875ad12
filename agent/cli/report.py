"""``agent report RUN``: the whole of a run for somebody who was not there, as text or as one HTML file.

From the journal alone. The record is audited first, and the report says what came of that.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from agent.cli.report_lines import controller_line, order_line, setting, signal_lines, start_line


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("report", help="the whole of a run for somebody who was not there")
    command.add_argument("run", help="its name, a part of it, its folder, or `last`")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument(
        "--html",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FILE",
        help="one HTML file (default: in the run's folder)",
    )
    command.add_argument(
        "--anchors", type=Path, action="append", default=[], metavar="FILE", help="heads kept elsewhere"
    )
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; 7 when the record does not hold, else 0."""
    from agent.cli.folder import find
    from agent.cli.text import safe
    from agent.errors import Exit

    run = find(args.runs, args.run)
    report = document(run, args.anchors)
    code = 0 if report["record"]["ok"] else int(Exit.JOURNAL)
    if args.html is not None:
        from agent.cli.report_html import page

        path = args.html if args.html != Path() else run.path / "report.html"
        write(path, page(report))
        print(path)
        return code
    if args.json:
        print(json.dumps(report))
        return code
    for line in lines(report):
        print(safe(line))
    return code


def document(run: Any, anchors: list[Path]) -> dict[str, Any]:
    """Return the report's content: what was recorded, and whether the record holds."""
    from agent.cli import audit as auditing
    from agent.core.auditreport import audit
    from agent.journal.store import Journal

    report = auditing.checked(run.journal, anchors)
    auditing.replay_and_steps(run.journal, report)
    with Journal.open_reader(run.journal) as journal:
        content = audit(journal.hydrate(entry) for entry in journal.entries())
        missing = journal.missing
    record = {**auditing.document(report), "said": auditing.result_lines(run.id, report), "missing_blobs": missing}
    return {"run": run.id, **content, "record": record}


def write(path: Path, text: str) -> None:
    """Write the file; AgentError when that cannot be done."""
    from agent.errors import AgentError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AgentError(f"{path}: {error.strerror}", "name another file with --html FILE", "E_REPORT") from error


def lines(report: dict[str, Any]) -> list[str]:
    """Return the report as text. The first line says so when hosts were simulated."""
    from agent.cli.profile_view import lines as profile_lines
    from agent.cli.show import lines as summary_lines

    out = summary_lines(report)
    if "steps" not in report:
        return out
    if report["inquiry"]:
        from agent.core.debugreport import lines as inquiry_lines

        out += ["", *inquiry_lines(report["inquiry"], report["edits"])]
        out += ["", "EVIDENCE GATHERED (all of it: --html)"]
        out += [
            f"  {item['request']} (entry {item['seq']}): "
            + ", ".join(f"{name} {len(body.splitlines())} lines" for name, body in item["parts"].items())
            for item in report["gathered"]
        ] or ["  none"]
    for row in report["profiles"]:
        out += [
            "",
            f"WHERE THE TIME WENT: {row['trial']} {row['label']}",
            *(f"  {line}" for line in profile_lines(row)),
        ]
    out += ["", "ASSUMPTIONS"] + (
        [line for item in report["assumptions"] for line in assumption_lines(item)] or ["  none"]
    )
    out += ["", "STEPS"]
    from agent.cli.audit import step_lines

    out += [line for step in report["steps"] for line in step_lines(step)]
    out += ["", "PROCESSES SIGNALLED"] + (
        [f"  {line}" for item in report["signals"] for line in signal_lines(item)] or ["  none"]
    )
    out += ["", "STARTED"] + ([f"  {start_line(item)}" for item in report["starts"]] or ["  nothing"])
    if not report["inquiry"]:  # a debug campaign has them with its hypotheses
        from agent.core.debugreport import edit_lines

        out += ["", "FILES CHANGED ON HOSTS"] + (edit_lines(report["edits"]) or ["  none"])
    out += ["", "ALLOWED"] + (
        [f"  {item['what']} (by {item['by'] or 'unknown'}; entry {item['seq']})" for item in report["overrides"]]
        or ["  nothing beyond the defaults"]
    )
    out += ["", "ORDERS AND NOTES"] + ([f"  {order_line(item)}" for item in report["orders"]] or ["  none"])
    out += ["", "WHO WORKED ON IT"] + [f"  {controller_line(item)}" for item in report["controllers"]]
    return [*out, "", "THE RECORD", *(f"  {line.strip()}" for line in report["record"]["said"])]


def assumption_lines(item: dict[str, Any]) -> list[str]:
    """Return an assumption, its fate, and the observation that decided it."""
    out = [f"  {item['name']}: {item['fate'].upper()}  ({setting(item['guard'])})"]
    if (verdict := item["verdict"]) is not None:
        read = ", ".join(f"{one['do']} {one['request']} (entry {one['entry']})" for one in verdict["read"])
        out.append(f"      {verdict['saw']}; judged in entry {verdict['entry']} on {read or 'nothing'}")
    return out
