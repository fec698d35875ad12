"""``agent trust PLAYBOOK``: say everything that a playbook may do, and keep that it may be run.

A playbook is a program that somebody else may have written: it starts commands on hosts, ends servers and reads
secrets. It is trusted by the digest of its bytes and of every file that it brings, never by its name: a changed one
is asked about again. What lies in the ``playbooks`` folder of the agent's own source is trusted as the agent is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.core.plan import Host, Plan

SHIPPED = Path(__file__).resolve().parents[2] / "playbooks"
SHOWN = 8
"""Values of one swept setting that are listed."""


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("trust", help="say everything that a playbook may do, and keep that it may be run")
    command.add_argument("playbook", type=Path, nargs="?")
    command.add_argument("--run", default="", metavar="RUN", help="the playbook that this run recorded, to resume it")
    command.add_argument("--show", action="store_true", help="say it, and keep nothing")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.loading import load
    from agent.cli.text import safe
    from agent.errors import AgentError

    if bool(args.run) == (args.playbook is not None):
        raise AgentError("name a playbook, or a run by --run", "`agent trust PLAYBOOK`", "E_USAGE")
    if args.run:
        from agent.cli.folder import find
        from agent.cli.loading import standing
        from agent.journal.store import Journal

        found = find(args.runs, args.run)
        journal = Journal.open_reader(found.journal)
        plan, name = standing(journal)[0].plan, found.id
        digest = of_plan(plan)
        journal.close()
    else:
        text, plan, _ = load(args.playbook)
        digest, name = of_playbook(text, plan), str(args.playbook)
    for line in lines(plan):
        print(safe(line))
    print(f"\ndigest {digest}" + (": trusted" if is_trusted(digest) else ""))
    if args.show:
        return 0
    keep(digest, name)
    print(safe(f"trusted: {name} may be run as it is now; a change of it or of its files is asked about again"))
    return 0


def of_playbook(text: bytes, plan: Plan) -> str:
    """Return the digest that a playbook is trusted by: of its bytes and of the files that it brings."""
    from hashlib import sha256

    from agent.core.probes.benchmark import OWN_SCRIPTS
    from agent.core.values import digest

    files = {name: value for name, value in plan.files.items() if name not in OWN_SCRIPTS}
    return digest({"playbook": sha256(text).hexdigest(), "files": files})


def of_plan(plan: Plan) -> str:
    """Return the digest that a recorded plan is trusted by, for going on with its run."""
    from agent.core.values import digest

    return digest(plan.model_dump(mode="json"))


def store() -> Path:
    """Return the folder that has an empty-named file for each trusted digest."""
    from agent.cli.secret import state_folder

    return state_folder() / "trusted"


def is_trusted(digest: str) -> bool:
    """Say whether the digest was trusted on this account."""
    return (store() / digest).is_file()


def keep(digest: str, name: str) -> None:
    """Keep that a digest is trusted; ``name`` says for people which playbook it was."""
    folder = store()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / digest
    path.touch(mode=0o600)
    path.write_text(name + "\n")


def require(digest: str, plan: Plan, name: str, path: Path | None = None) -> None:
    """Return when the playbook may be run: trusted, shipped with the agent, or allowed now by somebody who was asked.

    Raises AgentError (exit 2) when nobody can be asked, or says no. Nothing has been contacted by then.
    """
    from agent.cli.text import safe
    from agent.errors import AgentError

    if is_trusted(digest) or (path is not None and path.resolve().parent == SHIPPED):
        return
    how = f"agent trust {path}" if path is not None else f"agent trust --run {name}"
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise AgentError(
            f"{name}: this playbook, as it is now, was never run or trusted on this account",
            f"read what it may do and allow it: `{how}`; nothing was contacted",
            "E_TRUST",
        )
    print(safe(f"{name} was never run or trusted on this account as it is now. What it may do:\n"))
    for line in lines(plan):
        print(safe(line))
    try:
        answer = input("\nRun it, now and whenever it is unchanged? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise AgentError(f"{name} is not trusted", f"nothing was contacted; `{how}` when it is", "E_TRUST")
    keep(digest, name)


def lines(plan: Plan) -> list[str]:
    """Return everything that a plan may do, for people: what it reaches, runs, ends, reads and leaves."""
    from agent.cli.plan import FINALLY, replaced

    server = plan.server
    out = [f"{plan.name} ({plan.aim})"]
    out += _section("reaches", (_reached(host) for host in plan.hosts.values()))
    out += _section("runs on the hosts", _runs(plan))
    out += _section("sets, one at a time", _varied(plan))
    out += _section("changes on the hosts, and puts back", _changed(plan))
    out += _section("runs on this machine", _here(plan))
    ends = (
        [f"{replaced(server.replaces.model_dump(mode='json'))}, after your yes to the list"] if server.replaces else []
    )
    out += _section("may end", [*ends, "what it started itself"])
    out += _section("uses secrets", (f"{name} ← {_source(source)}" for name, source in plan.secrets.items()))
    out += _section("reads files on the hosts", sorted(_paths(plan)))
    out += _section("brings files", (f"{name}  sha256 {sha[:16]}…" for name, sha in plan.files.items()))
    return [*out, f"at the end: {FINALLY[plan.finally_]}"]


def _section(title: str, rows: Iterable[str]) -> list[str]:
    found = list(rows)
    return [f"{title}:", *(f"  {row}" for row in found)] if found else []


def _reached(host: Host) -> str:
    return f"{host.name} = {host.address}" + (", as root, by sudo" if host.sudo else "")


def _runs(plan: Plan) -> list[str]:
    from shlex import join

    server = plan.server
    words = [f"{key}={value}" for key, value in server.env.items()]
    if (box := server.container) is not None:
        words = [box.engine, "run", *box.options, box.image, *words]
    flags = [f"--{key}" if value is True else f"--{key} {_value(value)}" for key, value in server.flags.items()]
    where = f" (in {server.cwd})" if server.cwd else ""
    out = [f"server, port {server.port}{where}: {' '.join([*words, join(server.command), *flags])}"]
    if plan.benchmark is not None:
        load = plan.benchmark
        out.append(f"benchmark: {join((*(load.command or (load.script,)), *load.args))}")
    if plan.accuracy is not None and plan.accuracy.command:
        out.append(f"accuracy: {join(plan.accuracy.command)}")
    if server.health_command:
        out.append(f"health: {join(server.health_command)}")
    if plan.profile.method != "off":
        out.append(f"profile: {plan.profile.method}, {plan.profile.seconds:g} s")
    out += [f"{state.name}: {join((state.script, *state.args))}" for state in plan.states if state.script]
    if plan.debug is not None:
        out += [f"check {name}: {join((check.script, *check.args))}" for name, check in plan.debug.checks.items()]
    return out


def _varied(plan: Plan) -> list[str]:
    search = plan.search
    out = [f"{key} = {_value(value)}" for key, value in {**search.flags, **search.env}.items()]
    if plan.debug is not None:
        deltas = (*plan.debug.hypotheses, *(plan.debug.bisect.points if plan.debug.bisect else ()))
        out += [f"{key} = {_value(value)}" for one in deltas for key, value in {**one.flags, **one.env}.items()]
    for stage in search.stages:
        for axis in stage.axes:
            shown = ", ".join(_value(value) for value in axis.values[:SHOWN])
            more = f" and {len(axis.values) - SHOWN} more" if len(axis.values) > SHOWN else ""
            out.append(f"{axis.key} = {shown}{more}")
    return out


def _changed(plan: Plan) -> list[str]:
    from agent.core.changes import place

    debug = plan.debug
    if debug is None:
        return []
    kept = {one.name: one.revert for one in debug.hypotheses}
    said = {"never": " (stays)", "unless-supported": " (stays if it is right)"}
    deltas = (*debug.hypotheses, *(debug.bisect.points if debug.bisect else ()))
    return [
        f"{one.name}: {place(change)}{said.get(kept.get(one.name, ''), '')}" for one in deltas for change in one.files
    ]


def _here(plan: Plan) -> list[str]:
    from shlex import join

    return [f"{name}: {join(source.command)}" for name, source in plan.secrets.items() if source.command]


def _source(source: Any) -> str:
    if source.env is not None:
        return f"environment variable {source.env}"
    return f"file {source.file}" if source.file is not None else f"output of {source.command[0]}"


def _value(value: Any) -> str:
    if value is None:
        return "unset"
    if hasattr(value, "expr"):
        return f"{{{value.expr}}}"
    return " ".join(str(one) for one in value) if isinstance(value, tuple) else str(value)


def _paths(plan: Plan) -> set[str]:
    guards = [
        *plan.assumptions.values(),
        *(guard for state in plan.states for guard in (*state.guards, *state.observe)),
    ]
    guards += plan.debug.guards() if plan.debug is not None else ()
    return {str(path) for guard in guards if (path := getattr(guard, "path", None))}
