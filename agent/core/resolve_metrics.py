"""Checks at load on names that would otherwise be missed hours later: metrics, and parts of profiles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from . import plan
from .check import Findings
from .expressions import ExpressionError
from .expressions import compile as compile_expression
from .playbook import Playbook
from .probes.benchmark import METRICS
from .probes.trace import tells_phases, unanswerable
from .wording import Path, did_you_mean

COUNTED = ("cached_tokens", "draft_tokens", "accepted_tokens", "drafts", "accept_len")
"""What a server's own counters tell beside a tool that says nothing of it."""
NEED_SLO = ("goodput_req_s", "slo_share")
"""What there is only where the playbook says which requests are good."""
_PROFILE = ("share", "kernel", "busy")
_PREDICTED = ("predict", "healthy", "bad")


def workloads(playbook: Playbook) -> list[str]:
    """Return the names of the workloads, where the benchmark has several."""
    own = playbook.benchmark
    levels = own.concurrency if isinstance(own.concurrency, tuple) else ()
    return [*own.workloads, *(f"c{level}" for level in levels)]


def metrics(playbook: Playbook) -> list[str] | None:
    """Return every metric that the benchmark can report; None where only the script or the tool knows."""
    own = playbook.benchmark
    if own.tool == "command":
        return [*own.metrics, *(name for name in COUNTED if name not in own.metrics)]
    if own.tool or own.script not in (None, "builtin"):
        return None
    return [*METRICS, *(f"{name}_{load}" for name in METRICS for load in workloads(playbook))]


def check_metrics(playbook: Playbook, findings: Findings) -> None:
    """Refuse a metric that the benchmark does not report, wherever one is named."""
    known = metrics(playbook)
    if known is None:
        return
    goal = playbook.goal
    named: list[tuple[Path, str]] = []
    if not goal.pareto or "metric" in goal.model_fields_set:
        named.append((("goal", "metric"), goal.metric))
    named += [(("goal", "pareto", number), name) for number, name in enumerate(goal.pareto)]
    named += [(("goal", "limits", number), limit[0]) for number, limit in enumerate(goal.limits)]
    named += _named(findings.document.data, ())
    for path, name in named:
        # With a debug campaign the goal says nothing unless it is written.
        if path[0] == "goal" and playbook.aim == "debug":
            continue
        if name in known:
            if name.startswith(NEED_SLO) and playbook.benchmark.slo is None and playbook.benchmark.tool is None:
                message = "it counts requests that keep limits, and the benchmark has none"
                remedy = "write `benchmark: {slo: {ttft: 500ms, tpot: 50ms}}`"
                findings.add("E_MISSING", path, message, remedy, found=name)
            continue
        remedy = did_you_mean(name, known)
        if path == ("goal", "metric") and "metric" not in goal.model_fields_set:
            path, remedy = ("benchmark", "metrics"), f"say what is compared: `goal: {{metric: {known[0]}}}`"
        findings.add("E_METRIC", path, f"the benchmark reports no {name}", remedy, found=name)


def _named(data: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the metrics that guards and predictions name, with their places in the file."""
    if isinstance(data, dict):
        guard = data.get("guard")
        key = {"metric": "name", "bench_valid": "metric"}.get(guard) if isinstance(guard, str) else None
        if key is None and path and path[-1] in _PREDICTED:
            key = "metric"
        if key is not None and isinstance(data.get(key), str):
            yield (*path, key), data[key]
        if guard == "expr" and isinstance(data.get("expr"), str):
            try:
                asked = compile_expression(data["expr"]).references("metrics")
            except ExpressionError:
                asked = frozenset()  # that is said elsewhere
            yield from (((*path, "expr"), name) for name in sorted(asked))
        for name, value in data.items():
            if not (path == () and name == "lab"):
                yield from _named(value, (*path, name))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from _named(value, (*path, number))


def profile_method(playbook: Playbook) -> Literal["sample", "engine", "off"]:
    """Return how the server is profiled: as written, else as the conditions of stages ask for it."""
    own, search = playbook.profile, playbook.search
    if "method" in own.model_fields_set or search is None or playbook.server.kind not in ("sglang", "vllm"):
        return own.method
    asks = any(stage.when is not None and tells_phases(stage.when) for stage in search.stages)
    return "engine" if asks else own.method


def check_profile(resolved: plan.Plan, findings: Findings) -> None:
    """Refuse a condition on a profile that nobody takes, or on a part that no profile has."""
    for number, stage in enumerate(resolved.search.stages):
        path: Path = ("search", "stages", number, "when")
        if not stage.when or not re.search(r"\bprofile\b", stage.when):
            continue
        if resolved.profile.method == "off":
            findings.add(
                "E_CONFLICT", path, "it reads a profile, and profiling is off", "write `profile: {method: sample}`"
            )
            continue
        parts = compile_expression(stage.when).references("profile") if not findings.has(path) else frozenset()
        for part in sorted(parts - set(_PROFILE)):
            findings.add("E_UNDEFINED_VAR", path, f"a profile has no `{part}`", did_you_mean(part, _PROFILE))
        if (found := unanswerable(stage.when, resolved.profile, resolved.server)) is not None:
            findings.add("E_CONFLICT", path, *found)
