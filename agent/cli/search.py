"""``agent search WORDS``: where in the records of runs a word or phrase stands. Contacts nothing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("search", help="find words in what runs observed, judged and logged")
    command.add_argument("words", help="a word, or a phrase in quotes; punctuation and case do not matter")
    command.add_argument("run", nargs="*", help="only in these (default: every run)")
    command.add_argument("--limit", type=int, default=20, metavar="N", help="so many places at most (default 20)")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; 0 when there is such a place, 1 when there is none."""
    from dataclasses import asdict

    from agent.cli.folder import all_runs, find
    from agent.cli.text import one_line
    from agent.journal.search import search

    runs = [find(args.runs, name) for name in args.run] or all_runs(args.runs)
    root = args.runs if args.runs.is_dir() else runs[0].path.parent if runs else args.runs
    hits = search(root, [run.path for run in runs], args.words, max(1, args.limit))
    if args.json:
        print(json.dumps([asdict(hit) for hit in hits]))
        return 0 if hits else 1
    for hit in hits:
        print(one_line(f"{hit.run}  {f'entry {hit.seq}' if hit.seq else ''}  {hit.what}"))
        print(f"    {one_line(hit.excerpt, 200)}")
    if not hits:
        print(one_line(f"nowhere in {len(runs)} runs: {args.words}"))
    return 0 if hits else 1
