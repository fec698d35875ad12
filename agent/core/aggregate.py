"""A run's measurements as other tools read them: configurations with their launches, metrics with units. Pure.

``configurations`` is what trackers get, a run of theirs for each launch of ours. ``aiperf`` is the aggregate over
launches in the shape of AIPerf's ``profile_export_aiperf_aggregate.json``, schema 1.0 (ai-dynamo/aiperf,
``AggregateConfidenceJsonExporter``): statistics over runs, with Student's interval of the mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from .campaign import Campaign
from .campaign.parts import Record
from .statistics import cv, mean, sd
from .student import t_quantile

LEVEL = 0.95
_SUFFIXES = (
    ("_tok_s", "tokens/sec"), ("_ms_mean", "ms"), ("_ms_p50", "ms"), ("_ms_p90", "ms"), ("_ms_p95", "ms"),
    ("_ms_p99", "ms"), ("_ms", "ms"), ("_s", "sec"), ("_tokens", "tokens"), ("accept_len", "tokens/draft"),
    ("drafts", "drafts"), ("completed", "requests"), ("requested", "requests"),
)  # fmt: skip
_AIPERF = {
    "ttft_ms": "time_to_first_token", "tpot_ms": "inter_token_latency", "e2e_ms": "request_latency",
}  # fmt: skip
_AIPERF_WHOLE = {
    "output_tok_s": "output_token_throughput_avg", "completed": "request_count_avg",
    "output_tokens": "total_output_tokens_avg", "duration_s": "benchmark_duration_avg",
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One launch of a configuration: what it was asked, and what it was worth."""

    trial: str
    role: str
    launch: str
    valid: bool
    finding: str
    values: dict[str, float]
    deviations: dict[str, float]
    repeats: int


@dataclass
class Configuration:
    """What was asked of the server under one name, and every launch that measured it."""

    name: str
    label: str
    flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    launches: list[Measured] = field(default_factory=list)


def unit(metric: str) -> str:
    """Return the unit that a metric's name says; '' where it says none."""
    return next((found for suffix, found in _SUFFIXES if metric.endswith(suffix)), "")


def configurations(campaign: Campaign) -> list[Configuration]:
    """Return every configuration that was measured, in the order in which they were first tried."""
    found: dict[str, Configuration] = {}
    for record in campaign.history:
        trial = record.trial
        if record.scored is None:
            continue
        name = trial.of or trial.id
        if name not in found:
            found[name] = Configuration(name, trial.label(), dict(trial.flags), dict(trial.env))
        found[name].launches.append(_measured(record))
    return list(found.values())


def _measured(record: Record) -> Measured:
    scored = record.scored
    assert scored is not None
    return Measured(
        record.trial.id, record.trial.role, record.launch, scored.valid, scored.finding, scored.values,
        scored.deviations, scored.repeats,
    )  # fmt: skip


def aiperf(campaign: Campaign, run: str) -> dict[str, dict[str, Any]]:
    """Return AIPerf's aggregate of each configuration, by its name; one launch alone has no interval (null)."""
    return {item.name: _aggregate(campaign, run, item) for item in configurations(campaign)}


def _aggregate(campaign: Campaign, run: str, item: Configuration) -> dict[str, Any]:
    confirmed = [launch for launch in item.launches if launch.role == "confirm"]
    # Exploration chose the winner, so its numbers flatter it: where there are confirmation launches, only they count.
    launches = confirmed or item.launches
    valid = [launch for launch in launches if launch.valid]
    names = sorted(set.intersection(*(set(launch.values) for launch in valid))) if valid else []
    failed = [launch for launch in launches if not launch.valid]
    opened = campaign.opened
    return {
        "schema_version": "1.0",
        "produced_by": f"agent {opened.versions.get('agent', '')}".strip() if opened is not None else "agent",
        "metadata": {
            "aggregation_type": "confidence",
            "num_profile_runs": len(launches),
            "num_successful_runs": len(valid),
            "failed_runs": [{"label": _label(launch), "error": launch.finding} for launch in failed],
            "confidence_level": LEVEL,
            "run_labels": [_label(launch) for launch in launches],
            "run": run,
            "configuration": item.name,
            "flags": item.flags,
            "env": item.env,
            "repeats_per_run": [launch.repeats for launch in launches],
            "launches_from": "confirmation" if confirmed else "exploration",
            "simulated": bool(opened is not None and opened.rehearsal),
        },
        "metrics": {aiperf_name(name): _statistics(name, [launch.values[name] for launch in valid]) for name in names},
    }


def _label(launch: Measured) -> str:
    return f"{launch.launch}_{launch.trial}"


def aiperf_name(metric: str) -> str:
    """Return AIPerf's name of one of our metrics; a metric that it does not have keeps its own."""
    base, _, statistic = metric.rpartition("_")
    if base in _AIPERF:
        return f"{_AIPERF[base]}_{'avg' if statistic == 'mean' else statistic}"
    return _AIPERF_WHOLE.get(metric, metric)


def _statistics(metric: str, values: list[float]) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(("std", "cv", "se", "ci_low", "ci_high", "t_critical"))
    centre = mean(values)
    if len(values) > 1:
        error, critical = sd(values) / math.sqrt(len(values)), t_quantile(1 - (1 - LEVEL) / 2, len(values) - 1)
        found |= {"std": sd(values), "se": error, "cv": cv(values) if centre else None, "t_critical": critical}
        found |= {"ci_low": centre - critical * error, "ci_high": centre + critical * error}
    return {"mean": centre, "min": min(values), "max": max(values), **found, "unit": unit(metric)}
