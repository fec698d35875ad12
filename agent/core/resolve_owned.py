"""What a playbook changes, wherever it can be written, and what none of it may change: what ``server`` says once.

Guards, probes and leases read port and GPUs from ``server``: a launch that has others is one that nobody watches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from . import plan
from .check import Findings
from .fields import UNSET, Expr, Sweep
from .playbook import Playbook
from .playbook_search import Add
from .servers import kind_of
from .wording import Path


class Changed(NamedTuple):
    """Flags and variables as they are written in one place."""

    path: Path
    flags: Mapping[str, Any]
    env: Mapping[str, Any]


def changed(playbook: Playbook) -> Iterator[Changed]:
    """Yield every place of a playbook that changes the server's own flags or variables."""
    search = playbook.search
    if search is not None:
        yield Changed(("search", "base"), search.base.flags, search.base.env)
        for number, stage in enumerate(search.stages):
            path: Path = ("search", "stages", number)
            yield Changed(path, stage.flags, stage.env)
            yield from (Changed((*path, "points", n), one.flags, one.env) for n, one in enumerate(stage.points))
    for number, point in enumerate(playbook.trials or ()):
        yield Changed(("trials", number), point.flags, point.env)
    for name, own in playbook.hypotheses.items():
        yield Changed(("hypotheses", name, "change"), own.change.flags, own.change.env)
    for key in ("changes", "any_of"):
        for number, change in enumerate(getattr(playbook.bisect, key, None) or ()):
            yield Changed(("bisect", key, number), change.flags, change.env)
    for name, cure in playbook.on_fail.items():
        yield Changed(("on_fail", name), cure.flags, {})


def _values(value: Any, path: Path, findings: Findings) -> Iterator[tuple[Path, Any]]:
    """Yield each value that is tried, with its place; a range stands in one place."""
    if not isinstance(value, Sweep):
        yield path, None if value == UNSET and isinstance(value, str) else value
        return
    for number, item in enumerate(value.sweep):
        where = (*path, "sweep", number)
        yield where if findings.document.node(where) is not None else where[:-1], item


def _tried(playbook: Playbook, findings: Findings) -> Iterator[tuple[Path, str, Any]]:
    """Yield each value of each flag that is changed anywhere: its place, the flag, the value; None = not given."""
    for path, flags, _ in changed(playbook):
        for name, value in flags.items():
            yield from ((where, name, one) for where, one in _values(value, (*path, "flags", name), findings))
    over = playbook.bisect.flag if playbook.bisect is not None else None
    for number, value in enumerate(over.values if over is not None else ()):
        where: Path = ("bisect", "flag", "values", number)
        yield where, over.name if over is not None else "", None if value == UNSET else value


def check_owned(playbook: Playbook, server: plan.Server, findings: Findings) -> None:
    """Refuse a port that is not the server's, or more GPUs than it has, wherever a flag is changed."""
    kind = kind_of(server.kind)
    canonical = getattr(kind, "canonical", lambda name: name)
    port, parallel = getattr(kind, "port_flag", "port"), getattr(kind, "parallel_flag", None)
    # A server of no known kind may call anything `port`; it is the port where its own flag says the same number.
    ours = server.kind != "command" or server.flags.get(port) == server.port
    written: list[tuple[Path, str, Any]] = [
        (("server", "flags", name), name, value)
        for name, value in playbook.server.flags.items()
        if canonical(name) == parallel
    ]
    for path, name, value in [*written, *_tried(playbook, findings)]:
        own = canonical(name)
        if own == port and ours and (value != server.port or isinstance(value, bool)):
            message = f"`server.port` says {server.port}, and this port is the one that is watched"
            findings.add("E_CONFLICT", path, message, "leave the flag out", found=_shown(value))
        elif own == parallel and server.gpus and type(value) is int and value > server.gpus:
            message = f"the server has {server.gpus} GPUs: no more are watched and held"
            remedy = f"write at most {server.gpus}, or `server: {{gpus: {value}}}`"
            findings.add("E_CONFLICT", path, message, remedy)


def _shown(value: Any) -> str:
    """Return a value of any form as a word."""
    if isinstance(value, Expr):
        return value.expr
    return f"add: {value.add}" if isinstance(value, Add) else UNSET if value is None else str(value)
