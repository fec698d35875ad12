"""``agent export RUN DEST``: a run for other places: a whole copy, one file to hand on, or what other tools read.

Reads the journal alone. Nothing is sent anywhere.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.cli.folder import RunFolder
    from agent.core.campaign import Campaign

FORMATS = ("journal", "bundle", "jsonl", "csv", "parquet", "mlflow", "aiperf", "wandb", "trackio")


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("export", help="a run for other places and other tools; the run may go on")
    command.add_argument("run", help="its name, a part of it, its folder, or `last`")
    command.add_argument("dest", type=Path, help="a new folder, or for jsonl and bundle a new file")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--as", dest="form", choices=FORMATS, default="journal", help="(default: a copy of the journal)")
    form.add_argument("--bundle", action="store_const", const="bundle", dest="form", help="the same as --as bundle")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import find, undone
    from agent.cli.text import safe

    run = find(args.runs, args.run)
    with undone(args.dest):
        document, said = WRITERS[args.form](run, args.dest)
    if args.json:
        print(json.dumps({"run": run.id, "as": args.form, **document}))
        return 0
    for line in said:
        print(safe(line))
    return 0


Written = tuple[dict[str, Any], list[str]]
"""What was written, for programs and for people."""


def _journal(run: RunFolder, dest: Path) -> Written:
    from agent.journal.anchors import Anchor
    from agent.journal.export import export

    report = export(run.journal, dest)
    blobs = f" and {report.blobs} blobs beside it" if report.blobs else ""
    return report.to_json(), [
        f"{report.path}: {report.seq} entries{blobs}; the copy was audited and is whole",
        "open it with `sqlite3` or `datasette`: views timeline, trials, launches, benchmarks, guards, transitions, …",
        Anchor(report.campaign, report.seq, report.hash).shown(),
    ]


def _bundle(run: RunFolder, dest: Path) -> Written:
    from agent.journal.anchors import Anchor
    from agent.journal.bundle import pack

    content, extra = derived(run)
    done = pack(run.path, dest, extra)
    found = [] if content["record"]["ok"] else [f"  the report names finding {content['record']['finding']}"]
    return {"path": str(done.path), "files": done.files, "audit": done.report.to_json()}, [
        f"{done.path}: {done.files} files, {done.report.seq} entries; the journal in it was audited and is whole",
        *found,
        f"whoever gets it: agent import {done.path.name}; or tar -xzf, then sha256sum -c SHA256SUMS in its folder",
        Anchor(done.report.campaign, done.report.seq, done.report.hash).shown(),
    ]


def derived(run: RunFolder) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return a run's report, and the files of a bundle that follow from its journal, by name."""
    from agent.cli.report import document
    from agent.cli.report_html import page
    from agent.journal.bundle import PLAYBOOK

    content = document(run, [])
    files = {"report.html": page(content).encode(), "report.json": json.dumps(content).encode()}
    if content.get("playbook_text"):
        files[PLAYBOOK] = content["playbook_text"].encode()
    return content, files


def _jsonl(run: RunFolder, dest: Path) -> Written:
    from agent.journal.tables import write_jsonl

    _new(dest)
    count = write_jsonl(run.journal, dest)
    return {"path": str(dest), "entries": count}, [
        f"{dest}: the genesis and {count} entries, a line each, chain checked"
    ]


def _csv(run: RunFolder, dest: Path) -> Written:
    from agent.journal.tables import write_csv

    _new(dest)
    return _files(dest, write_csv(run.journal, dest))


def _parquet(run: RunFolder, dest: Path) -> Written:
    from agent.journal.tables import write_parquet

    _new(dest)
    return _files(dest, write_parquet(run.journal, dest))


def _files(dest: Path, files: list[Path]) -> Written:
    names = [path.name for path in files]
    return {"path": str(dest), "files": names}, [f"{dest}: {', '.join(names)}"]


def _aiperf(run: RunFolder, dest: Path) -> Written:
    from agent.core.aggregate import aiperf

    _new(dest)
    found = aiperf(_campaign(run), run.id)
    for name, document in found.items():
        folder = dest / name
        folder.mkdir(parents=True)
        text = json.dumps(document, indent=2)
        (folder / "profile_export_aiperf_aggregate.json").write_text(text)
    what = f"{dest}: {len(found)} configurations, a profile_export_aiperf_aggregate.json for each"
    return {"path": str(dest), "configurations": list(found)}, [what]


def _tracker(name: str) -> Callable[[RunFolder, Path], Written]:
    def write(run: RunFolder, dest: Path) -> Written:
        from agent.cli import trackers

        source, times = _source(run)
        campaign = _campaign(run)
        if name == "mlflow":  # one store takes many runs
            where = trackers.write_mlflow(campaign, source, times, dest)
            look = f"mlflow ui --backend-store-uri {where}"
        elif name == "wandb":
            where = trackers.write_wandb(campaign, source, dest)
            look = f"wandb sync --include-offline {where}/offline-run-*   (sends it to your server)"
        else:
            where = trackers.write_trackio(campaign, source, dest)
            look = f"TRACKIO_DIR={where} trackio show"
        return {"path": where}, [f"{where}: a run of {name} for each launch; look: {look}"]

    return write


WRITERS: dict[str, Callable[[RunFolder, Path], Written]] = {
    "journal": _journal,
    "bundle": _bundle,
    "jsonl": _jsonl,
    "csv": _csv,
    "parquet": _parquet,
    "aiperf": _aiperf,
    "mlflow": _tracker("mlflow"),
    "wandb": _tracker("wandb"),
    "trackio": _tracker("trackio"),
}


def _campaign(run: RunFolder) -> Campaign:
    from agent.cli.replay import summarised
    from agent.errors import AgentError, Exit

    campaign = summarised(run.journal)
    if campaign.opened is None:
        raise AgentError(f"{run.id}: nothing was recorded", "name a run that was started", "E_EXPORT", exit=Exit.USAGE)
    return campaign


def _source(run: RunFolder) -> tuple[dict[str, str], tuple[int, int]]:
    """Return what names the record, and the Unix times in ms of its first and last entry."""
    from agent.journal.store import Journal

    with Journal.open_reader(run.journal) as journal:
        head = journal.head
        ends = [next(iter(journal.entries(seq))).wall_ns // 10**6 for seq in (1, head.seq)]
        return {"run": run.id, "campaign": journal.campaign, "head": f"{head.seq} {head.hash}"}, (ends[0], ends[1])


def _new(dest: Path) -> None:
    from agent.errors import JournalError

    if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
        raise JournalError(f"{dest} is there already", "name another place", "E_JOURNAL_EXISTS")
    dest.parent.mkdir(parents=True, exist_ok=True)
