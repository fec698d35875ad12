"""Trials in full: the server's own settings, changed by the search's base, changed by a point; and their names.

Derived values are computed here, once; whoever reads a trial finds plain flags and variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from .plan import Expr, FlagValue, Plan, Scalar, Stage, Trial
from .strategies import Point
from .values import rounded

Evaluate = Callable[[str, Mapping[str, Any]], Any]
"""Evaluates an expression's text with variables; raises ValueError when it cannot."""

EXPLORING = frozenset({"baseline", "base", "candidate"})
"""Roles whose scores choose. Scores of any other role never do."""


def resolve_trial(
    plan: Plan,
    id: str,  # noqa: A002 - the name of the field
    role: Literal["warm", "baseline", "base", "candidate", "confirm", "final", "hypothesis"],
    stage: str,
    point: Point,
    base_flags: Mapping[str, FlagValue],
    base_env: Mapping[str, str | None],
    evaluate: Evaluate,
) -> Trial:
    """Return the trial in full: the server's own settings, changed by the base, changed by the point.

    Raises what ``evaluate`` raises when a derived flag cannot be derived.
    """
    flags: dict[str, FlagValue] = {**plan.server.flags, **base_flags}
    env: dict[str, str | None] = {**plan.server.env, **base_env}
    load: dict[str, Scalar | None] = {}
    request: dict[str, Scalar] = {}
    for coordinate, value in point.items():
        target, key = coordinate.split(".", 1)
        if target == "flags":
            flags[key] = value
        elif target == "env":
            env[key] = None if value is None else _env_text(value)
        elif target == "benchmark" and (value is not None or key.startswith("-")):
            load[key] = value
        elif target == "request" and value is not None:
            request[key] = value
    given = {key: value for key, value in env.items() if value is not None}
    derived = _derive(flags, given, evaluate)
    return Trial(id=id, role=role, stage=stage, point=point, flags=derived, env=given, benchmark=load, request=request)


def is_skipped(stage: Stage, trial: Trial, evaluate: Evaluate) -> bool:
    """Say whether a stage's ``skip_when`` leaves this trial out. Raises what ``evaluate`` raises.

    It sees flags in full, derived ones included; a flag that is not given is not there.
    """
    if stage.skip_when is None:
        return False
    given = {key: value for key, value in trial.flags.items() if value is not None}
    load = {"benchmark": trial.benchmark, "request": trial.request}
    return evaluate(stage.skip_when, {"flags": given, "env": trial.env, **load}) is True


def _env_text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _derive(
    flags: Mapping[str, FlagValue], env: Mapping[str, str], evaluate: Evaluate
) -> dict[str, Scalar | tuple[Scalar, ...] | None]:
    """Replace each expression by its value. One may use another: whatever fails is tried again after the others."""
    values = {key: value for key, value in flags.items() if not isinstance(value, Expr)}
    pending = {key: value.expr for key, value in sorted(flags.items()) if isinstance(value, Expr)}
    while pending:
        known = {key: value for key, value in values.items() if value is not None}
        derived, error = {}, None
        for key, text in pending.items():
            try:
                derived[key] = _plain(evaluate(text, {"flags": known, "env": dict(env)}))
            except ValueError as problem:
                error = problem
        if not derived:
            raise error or ValueError("an expression has no value")
        values.update(derived)
        pending = {key: text for key, text in pending.items() if key not in derived}
    return {key: values[key] for key in flags}


def _plain(value: Any) -> Any:
    """Return a derived value as a flag holds it; derived floats are rounded like all others."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return rounded(value) if isinstance(value, float) else value


def together(trials: Sequence[Trial]) -> list[Trial]:
    """Put trials that one launch serves next to each other, in the order of the first of each."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.launch_digest(), []).append(trial)
    return [trial for group in groups.values() for trial in group]


def goes_on(plan: Plan, trial: Trial) -> bool:
    """Say whether more may be measured on this trial's launch: nothing is, once a profiler has run on it."""
    stages = plan.search.stages
    own = next((stage for stage in stages if stage.name == trial.stage), None)
    if own is not None:
        return own.loads()
    return trial.role in ("baseline", "base") and bool(stages) and stages[0].loads() and not stages[0].when


def wants_profile(plan: Plan, trial: Trial) -> bool:
    """Say whether a profile of this trial may be read by a later stage, or is wanted anyway."""
    if plan.profile.method == "off" or trial.role not in EXPLORING or trial.of or goes_on(plan, trial):
        return False
    if plan.profile.on == "all" or trial.role == "base":
        return True
    stages = plan.search.stages
    names = [stage.name for stage in stages]
    later = stages[names.index(trial.stage) + 1 :] if trial.stage in names else stages
    if trial.role == "baseline" and (plan.search.flags or plan.search.env):
        return False
    return any(stage.when for stage in later)


def _slug(text: str) -> str:
    """Return text as an element of a path: lower case, digits, dashes, and dots within numbers."""
    return re.sub(r"(?:[^a-z0-9.]|\.(?!\d)|(?<!\d)\.)+", "-", text.lower()).strip("-")


def point_names(stage: Stage, own: Sequence[Point]) -> list[str]:
    """Name a stage's points by their values where that is short and unambiguous, else by number."""
    prefix = _slug(stage.name) or "stage"
    if prefix.split("-")[0] == "confirm":
        prefix = f"stage-{prefix}"  # ids of the confirmation are read back
    values = ["-".join("unset" if value is None else str(value) for value in point.values()) for point in own]
    words = [_slug(value) for value in values]
    # Names of points that come one by one must not change with those that come after them.
    if stage.strategy == "optuna" or len(set(words)) < len(words) or not all(0 < len(word) <= 16 for word in words):
        words = [str(number) for number in range(1, len(own) + 1)]
    return [f"{prefix}-{word}" for word in words]
