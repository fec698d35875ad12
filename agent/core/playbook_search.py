"""The part of the playbook language that says what is tried, what counts as better, and where it stops by itself.

Only shapes, as in ``agent.core.playbook``; what they mean together is worked out by ``agent.core.resolve_search``.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, StrictBool, StrictFloat, StrictInt, StrictStr, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from .fields import (
    BenchmarkKey,
    Count,
    EnvName,
    EnvValue,
    FlagName,
    FlagValue,
    LongTime,
    Metric,
    Name,
    Part,
    Percent,
    RequestKey,
    Scalar,
    StageEnv,
    StageFlag,
    Strategy,
    WorkloadName,
    by_kind,
    wrong,
)  # fmt: skip
from .values import lower_is_better


class Changes(Part):
    """Changes to the server's flags and environment."""

    flags: dict[FlagName, FlagValue] = {}
    """Flags that are set or `unset`."""
    env: dict[EnvName, EnvValue] = {}
    """Variables that are set or `unset`."""


class Point(Part):
    """One point of a stage, or one trial."""

    flags: dict[FlagName, Scalar] = {}
    """Flags that are set or `unset`."""
    env: dict[EnvName, StrictStr] = {}
    """Variables that are set or `unset`."""
    benchmark: dict[BenchmarkKey, Scalar] = {}
    """What the load is changed to; no launch for it."""
    request: dict[RequestKey, Scalar] = {}
    """Fields of each request that are set or `unset`; no launch for it."""


class Stage(Part):
    """One stage of the search; the best of it is the base of the next."""

    name: Name
    """Its name, once in a playbook."""
    when: StrictStr | None = None
    """CEL over `profile`, `best` and `baseline`; skipped when not true: `profile.share['target_verify'] > 0.5`."""
    flags: dict[FlagName, StageFlag] = {}
    """Flags with sweeps, or with one value for the whole stage."""
    env: dict[EnvName, StageEnv] = {}
    """Variables with sweeps, or with one value for the whole stage."""
    benchmark: dict[BenchmarkKey, StageFlag] = {}
    """What the load is changed to: `concurrency`, `requests`, `output_tokens`, or a flag of a tool (`--request-rate`).
    Points that differ in nothing else are measured on one launch."""
    request: dict[RequestKey, StageFlag] = {}
    """Fields of each request that the agent's own load sends (`top_k`, `n_probs`); likewise on one launch."""
    strategy: Strategy | None = None
    """`grid` (every point; the default), `list` (those given), `random`, `unimodal` (one ordered knob), `halving`,
    `optuna` (its TPE suggests one point after the other)."""
    points: tuple[Point, ...] = ()
    """With `list`: the points."""
    sample: Count | None = None
    """With `random` and `optuna`: how many points are tried."""
    link: tuple[Annotated[tuple[StrictStr, ...], Field(min_length=2)], ...] = ()
    """Keys of this stage that move together: `[[a, b]]` takes the first of each, the second of each and so on."""
    skip_when: StrictStr | None = None
    """CEL over `flags`, `env`, `benchmark` and `request` of a point in full: such points are not tried."""


class Confirm(Part):
    """How the winner is confirmed."""

    launches: Annotated[StrictInt, Field(ge=0, le=64)] = 2
    """Fresh launches each of baseline and winner; the interval comes from these alone. 0 = no confirmation."""
    most: Annotated[StrictInt, Field(ge=2, le=64)] | None = None
    """Go on up to so many of each, at fixed looks, while nothing is settled. Default: `launches`."""


class Noise(Part):
    """What is assumed of the noise until it is measured, as relative standard deviations. For planning only."""

    launches: Percent = 0.005
    """How much launches of one configuration differ."""
    repeats: Percent = 0.003
    """How much repeats within a launch differ."""


class Search(Part):
    """What is tried. The baseline is the server's own flags."""

    base: Changes = Changes()
    """What candidates start from."""
    stages: Annotated[tuple[Stage, ...], Field(max_length=64)] = ()
    """Stages in order."""
    confirm: Confirm = Confirm()
    """Confirmation of the winner."""
    warm_launch: Annotated[StrictInt, Field(ge=0, le=3)] = 0
    """Launches of the baseline before anything counts, where the first fills caches (compiled kernels, page cache)."""
    reuse: Literal["none", "runs"] = "none"
    """`runs`: what earlier runs on equal inputs found says what is launched first. No number of theirs counts."""
    noise: Noise | None = None
    """What to plan with before anything is measured. Default: a steady server, until its repeats say otherwise."""


_LIMIT = re.compile(r"([a-z][a-z0-9_]{0,63})\s*(<=|>=)\s*(\d+(?:\.\d+)?)", re.ASCII)


_NEARLY = re.compile(r"([a-z][a-z0-9_]{0,63})\s*(<=?|>=?|==?|=<|=>)?\s*([-+.\deE]{1,40})", re.ASCII)


def _limit(value: object) -> tuple[str, str, float]:
    match = _LIMIT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise _limit_problem(value.strip() if isinstance(value, str) else "")
    return match[1], match[2], float(match[3])


def _limit_problem(text: str) -> PydanticCustomError:
    """Say what is wrong with a limit, in its own words where it is nearly one."""
    nearly = _NEARLY.fullmatch(text)
    if nearly is None:
        return wrong("E_LIMIT", "a limit is a metric, <= or >=, and a number", "write ttft_ms_p99 <= 500")
    metric, sign, number = nearly[1], nearly[2] or "", nearly[3]
    usual = "<=" if sign[:1] == "<" or (sign[:1] != ">" and lower_is_better(metric)) else ">="
    if sign not in ("<=", ">="):
        message = f"a limit says <= or >=, here is {sign}" if sign else "a limit says <= or >= before its number"
        return wrong("E_LIMIT", message, f"write {metric} {usual} {number}")
    if number.startswith("-"):
        return wrong("E_LIMIT", "a limit is not below 0", f"write {metric} {sign} {number.lstrip('-')}")
    message = "the number of a limit is written in digits, without exponent or sign"
    return wrong("E_LIMIT", message, f"write {metric} {sign} 500 or {metric} {sign} 0.5")


Limit = Annotated[
    tuple[str, str, float],
    PlainValidator(_limit),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\s*[a-z][a-z0-9_]{0,63}\s*(<=|>=)\s*\d+(\.\d+)?\s*$",
            "examples": ["ttft_ms_p99 <= 500"],
        }
    ),
]


class Goal(Part):
    """What counts as better."""

    metric: Metric = "output_tok_s"
    """What is compared."""
    improve: Percent = 0.0
    """By how much, over the baseline."""
    over: Literal["baseline"] = "baseline"
    """Against what."""
    direction: Literal["up", "down"] | None = None
    """Whether more is better. Default: `down` for times (`…_ms`, `…_s` but not `…_tok_s`), else `up`."""
    strict: StrictBool = False
    """Whether the lower end of the interval must reach the goal, not just the estimate."""
    limits: tuple[Limit, ...] = ()
    """What a candidate must keep on every launch: `ttft_ms_p99 <= 500`. The baseline need not keep them."""
    pareto: Annotated[tuple[Metric, ...], Field(max_length=6)] = ()
    """Several metrics, each in its own direction: candidates are compared in all of them, and their front is reported.
    `metric`, by default the first, steers the search and is what `improve` means."""
    weights: dict[WorkloadName, Annotated[StrictInt | StrictFloat, Field(gt=0, le=1000)]] = {}
    """How much each workload counts: the metric is then the weighted geometric mean over these workloads."""


class Budget(Part):
    """Where the campaign stops by itself."""

    launches: Count | None = None
    """How many launches."""
    time: LongTime | None = None
    """How much time."""


class Add(Part):
    """A change by an amount."""

    add: StrictInt | StrictFloat
    """The amount."""


class OnFail(Part):
    """What to change in a candidate whose launch fails with a class, before it is tried again."""

    flags: dict[FlagName, Annotated[
        Annotated[Scalar, Tag("one")] | Annotated[Add, Tag("map")], by_kind("a value, or add: AMOUNT")
    ]] = {}  # fmt: skip
    """Changes to flags: a value, or `{add: -0.02}` for a number, each time."""
    attempts: Count = 1
    """How often at most, for one candidate."""
