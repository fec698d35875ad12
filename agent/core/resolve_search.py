"""The search of a playbook, worked out: sweeps become axes, trials become a stage, conditions and expressions compile.

The points themselves are listed by ``agent.core.strategies`` when they are needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from . import plan
from .check import Findings
from .expressions import Expression, ExpressionError
from .expressions import compile as compile_expression
from .fields import UNSET, Expr, Sweep
from .playbook import Playbook
from .playbook_search import Changes, Point, Search, Stage
from .trials import resolve_trial
from .wording import Path, did_you_mean

POINTS_MAX = 10_000
AXES_MAX = 32
EXPRESSIONS_MAX = 32
DRY_RUNS_MAX = 4000
Target = Literal["flags", "env", "benchmark", "request"]
TARGETS: tuple[Target, ...] = ("flags", "env", "benchmark", "request")
Check = Callable[[Iterable[str], Path], None]


def given(value: Any) -> Any:
    """Return a flag's value as a plan holds it."""
    if isinstance(value, Expr):
        return plan.Expr(expr=value.expr)
    return None if value == UNSET and isinstance(value, str) else value


def changes(part: Changes | Point) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return flags and environment with ``unset`` as None."""
    return {key: given(value) for key, value in part.flags.items()}, {k: given(v) for k, v in part.env.items()}


def resolve_search(playbook: Playbook, findings: Findings) -> plan.Search:
    """Return the search with every axis written out; what is wrong goes to ``findings``."""
    search = playbook.search
    if search is None or playbook.trials is not None:
        base: Path = ("trials",)
        if search is not None and search.stages:
            findings.add(
                "E_CONFLICT", base, "`trials` is a search with one stage", "write the trials as a stage", key=True
            )
        stages = [_listed("trials", None, playbook.trials, base, findings)] if playbook.trials else []
    else:
        stages = []
        for index, stage in enumerate(search.stages):
            path: Path = ("search", "stages", index)
            if stage.name in [other.name for other in search.stages[:index]]:
                findings.add("E_DUP_STEP", (*path, "name"), "two stages have this name", "give each its own")
            stages.append(_stage(stage, path, findings))
    flags, env = changes(search.base) if search else ({}, {})
    if search and search.confirm.launches == 1:
        remedy = "write 2 or more, or 0 for no confirmation"
        findings.add("E_RANGE", ("search", "confirm", "launches"), "one launch a side proves nothing", remedy)
    return plan.Search(
        flags=flags,
        env=env,
        stages=tuple(stage for stage in stages if stage is not None),
        confirm_launches=search.confirm.launches if search else 2,
        confirm_most=_most(search, findings) if search else None,
        warm=search.warm_launch if search else 0,
        reuse=search.reuse if search else "none",
        noise=plan.Noise(launches=search.noise.launches, repeats=search.noise.repeats)
        if search and search.noise
        else None,
    )


def _most(search: Search, findings: Findings) -> int | None:
    """Return up to how many pairs a confirmation may go on; None = no further than its first look."""
    confirm = search.confirm
    if confirm.most is not None and confirm.most < confirm.launches:
        where: Path = ("search", "confirm", "most")
        findings.add("E_RANGE", where, "less than `launches`", f"write {confirm.launches} or more")
    if confirm.most is not None and not confirm.launches:
        findings.add("E_CONFLICT", ("search", "confirm", "most"), "there is no confirmation", "leave it out", key=True)
    return confirm.most


def _stage(stage: Stage, path: Path, findings: Findings) -> plan.Stage | None:
    _condition(stage, path, findings)
    if stage.points or stage.strategy == "list":
        if any(getattr(stage, target) for target in TARGETS):
            findings.add(
                "E_CONFLICT", (*path, "points"), "a stage has points or sweeps", "leave one of them out", key=True
            )
        if stage.strategy not in (None, "list"):
            findings.add("E_CONFLICT", (*path, "strategy"), "points are gone through as a list", "write list")
        if not stage.points:
            findings.add(
                "E_MISSING", path, "the strategy list needs points", "write `points: [{flags: …}, …]`", found=""
            )
            return None
        if stage.link:
            findings.add("E_CONFLICT", (*path, "link"), "points are written out already", "leave it out", key=True)
        listed = _listed(stage.name, stage.when, stage.points, (*path, "points"), findings)
        return listed.model_copy(update={"skip_when": _skip(stage, path, findings)}) if listed else None
    axes = [
        _axis(target, key, value, (*path, target, key), findings)
        for target in TARGETS
        for key, value in getattr(stage, target).items()
    ]
    if not axes:
        findings.add("E_MISSING", path, "the stage tries nothing", "write `flags: {NAME: {sweep: [..]}}`", found="")
        return None
    if len(axes) > AXES_MAX:
        findings.add("E_SWEEP", path, f"more than {AXES_MAX} keys", "split the stage", found="")
        return None
    strategy = _strategy(stage, path, findings)
    if strategy is None or findings.has(path):
        return None
    size = math.prod(len(axis.values) for axis in axes)
    if strategy in ("random", "optuna"):
        if stage.sample is None:
            findings.add("E_MISSING", path, f"the strategy {strategy} needs a sample", "write `sample: 8`", found="")
    elif stage.sample is not None:
        findings.add("E_CONFLICT", (*path, "sample"), "only random and optuna take a sample", "leave it out", key=True)
    elif size > POINTS_MAX:
        findings.add("E_SWEEP", path, f"{size:,} points", f"at most {POINTS_MAX:,}: use `strategy: random`", found="")
    if strategy == "unimodal":
        _check_ordered(axes, path, findings)
    if findings.has(path):
        return None
    return plan.Stage(
        name=stage.name,
        when=stage.when,
        axes=tuple(axes),
        strategy=strategy,
        sample=stage.sample,
        link=_links(stage, axes, path, findings),
        skip_when=_skip(stage, path, findings),
    )


def _links(stage: Stage, axes: list[plan.Axis], path: Path, findings: Findings) -> tuple[tuple[str, ...], ...]:
    """Return which axes move together, by their coordinates."""
    known = {axis.key: axis for axis in axes}
    found, seen = [], set()
    for number, names in enumerate(stage.link):
        where = (*path, "link", number)
        for name in names:
            if name not in known:
                findings.add("E_REF", where, f"the stage sweeps no {name}", did_you_mean(name, known), found=name)
                return ()
            if name in seen:
                findings.add("E_CONFLICT", where, f"{name} is linked twice", "name it once", found=name)
            seen.add(name)
        if len({len(known[name].values) for name in names}) > 1:
            sizes = ", ".join(f"{name} has {len(known[name].values)}" for name in names)
            findings.add("E_SWEEP", where, "linked keys have as many values as each other", f"here {sizes}", found="")
        found.append(tuple(f"{known[name].target}.{name}" for name in names))
    return tuple(found)


def _skip(stage: Stage, path: Path, findings: Findings) -> str | None:
    if stage.skip_when is not None:
        where = (*path, "skip_when")
        expression = compiled(stage.skip_when, where, TARGETS, findings)
        if expression is not None and expression.kind not in ("bool", "dyn"):
            message = f"a condition is true or false, this is of type {expression.kind}"
            findings.add("E_EXPR", where, message, "compare something: flags['a'] > flags['b']")
    return stage.skip_when


def _axis(target: Target, key: str, value: Any, path: Path, findings: Findings) -> plan.Axis:
    if not isinstance(value, Sweep):
        return plan.Axis(target=target, key=key, values=(given(value),))
    values: list[Any] = list(value.sweep)
    is_range = bool(findings.document.written((*path, "sweep")))
    for index, item in enumerate(values):
        if target == "env" and item is not None and not isinstance(item, str):
            if not is_range:
                where = (*path, "sweep", index)
                written = findings.document.written(where)
                findings.add("E_TYPE", where, "a variable's value is a word", f'quote it: "{written}"')
            values[index] = str(item)
    return plan.Axis(target=target, key=key, values=tuple(values))


def _strategy(stage: Stage, path: Path, findings: Findings) -> Any:
    """Return the one strategy that the stage and its sweeps name."""
    named: list[tuple[Path, str]] = [((*path, "strategy"), stage.strategy)] if stage.strategy else []
    for part in TARGETS:
        for key, value in getattr(stage, part).items():
            if isinstance(value, Sweep) and value.strategy:
                named.append(((*path, part, key, "strategy"), value.strategy))
    for where, name in named:
        if name != named[0][1]:
            findings.add("E_CONFLICT", where, f"the stage is already `{named[0][1]}`", "one stage, one strategy")
    return named[0][1] if named else "grid"


def _check_ordered(axes: list[plan.Axis], path: Path, findings: Findings) -> None:
    if len(axes) != 1:
        findings.add("E_SWEEP", path, "unimodal searches one ordered knob", "give the stage one sweep", found="")
        return
    values = axes[0].values
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) < len(values) or any(low >= high for low, high in itertools.pairwise(numbers)):
        where = (*path, axes[0].target, axes[0].key)
        findings.add("E_SWEEP", where, "unimodal goes through rising numbers", "write 1..10, or use grid", found="")


def _listed(
    name: str, when: str | None, points: Iterable[Point], path: Path, findings: Findings
) -> plan.Stage | None:  # fmt: skip
    """Make a stage of points given one by one."""
    rows: list[dict[str, Any]] = []
    axes: dict[tuple[Target, str], list[Any]] = {}
    for index, point in enumerate(points):
        parts = {target: {key: given(value) for key, value in getattr(point, target).items()} for target in TARGETS}
        row = {f"{target}.{key}": value for target, part in parts.items() for key, value in part.items()}
        if not row:
            findings.add("E_MISSING", (*path, index), "the trial changes nothing", "write `{flags: {…}}`", found="")
        if row in rows:
            findings.add("E_CONFLICT", (*path, index), "the same trial stands here twice", "leave one out", found="")
        rows.append(row)
        for target, part in parts.items():
            for key, value in part.items():
                seen = axes.setdefault((target, key), [])
                if value not in seen:
                    seen.append(value)
    if not axes:
        return None
    made = tuple(plan.Axis(target=target, key=key, values=tuple(values)) for (target, key), values in axes.items())
    return plan.Stage(name=name, when=when, axes=made, strategy="list", points=tuple(rows))


# ---------------------------------------------------------------- expressions


def compiled(text: str, path: Path, allowed: tuple[str, ...], findings: Findings) -> Expression | None:
    """Compile an expression of the playbook; None, with a problem, when it cannot be used."""
    try:
        expression = compile_expression(text)
    except ExpressionError as error:
        place = f"column {error.column}" + (f" of line {error.line}" if error.line > 1 else "")
        findings.add("E_EXPR", path, f"not an expression, at its {place}: {error.message}", "see the manual on CEL")
        return None
    unknown = sorted(expression.names - set(allowed))
    if unknown:
        findings.add("E_UNDEFINED_VAR", path, f"no variable is called {unknown[0]}", did_you_mean(unknown[0], allowed))
        return None
    return expression


def _condition(stage: Stage, path: Path, findings: Findings) -> None:
    if stage.when is None:
        return
    expression = compiled(stage.when, (*path, "when"), ("profile", "best", "baseline"), findings)
    if expression is not None and expression.kind not in ("bool", "dyn"):
        remedy = "compare something: profile.share['x'] > 0.5"
        findings.add(
            "E_EXPR", (*path, "when"), f"a condition is true or false, this is of type {expression.kind}", remedy
        )


def check_expressions(playbook: Playbook, resolved: plan.Plan, findings: Findings) -> None:
    """Compile each derived flag and work it out once for the server, the base, and every value of every sweep."""
    sources: list[tuple[Path, Mapping[str, Any]]] = [(("server", "flags"), playbook.server.flags)]
    if playbook.search:
        sources.append((("search", "base", "flags"), playbook.search.base.flags))
    if sum(isinstance(value, Expr) for _, flags in sources for value in flags.values()) > EXPRESSIONS_MAX:
        findings.add("E_EXPR", sources[-1][0], f"more than {EXPRESSIONS_MAX} expressions", "write values out", found="")
        return
    good = True
    for path, flags in sources:
        needs: dict[str, frozenset[str]] = {}
        for key, value in flags.items():
            if isinstance(value, Expr):
                expression = compiled(value.expr, (*path, key, "expr"), ("flags", "env"), findings)
                good = good and expression is not None
                needs[key] = expression.references("flags") if expression else frozenset()
        for key in _in_cycles(needs):
            remedy = "begin from a flag that has a value"
            findings.add("E_VAR_CYCLE", (*path, key, "expr"), "the value needs itself", remedy)
            good = False
    if good:
        _dry_run(resolved, findings, sources)


def _in_cycles(needs: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the names that need themselves, directly or through others."""
    left = set(needs)
    while True:
        needed = {name for other in left for name in needs[other]}
        kept = {name for name in left if name in needed and needs[name] & left}
        if kept == left:
            return [name for name in needs if name in left]
        left = kept


def _evaluate(text: str, variables: Mapping[str, Any]) -> Any:
    return compile_expression(text).evaluate(variables)


def _dry_run(resolved: plan.Plan, findings: Findings, sources: list[tuple[Path, Mapping[str, Any]]]) -> None:
    search = resolved.search
    points: list[dict[str, Any]] = [{}]
    overlay: dict[str, Any] = {}
    for stage in search.stages:
        rows = stage.points or [{f"{axis.target}.{axis.key}": value} for axis in stage.axes for value in axis.values]
        points += [{**overlay, **row} for row in rows]
        overlay |= {f"{axis.target}.{axis.key}": axis.values[0] for axis in stage.axes}
    texts = sum(isinstance(value, Expr) for _, flags in sources for value in flags.values())
    if not texts:
        return
    # Every value is tried where that is cheap; the cost of one round grows with flags and with the square of texts.
    cost = (1 + texts * texts) * (1 + len(resolved.server.flags) // 50)
    points = points[: max(16, DRY_RUNS_MAX // cost)]
    rounds: list[tuple[dict[str, Any], Any, Any]] = [({}, {}, {})]
    rounds += [(point, search.flags, search.env) for point in points]
    for point, flags, env in rounds:
        try:
            resolve_trial(resolved, "check", "candidate", "", point, flags, env, _evaluate)
        except ValueError as error:
            where = _blame(sources if flags or point else sources[:1])
            at = ", ".join(
                f"{key.split('.', 1)[1]}={UNSET if value is None else value}" for key, value in point.items()
            )
            message = f"it has no value{f' for {at}' if at else ''}: {error}"
            findings.add("E_EXPR", where, message, "make it hold for every value that is tried")
            return


def _blame(sources: list[tuple[Path, Mapping[str, Any]]]) -> Path:
    """Return the place of the last derived flag: an error of one is found by trying, and names no place."""
    for path, flags in reversed(sources):
        for key, value in flags.items():
            if isinstance(value, Expr):
                return (*path, key, "expr")
    return ("search",)
