"""``agent search WORDS``: where in the records of runs a word or phrase stands. Contacts nothing."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("search", help="find words in what runs observed, judged and logged")
    command.add_argument("words", help="a word, or a phrase in quotes; punctuation and case do not matter")
    command.add_argument("run", nargs="*", help="only in these (default: every run)")
    command.add_argument("--limit", type=_count, default=20, metavar="N", help="so many places at most (default 20)")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def _count(text: str) -> int:
    """Return the number in an argument, which is one at least."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return number


def main(args: argparse.Namespace) -> int:
    """Run the command; 0 when there is such a place, 1 when there is none, 7 when that cannot be told."""
    from dataclasses import asdict

    from agent.cli.folder import all_runs, find
    from agent.cli.text import one_line
    from agent.journal.search import search

    runs = [find(args.runs, name) for name in args.run] or all_runs(args.runs)
    root = args.runs if args.runs.is_dir() else runs[0].path.parent if runs else args.runs
    hits, unread = search(root, [run.path for run in runs], args.words, args.limit)
    if args.json:
        print(json.dumps([asdict(hit) for hit in hits]))
        return _exit(hits, unread)
    for hit in hits:
        print(one_line(f"{hit.run}  {f'entry {hit.seq}' if hit.seq else ''}  {hit.what}"))
        print(f"    {one_line(hit.excerpt, 200)}")
    for name in unread:
        print(one_line(f"{name}: its journal cannot be read to the end; see `agent audit {name}`"), file=sys.stderr)
    if not hits:
        print(one_line(f"nowhere in {len(runs) - len(unread)} runs that can be read: {args.words}"))
    return _exit(hits, unread)


def _exit(hits: list[Any], unread: list[str]) -> int:
    from agent.errors import Exit

    return int(Exit.OK if hits else Exit.JOURNAL if unread else Exit.GOAL_NOT_MET)
