"""The part of the playbook language that says what is tried, what counts as better, and where it stops by itself.

Only shapes, as in ``agent.core.playbook``; what they mean together is worked out by ``agent.core.resolve_search``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, Tag

from .fields import (
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
    Scalar,
    StageEnv,
    StageFlag,
    Strategy,
    by_kind,
)  # fmt: skip


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
    strategy: Strategy | None = None
    """`grid` (every point; the default), `list` (the points given), `random`, `unimodal` (one ordered knob)."""
    points: tuple[Point, ...] = ()
    """With `list`: the points."""
    sample: Count | None = None
    """With `random`: how many points are drawn."""


class Confirm(Part):
    """How the winner is confirmed."""

    launches: Annotated[StrictInt, Field(ge=0, le=64)] = 2
    """Fresh launches each of baseline and winner; the interval comes from these alone. 0 = no confirmation."""


class Search(Part):
    """What is tried. The baseline is the server's own flags."""

    base: Changes = Changes()
    """What candidates start from."""
    stages: Annotated[tuple[Stage, ...], Field(max_length=64)] = ()
    """Stages in order."""
    confirm: Confirm = Confirm()
    """Confirmation of the winner."""


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
    """What to change when a launch fails with a class. Not carried out in this version."""

    flags: dict[FlagName, Annotated[
        Annotated[Scalar, Tag("one")] | Annotated[Add, Tag("map")], by_kind("a value, or add: AMOUNT")
    ]] = {}  # fmt: skip
    """Changes to flags."""
    attempts: Count = 1
    """How often."""
