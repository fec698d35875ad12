"""The entry point: parse, dispatch, turn errors into one clear message and an exit code.

Command modules are imported here, so they import only argparse at their top; whatever is heavy is imported
inside their ``main``.
"""

from __future__ import annotations

import argparse
import importlib
import io
import keyword
import os
import sys

from agent import __version__

COMMANDS = (
    "init", "check", "plan", "trust", "run", "resume", "status", "watch", "show", "logs", "runs", "search", "replay",
    "audit", "report", "diff", "export", "import", "salvage", "note", "stop", "adopt", "revert", "doctor", "diagnose",
    "rules", "diagram", "schema",
)  # fmt: skip
"""In the order of use; a command whose module is not there yet is not offered."""


def parser() -> argparse.ArgumentParser:
    """Return the whole command line."""
    top = argparse.ArgumentParser(
        prog="agent",
        description="A campaign agent for people who tune and debug LLM inference servers on GPU hosts.",
        epilog="Exit codes: 0 goal met or nothing wrong, 1 goal not met, 2 usage or playbook, 3 held by a guard, "
        "4 host or transport, 5 budget used up, 6 not conclusive, 7 journal damaged or differs, 70 a defect of the "
        "program, 130 or 143 interrupted.",
    )
    top.add_argument("--version", action="version", version=f"agent {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        file = f"agent.cli.{name}_" if keyword.iskeyword(name) else f"agent.cli.{name}"
        try:
            module = importlib.import_module(file)
        except ModuleNotFoundError as error:
            if error.name != file:
                raise
            continue
        module.add(commands)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit code of the process."""
    words = sys.argv[1:] if argv is None else argv
    if not words:
        parser().print_help()
        return 2
    args = parser().parse_args(words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no ─ ends nothing
    from agent.errors import AgentError, Exit  # after parsing: `--help` must not pay for it

    try:
        code = int(args.main(args))
        sys.stdout.flush()  # here, where a full disk can still be told from a defect
        return code
    except AgentError as error:
        from .text import safe

        print(safe(str(error)), file=sys.stderr)
        return int(error.exit)
    except BrokenPipeError:
        # The reader of our output went away (`agent show … | head`): nothing is wrong.
        _let_go()
        return 0
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except OSError as error:
        if not error.filename and (why := _unsaid()):
            print(f"E_OUTPUT: what this command says cannot be written: {why}", file=sys.stderr)
            print("    see to the file or pipe that its output goes to, and ask again", file=sys.stderr)
            return int(Exit.USAGE)
        where = f"{error.filename}: " if error.filename else ""
        print(f"E_OS: {where}{error.strerror or error}", file=sys.stderr)
        print("    see whether that place exists and can be written", file=sys.stderr)
        return int(Exit.JOURNAL)
    except Exception:
        # A defect of ours is not "finished, goal not met", which is what Python's own exit code would say.
        import traceback

        traceback.print_exc()
        return int(Exit.DEFECT)


def _unsaid() -> str:
    """Return why standard output takes nothing more; '' when it does."""
    try:
        os.write(sys.stdout.fileno(), b"\n")  # what Python could not write it has thrown away: a flush says nothing
    except OSError as error:
        _let_go()
        return error.strerror or str(error)
    return ""


def _let_go() -> None:
    """Let what is still to be written go nowhere, or Python tries it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry() -> None:
    """Console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
