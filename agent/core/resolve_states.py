"""The states of a playbook, worked out: the standard ladder with its changes, or a graph of the playbook's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from . import plan
from .check import Findings, explain
from .guards import Guard
from .ladder import SKIP, flaws, guard_classes, insert, read_guard, standard
from .playbook import Playbook, Script, State
from .resolve_search import compiled
from .wording import Path, did_you_mean

GUARD_NAMES = ("flags", "env", "server", "metrics", "health", "workers", "profile", "now")
"""What the expression of a guard may read."""

Digest = Callable[[str, Path], str]
"""Reads a file of the playbook (its name, the place that names it) and returns its SHA-256; '' when it cannot."""


def resolve_guard(spec: Any, path: Path, findings: Findings) -> Guard | None:
    """Return the guard that a playbook names or spells out; None, with a problem, when there is no such guard."""
    known = guard_classes()
    if isinstance(spec, str):
        spec, name_path = {"guard": spec}, path
    elif isinstance(spec, dict):
        name_path = (*path, "guard")
    else:
        remedy = "write a guard's name, or {guard: NAME, …}"
        findings.add("E_TYPE", path, "a guard was wanted", remedy)
        return None
    name = spec.get("guard")
    if not isinstance(name, str):
        findings.add("E_MISSING", path, "the guard's name is missing", "write `guard: NAME`", found="")
        return None
    if name not in known:
        findings.add("E_GUARD", name_path, "no such guard", did_you_mean(name, known))
        return None
    pattern = spec.get("pattern")
    if isinstance(pattern, str) and (message := pattern_flaw(pattern)):
        remedy = "patterns are RE2: no look-around and no back references"
        findings.add("E_REGEX_SYNTAX", (*path, "pattern"), f"not a pattern: {message}", remedy)
    if findings.has(path):
        return None
    try:
        guard = read_guard(spec)
    except ValidationError as error:
        explain(error, spec, known[name], findings, path)
        return None
    _check_guard(guard, path, findings)
    return guard


def check_bounds(above: float | None, below: float | None, path: Path, findings: Findings) -> bool:
    """Refuse two bounds with nothing between them; say whether a value can keep both."""
    if above is None or below is None or above < below:
        return True
    message = f"no number is above {above:g} and below {below:g}"
    findings.add("E_CONFLICT", (*path, "below"), message, "write a `below` that is more than `above`")
    return False


def _check_guard(guard: Guard, path: Path, findings: Findings) -> None:
    """Compile the expression that a guard carries, and compare its bounds."""
    check_bounds(getattr(guard, "above", None), getattr(guard, "below", None), path, findings)
    inner = getattr(guard, "of", None)
    if isinstance(inner, str) and (inner == guard.guard or inner not in guard_classes()):
        findings.add("E_GUARD", (*path, "of"), "no such guard", did_you_mean(inner, guard_classes()))
    elif isinstance(inner, str):
        try:
            read_guard({"guard": inner})
        except ValidationError:
            findings.add("E_GUARD", (*path, "of"), "this guard needs options", "name one that has defaults for all")
    text = getattr(guard, "expr", None)
    if isinstance(text, str):
        expression = compiled(text, (*path, "expr"), GUARD_NAMES, findings)
        if expression is not None and expression.kind not in ("bool", "dyn"):
            message = f"a condition is true or false, this is of type {expression.kind}"
            findings.add("E_EXPR", (*path, "expr"), message, "compare something: metrics.output_tok_s > 50.0")


def pattern_flaw(pattern: str) -> str:
    """Return what is wrong with an RE2 pattern, or ''."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0] if error.args else "syntax"
        return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return ""


class _Fields(NamedTuple):
    """What a playbook says of one state, resolved; only keys that it gives."""

    update: dict[str, Any]
    on: dict[str, str]


def _fields(name: str, state: State, digest: Digest, findings: Findings) -> _Fields:
    path: Path = ("states", name)
    update: dict[str, Any] = {}
    if state.do is not None:
        update |= _do(state, path, digest, findings)
    if state.guards is not None:
        made = [resolve_guard(spec, (*path, "guards", index), findings) for index, spec in enumerate(state.guards)]
        update["guards"] = tuple(guard for guard in made if guard is not None)
    if state.observe is not None:
        made = [resolve_guard(spec, (*path, "observe", index), findings) for index, spec in enumerate(state.observe)]
        update["observe"] = tuple(guard for guard in made if guard is not None)
    if state.timeout is not None:
        update["timeout_s"] = state.timeout
    if state.attempts is not None:
        update["attempts"] = state.attempts
    return _Fields(update, {outcome: "decide" if target == SKIP else target for outcome, target in state.on.items()})


def _do(state: State, path: Path, digest: Digest, findings: Findings) -> dict[str, Any]:
    scripts = [(index, item) for index, item in enumerate(state.do or ()) if isinstance(item, Script)]
    words = tuple("script" if isinstance(item, Script) else item for item in state.do or ())
    if len(set(words)) < len(words):
        remedy = "make a second state with `after:`" if len(scripts) > 1 else "leave one out"
        findings.add("E_CONFLICT", (*path, "do"), "a state does each thing once", remedy, found="")
    found: dict[str, Any] = {"do": words, "script": None, "sha256": "", "args": ()}
    for index, script in scripts[:1]:
        args = list(script.args)
        for key, value in (script.__pydantic_extra__ or {}).items():
            if value is not False:
                args += [f"--{key}"] if value is True else [f"--{key}", str(value)]
        sha256 = digest(script.script, (*path, "do", index, "script"))
        found |= {"script": script.script, "sha256": sha256, "args": tuple(args)}
    return found


def resolve_states(
    playbook: Playbook, server: plan.Server, search: plan.Search, digest: Digest, findings: Findings
) -> tuple[plan.State, ...]:
    """Return the table of this playbook; what is wrong goes to ``findings``."""
    parts = {name: _fields(name, state, digest, findings) for name, state in playbook.states.items()}
    names = {state.name for state in standard(server, search, debug=playbook.aim == "debug")}
    own = any(name not in names and state.after is None for name, state in playbook.states.items())
    states = (
        _own_graph(playbook, parts, findings) if own else _changed_ladder(playbook, parts, server, search, findings)
    )
    if findings.has(("states",)):
        return states
    for flaw in flaws(states):
        path: Path = ("states", flaw.state, "on", flaw.outcome) if flaw.outcome else ("states", flaw.state)
        if findings.document.node(path) is None:
            path = ("states", flaw.state) if flaw.state in playbook.states else ("states",)
        message = flaw.message if path[-1:] != ("states",) else f"{flaw.state}: {flaw.message}"
        findings.add("E_GRAPH", path, message, flaw.remedy, found=flaw.found, key=not flaw.outcome)
    return states


def _own_graph(playbook: Playbook, parts: Mapping[str, _Fields], findings: Findings) -> tuple[plan.State, ...]:
    states = []
    for name, state in playbook.states.items():
        path: Path = ("states", name)
        if state.after is not None:
            remedy = "lead another state's outcome to it with `on`"
            findings.add("E_GRAPH", (*path, "after"), "a graph of one's own has no ladder to stand in", remedy)
        for key, value in (("do", state.do), ("on", state.on)):
            if not value:
                remedy = (
                    f"write `after: STATE` to add `{name}` to the ladder, or spell out `do` and `on` of every state"
                )
                findings.add("E_GRAPH", path, f"`{key}` is missing", remedy, key=True)
        update, on = parts[name]
        unclear = (
            {}
            if {"decide", "finally"} & set(update.get("do", ()))
            else {"fail": "hold", "unknown": "hold", "timeout": "hold"}
        )
        states.append(plan.State(**{"name": name, "timeout_s": 600.0, **update, "on": {**unclear, **on}}))
    return tuple(states)


def _changed_ladder(
    playbook: Playbook, parts: Mapping[str, _Fields], server: plan.Server, search: plan.Search, findings: Findings
) -> tuple[plan.State, ...]:
    states = list(standard(server, search, debug=playbook.aim == "debug"))
    for index, state in enumerate(states):
        if state.name in parts:
            update, on = parts[state.name]
            states[index] = state.model_copy(update={**update, "on": {**state.on, **on}})
            if state.guards and playbook.states[state.name].guards == ():
                remedy = "name what must hold, at least " + state.guards[0].guard
                findings.add(
                    "E_GUARD", ("states", state.name, "guards"), "nothing would be verified", remedy, found="[]"
                )
            if playbook.states[state.name].after is not None:
                path: Path = ("states", state.name, "after")
                findings.add("E_GRAPH", path, "a state of the ladder stays where it is", "leave `after` out")
    last: dict[str, str] = {}
    known = {state.name for state in states}
    waiting = [name for name in playbook.states if name not in known]
    while waiting:
        placed = [name for name in waiting if playbook.states[name].after in {state.name for state in states}]
        for name in placed:
            states = _place(name, playbook.states[name], parts[name], states, last, findings)
        waiting = [name for name in waiting if name not in placed]
        if not placed:
            names = {state.name for state in states} | set(waiting)
            for name in waiting:
                after = str(playbook.states[name].after)
                remedy = (
                    did_you_mean(after, names - {name}) if after not in waiting else "begin from a state of the ladder"
                )
                findings.add("E_GRAPH", ("states", name, "after"), "no such state stands before it", remedy)
            break
    return tuple(states)


def _place(
    name: str, state: State, part: _Fields, states: list[plan.State], last: dict[str, str], findings: Findings
) -> list[plan.State]:
    """Put a new state behind ``after``, or behind what was put there before it."""
    anchor = str(state.after)
    after = last.get(anchor, anchor)
    if not part.update.get("do"):
        remedy = "write `do: [{script: FILE}]`, or `do: [probe]` for guards alone"
        findings.add("E_GRAPH", ("states", name), "`do` is missing", remedy, key=True)
        return states
    before = next(old for old in states if old.name == after)
    if "pass" not in before.on:
        remedy = "a state can stand after one that is left by `pass`"
        findings.add("E_GRAPH", ("states", name, "after"), f"`{after}` has no outcome `pass`", remedy)
        return states
    last[anchor] = name
    new = plan.State(**{"name": name, "timeout_s": 600.0, **part.update, "on": part.on})
    return list(insert(states, new, after))
