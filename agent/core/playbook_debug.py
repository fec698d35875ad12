"""The part of the playbook language for finding out what is wrong: hypotheses, changes on the host, bisection."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, Tag, WithJsonSchema

from .fields import EnvName, File, FlagName, Metric, Name, Part, Scalar, Timeout, by_kind

GuardSpec = Annotated[Any, WithJsonSchema({"title": "Guard"})]
"""The name of a guard, or ``{guard: NAME, …}``; checked against the guards that exist when it is resolved."""

HostPath = Annotated[StrictStr, Field(pattern=r"^/[^\x00]*$", max_length=4096)]
Digest = Annotated[StrictStr, Field(pattern=r"^([0-9a-f]{64}|absent)$")]


class PutChange(Part):
    """A file that is put on the host."""

    path: HostPath
    """Where."""
    file: File
    """The file beside the playbook."""
    was: Digest | None = None
    """SHA-256 of what has to be there before, or `absent`."""
    mode: Annotated[StrictStr, Field(pattern=r"^0?[0-7]{3}$")] | None = None
    """Of a new file, as `"644"`."""


class PatchChange(Part):
    """A unified diff that is applied on the host; every line of it has to fit."""

    root: HostPath
    """The folder its names begin at."""
    file: File
    """The diff beside the playbook."""
    strip: Annotated[StrictInt, Field(ge=0, le=9)] = 1
    """How many steps of its names are left out, as in `patch -p1`."""


class EditChange(Part):
    """Values of a JSON or YAML file on the host."""

    path: HostPath
    """The file."""
    set: Annotated[dict[str, Any], Field(min_length=1)]
    """Path in the document (`a.b[0]`, `a["b.c"]`) → value."""
    was: dict[str, Any] = {}
    """Path → value that has to be there before."""
    python: StrictStr = "python3"
    """The interpreter on the host that makes the change; YAML needs one with PyYAML."""


class GitChange(Part):
    """A commit that is checked out in a clean tree on the host."""

    repo: HostPath
    """The repository."""
    checkout: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/~^-]*$", max_length=200)]
    """Commit, tag or branch."""


class PackageChange(Part):
    """The version of a package in a virtual environment on the host."""

    python: HostPath
    """The environment's interpreter."""
    name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=100)]
    """The package."""
    version: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$", max_length=60)]
    """The version."""
    wheels: HostPath | None = None
    """A folder on the host with wheels; without it the package index is asked."""


_HINT = by_kind("one change, or a list of them")


class Change(Part):
    """What is changed. The keys may stand side by side; of each kind of file change there may be a list."""

    flags: dict[FlagName, Scalar] = {}
    """Flags that are set or `unset`."""
    env: dict[EnvName, StrictStr] = {}
    """Variables that are set or `unset`."""
    put: Annotated[Annotated[PutChange, Tag("map")] | Annotated[tuple[PutChange, ...], Tag("list")], _HINT] | None = (
        None
    )
    """A file that is put on the host."""
    patch: (
        Annotated[Annotated[PatchChange, Tag("map")] | Annotated[tuple[PatchChange, ...], Tag("list")], _HINT] | None
    ) = None
    """A unified diff."""
    json_: (
        Annotated[Annotated[EditChange, Tag("map")] | Annotated[tuple[EditChange, ...], Tag("list")], _HINT] | None
    ) = Field(default=None, alias="json")
    """Values of a JSON file."""
    yaml: (
        Annotated[Annotated[EditChange, Tag("map")] | Annotated[tuple[EditChange, ...], Tag("list")], _HINT] | None
    ) = None
    """Values of a YAML file."""
    git: Annotated[Annotated[GitChange, Tag("map")] | Annotated[tuple[GitChange, ...], Tag("list")], _HINT] | None = (
        None
    )
    """A commit that is checked out."""
    package: (
        Annotated[Annotated[PackageChange, Tag("map")] | Annotated[tuple[PackageChange, ...], Tag("list")], _HINT]
        | None
    ) = None
    """A package's version."""


class Predict(Part):
    """What is seen: a metric within bounds, a state that is passed, or guards that hold. All that is given counts."""

    metric: Metric | None = None
    """A metric of the benchmark."""
    above: StrictInt | StrictFloat | None = None
    """It is more than this."""
    below: StrictInt | StrictFloat | None = None
    """It is less than this."""
    reaches: Name | None = None
    """The launch passes this state."""
    guards: tuple[GuardSpec, ...] = ()
    """Guards that hold."""


class RulesOut(Part):
    """Which other hypotheses need no test any more."""

    supported: tuple[Name, ...] = ()
    """When this one is supported."""
    refuted: tuple[Name, ...] = ()
    """When this one is refuted."""


class Hypothesis(Part):
    """A possible cause, with the change that would show it and a prediction."""

    because: Annotated[StrictStr, Field(min_length=1)]
    """Why it may be so."""
    change: Change = Change()
    """What is changed; nothing = it is looked for in the server as it is, without a launch."""
    predict: Predict | None = None
    """What will be seen if it is so. Default: `debug.healthy`."""
    evidence: tuple[GuardSpec, ...] = ()
    """Guards that must hold for the test to count."""
    revert: Literal["always", "never", "unless-supported"] = "unless-supported"
    """When the changes on the host are taken back."""
    rules_out: RulesOut = RulesOut()
    """What its verdict decides about others."""


class CheckScript(Part):
    """A script of your own that measures something beside the server, and prints one JSON object of numbers."""

    script: File
    """The file beside the playbook; it runs on the host as a job."""
    args: tuple[StrictStr, ...] = ()
    """Words of its command line."""
    timeout: Timeout = 600.0
    """How long it may take."""


class DebugPart(Part):
    """How a debug campaign tells the fault, and what it gathers."""

    healthy: Predict | None = None
    """What a server without the fault shows."""
    until: Literal["supported", "all"] = "supported"
    """Whether the first supported hypothesis ends it."""
    checks: dict[Name, CheckScript] = {}
    """Scripts that are run on each server that is up; the guard `check` reads what they print."""
    collect: Literal["failures", "always", "never"] = "failures"
    """When evidence is gathered: log, stacks, environment, kernel messages, versions."""


class OverFlag(Part):
    """Values of a flag, in order."""

    name: FlagName
    """The flag."""
    values: Annotated[tuple[Scalar, ...], Field(min_length=2, max_length=1024)]
    """From one without the fault to one with it."""


class OverPackage(Part):
    """Versions of a package, in order."""

    python: HostPath
    """The environment's interpreter."""
    name: StrictStr
    """The package."""
    versions: Annotated[tuple[StrictStr, ...], Field(min_length=2, max_length=1024)]
    """From one without the fault to one with it."""
    wheels: HostPath | None = None
    """A folder on the host with wheels."""


class OverCommits(Part):
    """Commits of a repository, in order."""

    repo: HostPath
    """The repository."""
    commits: Annotated[tuple[StrictStr, ...], Field(min_length=2, max_length=4096)]
    """From one without the fault to one with it."""


class OverValues(Part):
    """Values at one place of a JSON or YAML file, in order."""

    path: HostPath
    """The file."""
    at: StrictStr
    """The path in it."""
    values: Annotated[tuple[Any, ...], Field(min_length=2, max_length=1024)]
    """From one without the fault to one with it."""


class NamedChange(Change):
    """A change with a name."""

    name: Name
    """What it is called."""


class BisectPart(Part):
    """A fault to be narrowed down to the smallest change that brings it. Give exactly one of the lists."""

    flag: OverFlag | None = None
    """Values of a flag."""
    package: OverPackage | None = None
    """Versions of a package."""
    commits: OverCommits | None = None
    """Commits."""
    json_: OverValues | None = Field(default=None, alias="json")
    """Values in a JSON file."""
    changes: Annotated[tuple[NamedChange, ...], Field(min_length=2, max_length=1024)] | None = None
    """Changes of any kind, one after another: each point has all of those before it."""
    any_of: Annotated[tuple[NamedChange, ...], Field(min_length=2, max_length=64)] | None = None
    """Changes that bring the fault together; the smallest set of them that does is looked for."""
    bad: Predict
    """What is seen where the fault is."""
    confirm: StrictBool = True
    """Whether both sides are launched once more at the end."""
