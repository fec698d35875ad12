"""What earlier runs found out about the configurations of a search, where their inputs were equal. Pure.

It says in which order a search goes, so that it is settled sooner. No number of an earlier run is compared with one of
this run: the host, the driver, the time of day may differ in ways that nobody wrote down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .campaign import Campaign
from .plan import Plan
from .statistics import mean
from .trials import EXPLORING
from .values import rounded


def is_equal(plan: Plan, other: Plan) -> bool:
    """Say whether two plans measure the same on the same hosts: server, load and metric are equal."""
    return (
        plan.hosts == other.hosts
        and plan.server == other.server
        and plan.benchmark == other.benchmark
        and (plan.goal.metric, plan.goal.direction, plan.goal.weights)
        == (other.goal.metric, other.goal.direction, other.goal.weights)
    )


def hints(plan: Plan, campaigns: Iterable[Campaign], *, rehearsal: bool = False) -> dict[str, float]:
    """Return the log ratio of each configuration to its baseline, above 0 when it was better, by ``Trial.identity``.

    Rehearsals say nothing about real hosts, nor the other way round. Launches that broke a limit of the goal, and
    invalid ones, say nothing.
    """
    found: dict[str, list[float]] = {}
    sign = 1.0 if plan.goal.direction == "up" else -1.0
    for campaign in campaigns:
        if campaign.opened is None or bool(campaign.opened.rehearsal) is not rehearsal:
            continue
        if not is_equal(plan, campaign.plan):
            continue
        logs: dict[str, list[float]] = {}
        base = ""
        for record in campaign.history:
            scored, digest = record.scored, record.trial.identity()
            value = scored.values.get(plan.goal.metric) if scored is not None and scored.valid else None
            if record.trial.role == "baseline":
                base = digest
            if value is None or value <= 0 or scored is None or plan.goal.broken(scored.values):
                continue
            if record.trial.role in EXPLORING or record.trial.role == "confirm":
                logs.setdefault(digest, []).append(sign * math.log(value))
        for digest, values in logs.items():
            if base in logs and digest != base:
                found.setdefault(digest, []).append(mean(values) - mean(logs[base]))
    return {digest: rounded(mean(values)) for digest, values in sorted(found.items())}
