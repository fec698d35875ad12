"""``agent check PLAYBOOK``: read, check and resolve a playbook, and say what is wrong. Contacts nothing.

What the rules know is said as well (``agent rules``): of the baseline, and of every trial that is known beforehand.
Errors end with exit code 2, warnings and notes do not.

Other commands read playbooks and the files beside them by the same two functions.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.cli.linter import Hit
    from agent.core.plan import Plan
    from agent.errors import PlaybookError, Problem

SIZE_MAX = 1 << 20
FILE_MAX = 64 << 20


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser(
        "check", help="check a playbook and say what is wrong with it, and where; contacts nothing"
    )
    command.add_argument("playbook", type=Path, nargs="?")
    command.add_argument("--explain", default="", metavar="ID", help="explain a rule (SGL001) and where it comes from")
    command.add_argument("--notes", action="store_true", help="also what is good to know and no fault")
    command.add_argument("--json", action="store_true", help="one JSON document on standard output")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.core.resolve import load_plan
    from agent.errors import AgentError, Exit, PlaybookError, Problem

    if args.explain:
        from agent.cli.rules import explain

        return explain(args.explain, as_json=args.json)
    if args.playbook is None:
        raise AgentError("there is no playbook", "`agent check PLAYBOOK`, or `agent check --explain SGL001`", "E_USAGE")
    name = str(args.playbook)
    try:
        text = read_playbook(args.playbook)
        plan = load_plan(text, name, reader(args.playbook.parent))
    except PlaybookError as error:
        problems = error.problems or (Problem(error.code, error.what, name, remedy=error.remedy),)
        return _refuse(name, list(problems), as_json=args.json, unchecked=error.unchecked)
    from agent.cli.linter import hits

    found = [hit for hit in hits(plan, text, name) if args.notes or args.json or hit.level != "note"]
    errors = [hit.problem for hit in found if hit.level == "error"]
    if errors:
        return _refuse(name, errors, [hit.problem for hit in found if hit.level != "error"], as_json=args.json)
    if args.json:
        said = [{"level": hit.level, **vars(hit.problem)} for hit in found]
        print(json.dumps({"ok": True, "playbook": plan.name, "summary": summary(plan), "problems": [], "hints": said}))
        return int(Exit.OK)
    from agent.cli.text import safe

    for hit in found:
        print(safe(str(hit.problem)), file=sys.stderr)
    print(f"ok: {safe(summary(plan))}" + (f"; {_count(found)}" if found else ""))
    return int(Exit.OK)


def _refuse(
    name: str, problems: list[Problem], hints: list[Problem] | None = None, *, as_json: bool, unchecked: str = ""
) -> int:
    from agent.cli.text import one_line, safe
    from agent.errors import Exit

    if as_json:
        found = {"problems": [vars(one) for one in problems], "hints": [vars(one) for one in hints or ()]}
        print(json.dumps({"ok": False, **found, "unchecked": unchecked}))
        return int(Exit.USAGE)
    for problem in [*problems, *(hints or ())]:
        print(safe(str(problem)), file=sys.stderr)
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    more = f", and more may follow: {unchecked} can be checked only when these are right" if unchecked else ""
    print(f"{one_line(name)}: {count}{more}; nothing was contacted", file=sys.stderr)
    return int(Exit.USAGE)


def _count(found: Sequence[Hit]) -> str:
    counts = {level: sum(hit.level == level for hit in found) for level in ("warning", "note")}
    return ", ".join(f"{number} {level}{'s' if number > 1 else ''}" for level, number in counts.items() if number)


def summary(plan: Plan) -> str:
    """Say a plan in one line."""
    parts = [f"{plan.name}", f"{plan.server.kind} on {plan.hosts[plan.server.host].address}"]
    if plan.debug is not None and plan.debug.hypotheses:
        parts.append(_many(len(plan.debug.hypotheses), "hypothesis", "hypotheses"))
    if plan.debug is not None and plan.debug.bisect is not None:
        parts.append(f"bisection of {_many(len(plan.debug.bisect.points), 'point', 'points')}")
    if plan.search.stages or plan.debug is None:
        parts.append(_many(len(plan.search.stages), "stage", "stages"))
    return ", ".join([*parts, f"{len(plan.states)} states", f"finally {plan.finally_}"])


def _many(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def read_playbook(path: Path) -> bytes:
    """Return a playbook's bytes; PlaybookError when it is not a file that only its owner can change."""
    try:
        if path.exists() and not path.is_file():
            raise _refused(path, "E_FILE", "not a file", "name a playbook")  # before a FIFO is waited for
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _refused(path, "E_FILE", "not a file", "name a playbook")
            if status.st_mode & stat.S_IWOTH:
                raise _refused(path, "E_PLAYBOOK_PERMS", "everybody can change this file", f"chmod o-w {path}")
            if status.st_uid not in (os.geteuid(), os.getuid(), 0):
                raise _refused(
                    path, "E_PLAYBOOK_PERMS", "the file belongs to somebody else", "copy it, and read it first"
                )
            return file.read(SIZE_MAX + 1)
    except OSError as error:
        remedy = "`agent init` writes a playbook to begin with"
        raise _refused(path, "E_FILE", f"cannot be read: {error.strerror or error}", remedy) from None


def _refused(path: Path, code: str, message: str, remedy: str) -> PlaybookError:
    from agent.errors import PlaybookError, Problem

    problem = Problem(code, message, str(path), remedy=remedy)
    return PlaybookError(message, remedy, problems=(problem,))


def reader(folder: Path) -> Callable[[str], bytes]:
    """Return what reads files beside a playbook: those below ``folder``, and our own scripts."""
    from agent.core.probes.benchmark import OWN_SCRIPTS
    from agent.errors import AgentError

    root = folder.resolve()

    def read(name: str) -> bytes:
        if name in OWN_SCRIPTS:
            return (Path(__file__).parents[1] / "hosts" / "scripts" / OWN_SCRIPTS[name]).read_bytes()
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            raise AgentError("the file lies outside the playbook's folder", "copy it beside the playbook", "E_PATH")
        if not path.is_file():
            raise AgentError("there is no such file", "put it beside the playbook", "E_FILE")
        if path.stat().st_size > FILE_MAX:
            raise AgentError("the file is larger than 64 MiB", "put large data on the host", "E_FILE")
        return path.read_bytes()

    return read
