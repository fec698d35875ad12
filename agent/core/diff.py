"""What differs between two runs, or two trials of runs: what was asked, what was so, what came of it. Pure.

A difference in the result is called one only when it is more than noise, by the same statistics that decide a
campaign: an interval from launches. Where there are too few launches it says so, and says no more.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from . import containers
from .campaign import Campaign
from .campaign.parts import Launch, Record
from .observations import SectionResult
from .plan import Goal
from .probes.gpu import read_gpus
from .probes.host import read_disks, read_host, read_memory, read_nccl_conf
from .probes.trace import read_profile
from .servers import kind_of
from .statistics import LaunchMean, compare, mean
from .values import MissingBlobError

_NO_TEXT = ["(the playbook's own text is missing)"]
BEYOND_NOISE = "differs by more than noise"
LINES_MAX = 200
"""So many lines of a difference between two playbooks are kept."""


@dataclass(frozen=True)
class Change:
    """One thing that is not the same on both sides; None = it is not there."""

    what: str
    one: Any
    two: Any


@dataclass(frozen=True)
class Measured:
    """One metric on both sides: means over launches, the ratio two/one with its interval, and what that says."""

    metric: str
    one: float
    two: float
    launches_one: int
    launches_two: int
    ratio: float | None
    low: float | None
    high: float | None
    word: str


@dataclass
class Side:
    """A run, narrowed to one trial's configuration: the launches that measured it."""

    name: str
    campaign: Campaign
    trial: str = ""
    records: list[Record] = field(default_factory=list)
    source: str = ""
    """``confirmation`` or ``exploration``: where the launches come from."""


def side(name: str, campaign: Campaign, trial: str = "") -> Side:
    """Return one side; without a trial, the run's winner (or baseline, where nothing won).

    Raises LookupError with the known trials when there is no such trial.
    """
    known = [record.trial.id for record in campaign.history]
    decision = campaign.concluded
    if not trial:
        trial = (decision.winner or decision.baseline) if decision is not None else ""
        trial = trial or (known[0] if known else "")
    measured = [record for record in campaign.history if record.scored is not None and record.scored.valid]
    confirmed = [record for record in measured if record.trial.role == "confirm" and record.trial.of == trial]
    plain = [record for record in measured if record.trial.id == trial]
    if not any(record.trial.id == trial or record.trial.of == trial for record in campaign.history):
        raise LookupError(f"{name} has no trial {trial!r}; it has: {', '.join(dict.fromkeys(known)) or 'none'}")
    # Exploration chose the winner, so its numbers flatter it: confirmation launches come first.
    found = confirmed or plain
    return Side(name, campaign, trial, found, "confirmation" if confirmed else "exploration")


def diff(one: Side, two: Side) -> dict[str, Any]:
    """Return everything that differs, section by section, fit for JSON."""
    metrics = measured(one, two)
    goal = one.campaign.plan.goal.metric
    main = next((item for item in metrics if item.metric == goal), None)
    sections: dict[str, list[Any]] = {
        "playbook": texts(one.campaign, two.campaign),
        "plan": changes(_plan(one.campaign), _plan(two.campaign)),
        "configuration": changes(_configuration(one), _configuration(two)),
        "effective": changes(_effective(one), _effective(two)),
        "environment": changes(_environment(one), _environment(two)),
        "versions": changes(_versions(one), _versions(two)),
        "host": changes(_host(one), _host(two)),
        "result": changes(_result(one), _result(two)),
    }
    if main is not None and main.word == BEYOND_NOISE:
        sections["result"].insert(0, Change(f"{goal}, mean", main.one, main.two))
    unknown = [name for name, known in _known(one, two, main).items() if not known and not sections[name]]
    return {
        "one": _head(one),
        "two": _head(two),
        **{
            name: [asdict(item) if isinstance(item, Change) else item for item in found]
            for name, found in sections.items()
        },
        "same": [name for name, found in sections.items() if not found and name not in unknown],
        "unknown": unknown,
        "profiles": [_profile(one), _profile(two)],
        "metrics": [asdict(item) for item in metrics],
        "goal": goal,
        "verdict": _verdict(main, goal),
    }


def _known(one: Side, two: Side, main: Measured | None) -> dict[str, bool]:
    """Say of what can be unknown whether both sides tell it: without a difference it is the same only then."""
    sides = (one, two)
    decided = main is not None and (main.one == main.two or (main.low is not None and main.high is not None))
    return {
        "playbook": all(_lines(side.campaign) != _NO_TEXT for side in sides),
        "effective": all(_effective(side) for side in sides),
        "host": all(side.campaign.baseline for side in sides),
        # The decision is the run's: of two trials in one run it says nothing, their numbers have to.
        "result": decided and all(side.campaign.concluded is not None for side in sides),
    }


def _profile(side: Side) -> dict[str, Any] | None:
    """Return the newest profile of this configuration; None when none was taken."""
    records = [r for r in side.campaign.history if side.trial in (r.trial.id, r.trial.of) and r.profile]
    found = read_profile(records[-1].profile) if records else None
    return found.model_dump(mode="json") if found is not None else None


def _head(side: Side) -> dict[str, Any]:
    assert side.campaign.opened is not None
    return {
        "run": side.name,
        "trial": side.trial,
        "launches": len(side.records),
        "from": side.source,
        "rehearsal": side.campaign.opened.rehearsal,
    }


# ---------------------------------------------------------------- settings


def changes(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[Change]:
    """Return what is not equal in two flat tables, in the order of their keys."""
    keys = sorted({*one, *two})
    return [Change(key, one.get(key), two.get(key)) for key in keys if one.get(key) != two.get(key)]


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return nested values as one table by dotted path; lists stay values."""
    if not isinstance(value, dict) or not value:
        return {path: value} if path else {}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= flat(item, f"{path}.{key}" if path else str(key))
    return found


def texts(one: Campaign, two: Campaign) -> list[str]:
    """Return the difference of the two playbooks, line by line."""
    found = list(difflib.unified_diff(_lines(one), _lines(two), "A", "B", n=1, lineterm=""))
    return found[:LINES_MAX] + ([f"… {len(found) - LINES_MAX} more lines"] if len(found) > LINES_MAX else [])


def _lines(campaign: Campaign) -> list[str]:
    assert campaign.opened is not None
    try:
        return campaign.opened.playbook.string().splitlines()
    except MissingBlobError:
        return _NO_TEXT


def _plan(campaign: Campaign) -> dict[str, Any]:
    """Return the plan as a table. States and assumptions are compared by name, not by place."""
    plan = campaign.plan.model_dump(mode="json", by_alias=True)
    plan["states"] = {state.pop("name"): state for state in plan["states"]}
    return flat(plan)


def _configuration(side: Side) -> dict[str, Any]:
    """Return what was asked of the server in this trial."""
    trial = _trial(side)
    return {f"--{key}": value for key, value in trial.flags.items()} if trial is not None else {}


def _environment(side: Side) -> dict[str, Any]:
    trial = _trial(side)
    return dict(trial.env) if trial is not None else {}


def _trial(side: Side) -> Any:
    records = [r for r in side.campaign.history if side.trial in (r.trial.id, r.trial.of)]
    return records[0].trial if records else None


def _launch(side: Side) -> Launch | None:
    """Return the last launch of this configuration that said something of itself."""
    found = [side.campaign.launches[record.launch] for record in side.records]
    return next((launch for launch in reversed(found) if launch.inspected), None)


def _effective(side: Side) -> dict[str, Any]:
    """Return what the server said it runs with."""
    launch = _launch(side)
    if launch is None:
        return {}
    found = kind_of(side.campaign.server.kind).effective(launch.inspected, tuple(launch.log))
    return (dict(found.values) if found is not None else {}) | containers.effective(launch.inspected, launch.key)


def _versions(side: Side) -> dict[str, Any]:
    opened, launch = side.campaign.opened, _launch(side)
    assert opened is not None
    found: dict[str, Any] = dict(opened.versions) | {"logic": opened.logic, "format": opened.format}
    if launch is not None:
        effective = kind_of(side.campaign.server.kind).effective(launch.inspected, tuple(launch.log))
        if effective is not None and effective.version:
            found[f"server ({side.campaign.server.kind})"] = effective.version
    return found


# ---------------------------------------------------------------- the host


def _host(side: Side) -> dict[str, Any]:
    """Return what the host was before the run did anything, as far as its first probe tells."""
    sections: Mapping[str, SectionResult] = side.campaign.baseline
    found: dict[str, Any] = {"simulated": side.campaign.opened.rehearsal if side.campaign.opened else ""}
    if (facts := read_host(sections.get("host"))) is not None:
        found |= {key: value for key, value in vars(facts).items() if key not in ("uptime_s", "pidns")}
    if (memory := read_memory(sections.get("memory"))) is not None:
        found |= {f"memory {key}": memory[key] for key in ("MemTotal", "SwapTotal", "limit") if key in memory}
    for disk in read_disks(sections.get("disk")) or ():
        found[f"disk {disk.mount} size_kib"] = disk.size_kib
    for key, value in (read_nccl_conf(sections.get("nccl_conf")) or {}).items():
        found[f"nccl.conf {key}"] = value
    table = read_gpus(sections.get("gpus")) if "gpus" in sections else None
    for gpu in table.gpus if table is not None else ():
        state = {"name": gpu.name, "uuid": gpu.uuid, "total_mib": gpu.total_mib, "used_mib": gpu.used_mib}
        found |= {f"gpu {gpu.index} {name}": shown for name, shown in state.items() if shown is not None}
    return found


# ---------------------------------------------------------------- results


def _result(side: Side) -> dict[str, Any]:
    """Return how the run ended."""
    decision = side.campaign.concluded
    if decision is None:
        return {"decision": "none yet"}
    kept = ("word", "metric", "winner", "baseline", "ratio", "low", "high", "launches")
    return {"decision" if name == "word" else name: getattr(decision, name) for name in kept}


def measured(one: Side, two: Side) -> list[Measured]:
    """Return every metric that both sides have, the goal's first."""
    tables = [[record.scored.values for record in side.records if record.scored] for side in (one, two)]
    if not all(tables):
        return []
    names = set.intersection(*(set(values) for table in tables for values in table))
    goal = one.campaign.plan.goal.metric
    ordered = sorted(names, key=lambda name: (name != goal, name))
    return [_measured(name, one, two) for name in ordered]


def _measured(metric: str, one: Side, two: Side) -> Measured:
    sides = [_means(metric, side) for side in (one, two)]
    found = compare(sides[0], sides[1], Goal(metric=metric))
    old, new = (mean([launch.value for launch in side]) for side in sides)
    if old == new:
        word = "the same number"
    elif 0 in (old, new):
        word = "zero on one side: there is no ratio"
    elif found.low is None or found.high is None:
        word = "too few launches to tell a difference from noise"
    elif found.low > 1 or found.high < 1:
        word = BEYOND_NOISE
    else:
        word = "no difference beyond noise"
    estimate = found.estimate if found.estimate is not None else new / old if old else None
    return Measured(metric, old, new, len(sides[0]), len(sides[1]), estimate, found.low, found.high, word)


def _means(metric: str, side: Side) -> list[LaunchMean]:
    """Return one mean a launch: the launch is the unit of evidence."""
    found = []
    for record in side.records:
        scored = record.scored
        if scored is not None and metric in scored.values:
            deviation = scored.deviations.get(metric, 0.0)
            found.append(LaunchMean(value=scored.values[metric], deviation=deviation, repeats=max(1, scored.repeats)))
    return found


def _verdict(main: Measured | None, goal: str) -> str:
    if main is None:
        return f"{goal} was not measured on both sides: nothing can be said of the result"
    if main.low is None or main.high is None or main.ratio is None:
        launches = f"{main.launches_one} and {main.launches_two} launches"
        return f"{goal}: {main.one:.4g} and {main.two:.4g}, {launches}: {main.word}"
    percent = [f"{(value - 1) * 100:+.1f}" for value in (main.ratio, main.low, main.high)]
    return f"{goal}: {main.word}: {percent[0]} %, 95 % interval {percent[1]} … {percent[2]} %"
