"""The standard ladder as data: its states, edges, guards and limits, and what makes any graph of states sound.

What a playbook changes about it is applied by ``agent.core.resolve``; the table that runs is ``agent.core.machine``.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import TypeAdapter

from .guards import AnyGuard, Guard
from .plan import Search, Server, State

ENDS = ("done", "failed", "hold", "stopped")
"""Where a campaign rests; ``stopped`` is reached by an operator's order only, never named in ``on``."""
TARGETS = ("done", "failed", "hold")
SKIP = "skip-trial"
"""The word for ``decide`` in ``on``: this trial is over, the next one is chosen."""
DECIDING = ("decide", "finally")
"""Words of ``do`` that bound a cycle: each pass uses up trials, launches or time that the search and budget limit."""

_M = 60.0
_LOST = {"unknown": "hold", "timeout": "hold"}
_SKIPPED = {"fail": "decide", "unknown": "decide", "timeout": "decide"}
_AGAIN = {"lost": "kill"}

LADDER: tuple[tuple[str, tuple[str, ...], float, dict[str, str]], ...] = (
    ("probe", ("probe",), 1 * _M, {"pass": "kill", "fail": "hold", **_LOST}),
    ("kill", ("kill",), 3 * _M, {"pass": "verify-clean", "fail": "hold", **_LOST}),
    ("verify-clean", ("clean",), 3 * _M, {"pass": "launch", "settled": "done", "fail": "hold", **_LOST}),
    ("launch", ("launch",), 1 * _M, {"pass": "health-wait", "fail": "decide", **_LOST, **_AGAIN}),
    ("health-wait", ("watch", "inspect"), 30 * _M, {"pass": "benchmark", "settled": "done", **_SKIPPED, **_AGAIN}),
    ("benchmark", ("benchmark",), 30 * _M, {"pass": "profile", **_SKIPPED, **_AGAIN}),
    ("profile", ("profile",), 15 * _M, {"pass": "decide", **_SKIPPED, "unknown": "hold"}),
    ("decide", ("decide",), 1 * _M, {"next": "kill", "same-launch": "benchmark", "finish": "finally"}),
    ("finally", ("finally",), 1 * _M, {"leave": "done", "launch": "kill", "stop": "kill"}),
)
"""Name, what is done, seconds it may take, outcome → next. ``settled``: what is to be left at the end is in place.
``lost``: the server went by no doing of its own (a reboot, a start that never came about), and is launched again.

Beside these edges each state has ``stop`` → ``finally``, by the operator's order.
"""

NAMES = tuple(row[0] for row in LADDER)

_TESTED = {"fail": "test", "unknown": "test", "timeout": "test"}
DEBUG_LADDER: tuple[tuple[str, tuple[str, ...], float, dict[str, str]], ...] = (
    ("probe", ("probe", "survey"), 3 * _M, {"pass": "kill", "fail": "hold", **_LOST}),
    ("kill", ("kill",), 3 * _M, {"pass": "verify-clean", "fail": "hold", **_LOST}),
    ("verify-clean", ("clean",), 3 * _M, {"pass": "change", "settled": "change", "fail": "hold", **_LOST}),
    ("change", ("change",), 30 * _M, {"pass": "launch", "settled": "done", "fail": "decide", **_LOST}),
    ("launch", ("launch",), 1 * _M, {"pass": "health-wait", "fail": "test", **_LOST, **_AGAIN}),
    ("health-wait", ("watch", "inspect"), 30 * _M, {"pass": "benchmark", "settled": "done", **_TESTED, **_AGAIN}),
    ("benchmark", ("benchmark",), 30 * _M, {"pass": "test", **_TESTED, **_AGAIN}),
    ("test", ("test",), 30 * _M, {"pass": "decide", **_SKIPPED}),
    ("decide", ("decide",), 1 * _M, {"next": "kill", "same-launch": "test", "finish": "finally"}),
    ("finally", ("finally",), 1 * _M, {"leave": "done", "launch": "kill", "stop": "kill"}),
)
"""The ladder of a debug campaign: files are changed while nothing runs, and what a launch shows is gathered and tested
whether it came up or not. The host is put back before the end (``change`` is left by ``settled``)."""


@lru_cache(maxsize=1)
def guard_classes() -> Mapping[str, type[Guard]]:
    """Return every guard of the union by its name."""
    union = typing.get_args(AnyGuard)[0]
    members = typing.get_args(union) or (union,)
    found = {}
    for member in members:
        (name,) = typing.get_args(member.model_fields["guard"].annotation)
        found[name] = member
    return found


@lru_cache(maxsize=1)
def guard_adapter() -> TypeAdapter[Any]:
    """Return the reader of guards."""
    return TypeAdapter(AnyGuard)


def read_guard(spec: Mapping[str, Any]) -> Guard:
    """Read ``{guard: NAME, …}`` strictly; raise pydantic's ValidationError."""
    guard: Guard = guard_adapter().validate_json(json.dumps(spec), strict=True)
    return guard


def wanted_guards(server: Server, search: Search) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the standard guards of each state for such a server, as a playbook would write them."""
    gpu, many = server.gpus > 0, server.gpus > 1
    keys = {
        *server.env,
        *search.env,
        *(axis.key for stage in search.stages for axis in stage.axes if axis.target == "env"),
    }
    nccl = any(key.startswith("NCCL_") for key in keys)
    clean = ["gpus_clean"] if gpu else []
    up = ["alive", "progressing", "ready", "server_is_ours"]
    # Of a server of no known kind nothing can be read back: a check that could only say UNKNOWN is no check.
    up += ["effective_config", "answers"] if server.kind != "command" else []
    up += ["workers", "gpus_balanced"] if many else []
    up += ["env_applied"] if nccl else []
    rows: dict[str, list[dict[str, Any]]] = {
        "probe": [
            *([{"guard": "gpu_count", "is": server.gpus, "or_more": True}] if gpu else []),
            *([{"guard": "image_ready"}] if server.container is not None else []),
        ],
        "verify-clean": [{"guard": name} for name in (*clean, "no_process", "port_free")],
        "launch": [{"guard": "alive"}],
        "health-wait": [{"guard": name} for name in up],
        "benchmark": [
            *({"guard": name} for name in ("bench_valid", "drafting", "accuracy")),
            *([{"guard": "gpus_steady", "blind_ok": True}] if gpu else []),
        ],
    }
    return {state: tuple(specs) for state, specs in rows.items()}


def _observed(
    name: str, specs: Sequence[dict[str, Any]]
) -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    """Split the guards of a state of a debug campaign: those that gate, and those that may be the fault itself."""
    fault = {"effective_config", "answers", "accuracy", "env_applied", "gpus_balanced", "drafting"}
    return (
        tuple(spec for spec in specs if spec["guard"] not in fault),
        tuple(spec for spec in specs if spec["guard"] in fault),
    )


def standard(server: Server, search: Search | None = None, *, debug: bool = False) -> tuple[State, ...]:
    """Return the ladder for this server, every default written out."""
    wanted = wanted_guards(server, search or Search())
    states = []
    for name, do, timeout_s, on in DEBUG_LADDER if debug else LADDER:
        gating, observed = _observed(name, wanted.get(name, ())) if debug else (wanted.get(name, ()), ())
        guards, observe = (tuple(read_guard(spec) for spec in specs) for specs in (gating, observed))
        states.append(State(name=name, do=do, guards=guards, observe=observe, on=dict(on), timeout_s=timeout_s))
    return tuple(states)


# ---------------------------------------------------------------- graphs


@dataclass(frozen=True)
class Flaw:
    """What is wrong with a graph, and at which state and outcome ('' = the state as a whole)."""

    state: str
    outcome: str
    message: str
    remedy: str
    found: str = ""


STARTING = {"launch", "benchmark", "profile", "script", "change", "test"}
"""Words of ``do`` that may leave something on a host."""


def insert(states: Sequence[State], new: State, after: str) -> tuple[State, ...]:
    """Return the states with ``new`` put where ``after`` led by ``pass``. KeyError when ``after`` has no such edge."""
    names = [state.name for state in states]
    index = names.index(after)
    before = states[index]
    target = before.on["pass"]
    launched = _AGAIN if {"kill", "launch"} & set(names[: index + 1]) == {"kill", "launch"} else {}
    on = (
        {"pass": target, **_SKIPPED, **launched, **new.on}
        if "decide" in names
        else {"pass": target, "fail": "hold", **_LOST, **new.on}
    )
    placed = new.model_copy(update={"on": on})
    turned = before.model_copy(update={"on": {**before.on, "pass": new.name}})
    return (*states[:index], turned, placed, *states[index + 1 :])


def flaws(states: Sequence[State]) -> list[Flaw]:
    """Return everything that makes the graph unsound: unknown targets, dead states, no way out, unbounded cycles."""
    edges = {state.name: set(state.on.values()) for state in states}
    found = list(_bad_edges(states, edges.keys()))
    if found or not states:
        return found
    stop = {"finally"} & edges.keys()
    reachable = _closure([states[0].name], {name: edges[name] | stop for name in edges})
    back: dict[str, set[str]] = {name: set() for name in (*edges, *ENDS)}
    for name, targets in edges.items():
        for target in targets:
            back[target].add(name)
    leaving = _closure(ENDS, back)
    for state in states:
        if state.name not in reachable:
            remedy = f"lead an outcome of another state to it, or write `after:`; `{states[0].name}` is the first"
            found.append(Flaw(state.name, "", "no state leads here", remedy))
        elif state.name not in leaving:
            found.append(Flaw(state.name, "", "there is no way out to done, failed or hold", "lead an outcome there"))
    started = next((state.name for state in states if STARTING & set(state.do)), "")
    if started and not stop:
        remedy = "write `finally: {do: [finally], on: {launch: STATE, stop: STATE, leave: done}}` and states that kill"
        found.append(Flaw(started, "", "something is started, and no state `finally` ends it on `agent stop`", remedy))
    cycle = _free_cycle(states)
    if cycle:
        path = " → ".join((*cycle, cycle[0]))
        remedy = "lead it through `decide` (skip-trial), or to hold; use `attempts` to repeat one state"
        found.append(Flaw(cycle[0], "", "a cycle without a bound", remedy, path))
    return found


def _bad_edges(states: Sequence[State], names: Iterable[str]) -> Iterable[Flaw]:
    known = set(names)
    for state in states:
        if state.name in (*ENDS, SKIP):
            yield Flaw(state.name, "", "the name has a meaning of its own", "choose another name")
        for outcome, target in state.on.items():
            if target not in known and target not in TARGETS:
                remedy = "known: " + ", ".join((*sorted(known), *TARGETS, SKIP))
                yield Flaw(state.name, outcome, "no such state", remedy, target)
        if not state.on:
            yield Flaw(state.name, "", "there is no way out", "write `on: {pass: …}`")


def _closure(start: Iterable[str], edges: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = list(start)
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(edges.get(name, ()))
    return seen


def _free_cycle(states: Sequence[State]) -> tuple[str, ...]:
    """Return a cycle that passes no deciding state, or ()."""
    free = {state.name: state for state in states if not set(DECIDING) & set(state.do)}
    colour: dict[str, Literal["open", "closed"]] = {}

    def walk(name: str, path: tuple[str, ...]) -> tuple[str, ...]:
        if colour.get(name) == "open":
            return path[path.index(name) :]
        if name not in free or name in colour:
            return ()
        colour[name] = "open"
        for outcome, target in free[name].on.items():
            if outcome == "lost":
                continue  # the agent itself bounds how often a launch is made again
            if found := walk(target, (*path, name)):
                return found
        colour[name] = "closed"
        return ()

    for name in free:
        if found := walk(name, ()):
            return found
    return ()
