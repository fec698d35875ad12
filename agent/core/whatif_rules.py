"""Rules of decision that a what-if sets otherwise, written and checked as a playbook's. Pure.

A value that no playbook may have would decide what no run can: it is refused in the words of the playbook's own checks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, Tag

from ..errors import PlaybookError
from . import playbook_benchmark
from .check import Findings, read
from .fields import Part, by_kind
from .plan import Limit, Plan, Repeats
from .playbook_search import Budget, Confirm, Goal
from .values import lower_is_better
from .wording import did_you_mean
from .yaml import load


class Search(Part):
    """How the winner is confirmed."""

    confirm: Confirm = Confirm()


class Benchmark(Part):
    """How often is measured."""

    repeats: Annotated[
        Annotated[Annotated[StrictInt, Field(ge=1, le=1000)], Tag("one")]
        | Annotated[playbook_benchmark.Repeats, Tag("map")],
        by_kind("a number, or min, until_cv and max"),
    ] = 3


class Rules(Part):
    """The parts of a playbook that a rule may set; the rest is what another playbook is for."""

    goal: Goal = Goal()
    budget: Budget = Budget()
    search: Search = Search()
    benchmark: Benchmark = Benchmark()
    finally_: Literal["winner", "restore", "stop"] = Field(default="winner", alias="finally")
    seed: Annotated[StrictInt, Field(ge=0, le=2**31)] = 0


OLDER = {
    "search.confirm_launches": "search.confirm.launches",
    "search.confirm_most": "search.confirm.most",
    "budget.time_s": "budget.time",
}
"""Names of the resolved plan, as what-ifs were once written, and the playbook's."""


def with_rule(plan: Plan, name: str, text: str) -> Plan:
    """Return the plan with one rule set as a playbook would write it (``goal.improve``, ``5%``).

    PlaybookError says what is wrong with it, and what would be right.
    """
    keys = OLDER.get(name, name).split(".")
    written = "".join(f"{'  ' * depth}{key}:\n" for depth, key in enumerate(keys[:-1]))
    written += f"{'  ' * (len(keys) - 1)}{keys[-1]}: {text}\n"
    document = load(written.encode(), "")
    findings = Findings(document)
    rules = read(Rules, document.data, findings)
    findings.stop()
    changed: Plan = _applied(plan, rules, findings)
    findings.stop()
    return changed


def _applied(plan: Plan, rules: Rules, findings: Findings) -> Plan:
    update: dict[str, Any] = {}
    match next(iter(rules.model_fields_set)):
        case "goal":
            update["goal"] = plan.goal.model_copy(update=_goal(plan, rules.goal, findings))
        case "budget":
            names = {"launches": "launches", "time": "time_s"}
            own = {names[key]: getattr(rules.budget, key) for key in rules.budget.model_fields_set}
            update["budget"] = plan.budget.model_copy(update=own)
        case "search":
            update["search"] = plan.search.model_copy(update=_confirm(plan, rules.search.confirm, findings))
        case "benchmark":
            if plan.benchmark is None:
                findings.add("E_REF", ("benchmark",), "the plan measures nothing", "name another rule", found="")
                return plan
            repeats = _repeats(plan.benchmark.repeats, rules.benchmark.repeats, findings)
            update["benchmark"] = plan.benchmark.model_copy(update={"repeats": repeats})
        case "finally_":
            update["finally_"] = rules.finally_
        case _:
            update["seed"] = rules.seed
    return plan.model_copy(update=update)


def _goal(plan: Plan, own: Goal, findings: Findings) -> dict[str, Any]:
    update: dict[str, Any] = {
        key: getattr(own, key) for key in own.model_fields_set if key in type(plan.goal).model_fields
    }
    if "pareto" in update:
        remedy = "write the playbook with it, and name that by --with"
        findings.add("E_CONFLICT", ("goal", "pareto"), "a front is another plan, not another rule", remedy, found="")
        del update["pareto"]
    if "metric" in update or ("direction" in update and own.direction is None):
        metric = update.get("metric", plan.goal.metric)
        update["direction"] = "down" if lower_is_better(metric) else "up"
    if "metric" in update and plan.goal.pareto and own.metric not in plan.goal.pareto:
        findings.add(
            "E_METRIC", ("goal", "metric"), "it is none of the front's", did_you_mean(own.metric, plan.goal.pareto)
        )
    if "limits" in update:
        bounds = {"<=": "at_most", ">=": "at_least"}
        update["limits"] = tuple(Limit(metric=metric, **{bounds[sign]: bound}) for metric, sign, bound in own.limits)
    if "weights" in update:
        for name in own.weights:
            if name not in plan.goal.weights:
                remedy = did_you_mean(name, plan.goal.weights) if plan.goal.weights else "the plan weighs no workloads"
                findings.add(
                    "E_REF", ("goal", "weights", name), "no such workload is weighed", remedy, found=name, key=True
                )
        update["weights"] = plan.goal.weights | own.weights
    return update


def _confirm(plan: Plan, own: Confirm, findings: Findings) -> dict[str, Any]:
    launches = own.launches if "launches" in own.model_fields_set else plan.search.confirm_launches
    most = own.most if "most" in own.model_fields_set else plan.search.confirm_most
    path = ("search", "confirm", "launches" if "launches" in own.model_fields_set else "most")
    if launches == 1:
        remedy = "write 2 to 64, or 0 for no confirmation"
        findings.add("E_RANGE", path, "one launch a side proves nothing", remedy)
    elif most is not None and (plan.goal.pareto or not launches):
        findings.add("E_CONFLICT", path, "`most` is for a confirmation of one winner", "set `most` to null")
    elif most is not None and most < launches:
        remedy = f"write {most} or less" if path[-1] == "launches" else f"write {launches} or more"
        findings.add("E_RANGE", path, f"at most {most} pairs cannot begin with {launches}", remedy)
    return {"confirm_launches": launches, "confirm_most": most}


def _repeats(now: Repeats, own: int | playbook_benchmark.Repeats, findings: Findings) -> Repeats:
    if isinstance(own, int):
        return Repeats(min=own, max=own)
    update = {key: getattr(own, key) for key in own.model_fields_set}
    if update.get("max", 0) is None:
        update["max"] = max(update.get("min", now.min), now.max)
    changed = now.model_copy(update=update)
    if changed.max < changed.min:
        path, bound = ("max", f"{changed.min} or more") if "max" in update else ("min", f"{changed.max} or less")
        findings.add("E_RANGE", ("benchmark", "repeats", path), "max is less than min", f"write {bound}")
    return changed


def unmeasured(plan: Plan, before: Plan, measured: Collection[str]) -> str:
    """Return the first metric that the goal newly asks for and no launch of the run reported; '' = there is none."""
    asked = [plan.goal.metric, *(limit.metric for limit in plan.goal.limits)]
    known = {before.goal.metric, *before.goal.pareto, *(limit.metric for limit in before.goal.limits), *measured}
    return next((name for name in asked if name not in known), "") if measured else ""


def words(error: PlaybookError) -> tuple[str, str]:
    """Return what is wrong with a rule, and what would be right."""
    if not error.problems:
        return error.what, error.remedy
    first = error.problems[0]
    found = f" (found {first.found})" if first.found else ""
    return f"{first.field}: {first.message}{found}" if first.field else f"{first.message}{found}", first.remedy
