"""``agent diagnose PATH…``: what captured output of servers, GPU tools and benchmarks means. Contacts nothing.

The guards of a campaign judge what somebody has at hand: a server's log, ``nvidia-smi``, ``ps``, ``server_info``, a
benchmark's result, an HTTP exchange. A folder with ``input.txt`` may bring beside it, in ``expect.json``, what the
output itself cannot tell: what was asked for, how many GPUs there should be, what was there before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from agent.core.diagnose import Diagnosis

HEAD = 64 * 1024
PIECE = 1 << 20
TEXT_MAX = 64 << 20
"""What is no log is read as a whole, up to this size."""


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser(
        "diagnose",
        help="what captured output means: logs, GPU tools, ps, server_info, benchmarks, traces; contacts nothing",
    )
    command.add_argument("paths", nargs="+", metavar="PATH", help="a file, a folder, or - for standard input")
    command.add_argument("--kind", default="", help="what it is, where it is not recognised")
    command.add_argument(
        "--context", type=Path, metavar="FILE", help="JSON of what the output cannot tell: requested, expected_tp, …"
    )
    command.add_argument("--json", action="store_true", help="one JSON document on standard output")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code: 0 PASS, 3 FAIL, 6 WAIT or UNKNOWN."""
    from agent.cli.diagnose_trace import diagnosed, is_trace
    from agent.core.diagnose import KINDS
    from agent.errors import AgentError

    if args.kind and args.kind not in KINDS:
        raise AgentError(f"{args.kind} is not a kind of input", f"known: {', '.join(KINDS)}", "E_KIND")
    given = _inputs(args.context) if args.context else {}
    found: list[tuple[str, Diagnosis]] = []
    traces: dict[str, Path] = {}
    for path in args.paths:
        several = Path(path).is_dir()
        for name, source, beside in _sources(path):
            if source is not None and not args.kind and is_trace(source):
                traces[name] = source  # those of several ranks belong together
            else:
                found.append((name, judged(source, {**beside, **given}, args.kind, strict=not several)))
    if traces:
        name = next(iter(traces)) if len(traces) == 1 else f"{len(traces)} traces"
        found.append((name, diagnosed(list(traces.values()))))
    if not found:
        raise AgentError("there is nothing to read", "name a file, or a folder with files in it", "E_FILE")
    if args.json:
        print(json.dumps(document(found)))
    else:
        from agent.cli.text import safe

        for name, diagnosis in found:
            for line in lines(name, diagnosis):
                print(safe(line))
    return exit_code(found)


def exit_code(found: list[tuple[str, Diagnosis]]) -> int:
    """Return the exit code for the worst of several."""
    from agent.errors import Exit

    results = {str(diagnosis.verdict.result) for _, diagnosis in found}
    if "FAIL" in results:
        return int(Exit.HELD)
    return int(Exit.INCONCLUSIVE if results & {"WAIT", "UNKNOWN"} else Exit.OK)


# ---------------------------------------------------------------- what is read


def _sources(path: str) -> Iterator[tuple[str, Path | None, dict[str, Any]]]:
    """Yield name, file (None: standard input) and context of everything that ``path`` stands for."""
    from agent.errors import AgentError

    if path == "-":
        yield "standard input", None, {}
        return
    place = Path(path)
    if place.is_file() or (place.exists() and not place.is_dir()):
        yield path, place, {}
        return
    if not place.is_dir():
        raise AgentError(f"{path} is not there", "name a file, a folder, or - for standard input", "E_FILE")
    cases = [place] if (place / "input.txt").is_file() else sorted(p.parent for p in place.glob("*/input.txt"))
    for case in cases:
        yield str(case), case / "input.txt", _inputs(case / "expect.json")
    if not cases:
        for file in sorted(p for p in place.iterdir() if p.is_file()):
            yield str(file), file, {}


def _inputs(path: Path) -> dict[str, Any]:
    """Return the inputs that a file of JSON brings; what else stands in it is not looked at."""
    from agent.core.diagnose import INPUTS
    from agent.errors import AgentError

    if not path.is_file():
        if path.name == "expect.json":
            return {}
        raise AgentError(f"{path} is not there", "name a file of JSON", "E_FILE")
    try:
        found = json.loads(path.read_bytes()[: 1 << 20])
    except (ValueError, RecursionError) as error:
        raise AgentError(f"{path} is no JSON: {error}", 'write {"requested": {"flag": value}}', "E_CONTEXT") from None
    inside = found.get("expect", found) if isinstance(found, dict) else {}
    return {key: inside[key] for key in INPUTS if key in inside} if isinstance(inside, dict) else {}


def judged(source: Path | None, context: dict[str, Any], kind: str = "", *, strict: bool = True) -> Diagnosis:
    """Read one input and judge it. A log is read piece by piece, anything else as a whole.

    A file that is no text is refused; where it is one of a folder (not ``strict``), nothing is known of it.
    """
    from agent.core.diagnose import BinaryError, not_read
    from agent.errors import AgentError

    try:
        if source is None:
            return _judged(sys.stdin.buffer, context, kind)
        with source.open("rb") as file:
            return _judged(file, context, kind)
    except BinaryError as error:
        if not strict:
            return not_read(f"{error.what}, no text")
        raise AgentError(f"{source or 'standard input'} is {error.what}", error.remedy, "E_BINARY") from None
    except OSError as error:
        what = f"{source or 'standard input'} cannot be read: {error.strerror or error}"
        raise AgentError(what, "name a file that you can read", "E_FILE") from None


def _judged(file: BinaryIO, context: dict[str, Any], kind: str) -> Diagnosis:
    from agent.core.diagnose import diagnose, diagnose_log, guess, refuse_binary

    head = first = file.read(HEAD)
    while head and not head.strip(b"\0"):  # a log that was truncated under its writer begins with a hole
        head = file.read(PIECE)
    refuse_binary(head or first)
    kind = kind or guess(head.decode("utf-8", "backslashreplace"))
    if kind in ("", "server_log"):

        def pieces() -> Iterator[bytes]:
            yield head
            while piece := file.read(PIECE):
                yield piece

        return diagnose_log(pieces(), context)
    rest = file.read(TEXT_MAX) if len(head) == HEAD else b""
    return diagnose(kind, (head + rest).decode("utf-8", "backslashreplace"), context)


# ---------------------------------------------------------------- what is printed


def document(found: list[tuple[str, Diagnosis]]) -> dict[str, Any]:
    """Return the result for programs: of one input as it is; of several the worst, with all of them under it."""
    if len(found) == 1:
        return {"path": found[0][0], **found[0][1].document()}
    order = ("PASS", "WAIT", "UNKNOWN", "FAIL")
    every = [{"path": name, **diagnosis.document()} for name, diagnosis in found]
    return {**max(every, key=lambda one: order.index(one["verdict"])), "inputs": every}


NAMES = {
    "gpu_csv": "GPUs",
    "ps": "processes",
    "server_log": "server log",
    "server_info": "server_info",
    "bench_json": "benchmark result (JSON)",
    "bench_text": "benchmark result (text)",
    "http": "HTTP exchange",
    "metrics": "metrics",
    "kernel_log": "kernel log",
    "trace": "trace of torch's profiler",
}


def lines(name: str, found: Diagnosis) -> list[str]:
    """Return the result for people: verdict, what was seen, the lines that show it, causes, remedy."""
    from agent.cli.text import one_line

    verdict = found.verdict
    engine = str(found.parsed.get("engine", ""))
    kind = NAMES.get(found.kind, found.kind)
    if found.kind == "server_log" and not engine and "engine" in found.parsed:
        kind = "nothing that is known here"  # it was read as a log because it is no other kind
    what = " ".join(word for word in (kind, engine, found.version) if word)
    out = [f"{verdict.result}{f' {verdict.finding}' if verdict.finding else ''}  {one_line(name, 80)} ({what})"]
    if verdict.also:
        out.append(f"  also    {', '.join(verdict.also)}")
    out.append(f"  saw     {one_line(verdict.saw, 300)}")
    if verdict.wanted:
        out.append(f"  wanted  {one_line(verdict.wanted)}")
    out += [f"  {f'line {line.number}':<7} {one_line(line.text, 200)}" for line in found.evidence]
    for place, cause in enumerate(found.causes if str(verdict.result) == "FAIL" else (), 1):
        follows = " (follows from it)" if cause.cascade else ""
        out.append(f"  {'causes' if place == 1 else '':<7} {place}. {cause.finding}{follows}: {one_line(cause.text)}")
    if verdict.remedy:
        out.append(f"  remedy  {one_line(verdict.remedy, 300)}")
    if found.kind == "trace" and found.parsed:
        from agent.cli.profile_view import lines as profile_lines

        out += ["", *(f"  {line}" for line in profile_lines({**found.parsed, "why": ""}))]
    return out
