"""``agent import FILE``: take in a run that somebody packed, once everything in it was found to be whole."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("import", help="take in a bundle of a run, after checking it")
    command.add_argument("bundle", type=Path, help="what `agent export --bundle` made")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument(
        "--anchors", type=Path, action="append", default=[], metavar="FILE", help="heads that you got by another way"
    )
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; 7 when something in the bundle is not as it was packed, or does not follow from its journal."""
    from agent.cli.folder import RunFolder
    from agent.cli.text import safe
    from agent.errors import Exit
    from agent.journal.anchors import Anchor, anchors_file
    from agent.journal.bundle import unpack

    own, record = anchors_file(), dict[str, Any]()
    elsewhere = (*args.anchors, *((own,) if own.is_file() else ()))
    done = unpack(args.bundle, args.runs, lambda folder: _derived(folder, record), elsewhere)
    code = 0 if record["ok"] else int(Exit.JOURNAL)
    heads = {"bundle": done.heads, "elsewhere": done.report.anchors - done.heads}
    if args.json:
        found = {**done.report.to_json(), **{name: record[name] for name in ("ok", "finding", "findings")}}
        print(json.dumps({"run": done.path.name, "files": done.files, "heads": heads, **found}))
        return code
    print(f"{done.path}: {done.files} files, {done.report.seq} entries; checksums and chain hold")
    print(f"  heads of this run that agree: {heads['bundle']} from the bundle, {heads['elsewhere']} from elsewhere")
    if not heads["elsewhere"]:
        print("  so nothing shows that it was not cut, or made anew as a whole, before it was packed")
        print("  heads that you get by another way do: --anchors FILE")
    print("  the playbook is the recorded one; report.html and report.json were made anew from the journal")
    for flaw in record["findings"]:
        print(safe(f"  FINDING {flaw['finding']} at entry {flaw['seq']}: {flaw['what']} (wanted: {flaw['wanted']})"))
    words = RunFolder(done.path).words
    print(f"look: agent report {words}; derive it anew: agent replay {words}")
    print(Anchor(done.report.campaign, done.report.seq, done.report.hash).shown())
    return code


def _derived(folder: Path, record: dict[str, Any]) -> dict[str, bytes]:
    """Return the files that follow from the journal in a folder; ``record`` takes in what the audit said of it."""
    from agent.cli.export import derived
    from agent.cli.folder import RunFolder
    from agent.errors import AgentError, JournalError

    try:
        content, files = derived(RunFolder(folder))
    except AgentError:
        raise
    except Exception as error:  # entries that nobody's program wrote can make ours stumble, whatever their chain
        what = f"{folder.name}: no report follows from its journal: {type(error).__name__}: {error}"
        remedy = "have it sent again by who ran it; nothing was imported"
        raise JournalError(what, remedy, "E_BUNDLE", 16) from error
    record |= content["record"]
    return files
