"""What the rules say of a playbook: each hit once, at the place in the file that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.errors import PlaybookError, Problem

if TYPE_CHECKING:
    from agent.core.plan import Plan, Trial
    from agent.core.proof import Caution
    from agent.core.servers.lint import Hint
    from agent.core.wording import Path
    from agent.core.yaml import Document


@dataclass(frozen=True)
class Hit:
    """A rule that applies, and where."""

    level: str
    problem: Problem


def hits(plan: Plan, text: bytes, file: str) -> list[Hit]:
    """Return what applies to the baseline and to every trial known beforehand, errors first.

    What only some trials have is said once, with the first of them; what the playbook allows is left out.
    """
    from agent.core.servers.lint import every_rule, is_allowed, lint, version_of
    from agent.core.yaml import compose

    document = compose(text, file)
    found: dict[str, Hit] = {}
    trials = known_trials(plan)
    for trial in trials:
        for hint in lint(plan.server, trial, plan.benchmark.words if plan.benchmark else (), version_of(plan)):
            if hint.id in found or is_allowed(plan, hint):
                continue
            found[hint.id] = Hit(hint.level, _problem(document, hint, trial, of_all=trial.role == "baseline"))
    for warning in cost_warnings(plan):
        path = tuple(warning.field.split("."))
        line, column = document.key_at(next((path[:n] for n in (2, 1) if _there(document, path[:n])), ()))
        problem = Problem(warning.code, f"warning: {warning.message}", file, line, column, warning.field)
        found[warning.code] = Hit("warning", replace(problem, remedy=warning.remedy))
    for name in plan.allow:
        if name not in {rule.id for rule in every_rule()}:
            problem = Problem("E_ALLOW", f"there is no rule {name}", file, remedy="`agent rules` lists them")
            found[f"allow {name}"] = Hit("error", problem)
    order = ("error", "warning", "note")
    return sorted(found.values(), key=lambda hit: (order.index(hit.level), hit.problem.line, hit.problem.code))


def _there(document: Document, path: Path) -> bool:
    """Say whether a playbook writes this key."""
    data = document.data
    for step in path:
        if not isinstance(data, dict) or step not in data:
            return False
        data = data[step]
    return True


def cost_warnings(plan: Plan) -> tuple[Caution, ...]:
    """Return what the forecast warns of; nothing where there is no forecast."""
    from agent.core.campaign.choices import evaluate
    from agent.core.forecast import forecast

    try:
        return forecast(plan, evaluate).warnings
    except (PlaybookError, ValueError):
        return ()


def known_trials(plan: Plan) -> list[Trial]:
    """Return the baseline and the trials that a run would launch whatever it measures; at least the baseline."""
    from agent.core.campaign.choices import evaluate
    from agent.core.forecast import forecast
    from agent.core.trials import resolve_trial

    try:
        found = list(forecast(plan, evaluate).trials)
    except (PlaybookError, ValueError):
        found = []
    if not any(trial.role == "baseline" for trial in found):
        found.insert(0, resolve_trial(plan, "baseline", "baseline", "", {}, {}, {}, evaluate))
    return [trial for place, trial in enumerate(found) if trial.identity() not in
            {other.identity() for other in found[:place]}]  # fmt: skip


def _problem(document: Document, hint: Hint, trial: Trial, *, of_all: bool) -> Problem:
    path = next((path for at in hint.at for path in _paths(document, at)), ("server",))
    line, column = document.key_at(path)
    where = ".".join(str(step) if isinstance(step, str) else f"[{step}]" for step in path).replace(".[", "[")
    who = "" if of_all else f" (trial {trial.id})"
    problem = Problem(hint.id, f"{hint.level}: {hint.happens}{who}", document.file, line, column, where)
    return replace(problem, remedy=f"{hint.remedy}; `agent rules {hint.id}` says more")


def _paths(document: Document, at: str) -> Iterator[Path]:
    """Yield the places where a flag or a variable may be written, the most particular first."""
    target, _, name = at.partition(".")
    data = document.data if isinstance(document.data, dict) else {}
    search = data.get("search")
    search = search if isinstance(search, dict) else {}
    stages = search.get("stages")
    for number, stage in enumerate(stages if isinstance(stages, list) else ()):
        if isinstance(stage, dict) and isinstance(stage.get(target), dict) and name in stage[target]:
            yield ("search", "stages", number, target, name)
    base = search.get("base")
    if isinstance(base, dict) and isinstance(base.get(target), dict) and name in base[target]:
        yield ("search", "base", target, name)
    server = data.get("server")
    if isinstance(server, dict):
        if isinstance(server.get(target), dict) and name in server[target]:
            yield ("server", target, name)
        if target == "flags" and "command" in server:
            yield ("server", "command")
