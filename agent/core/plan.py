"""The plan: a playbook resolved in full, as the journal keeps it. Every default is written out, nothing is looked up.

``agent.core.resolve`` makes it from a playbook; the campaign reads it and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from .changes import HostChange, place
from .debugging import Debug
from .goal import FRONT_MAX
from .goal import Goal as Goal
from .goal import Limit as Limit
from .guards import AnyGuard
from .values import Value, digest, rounded

Scalar = StrictBool | StrictInt | StrictFloat | StrictStr
"""What a flag can be set to. ``true`` writes a bare flag, ``false`` leaves it out."""


class Expr(Value):
    """A CEL expression over ``flags`` and ``env``, evaluated when a trial is made."""

    expr: str


FlagValue = Scalar | Expr | tuple[Scalar, ...] | None
"""A flag's value in a plan; None says that the flag is not given."""


class Host(Value):
    """A machine: its name in the playbook and how it is reached (an ssh alias, user@host:port, or ``local``)."""

    name: str
    address: str
    sudo: bool = False
    """Everything there is done as root, whom the login becomes by sudo."""
    sudo_password: str = ""
    """The secret that sudo is given when it asks; '' = none."""


class Container(Value):
    """The container a server runs in. ``options`` are words of ``docker create``, as they are given."""

    engine: Literal["docker", "podman"] = "docker"
    image: str
    name: str = ""
    """'' = one made of the job's key."""
    options: tuple[str, ...] = ()


class Replaces(Value):
    """Whose server may be replaced: all conditions must hold, exactly ``expect`` root processes must match.

    ``argv`` are words that must each stand in the command line, ``port`` the port that a process of the tree
    listens on, ``user`` the owner.
    """

    argv: tuple[str, ...] = ()
    port: int | None = None
    user: str | None = None
    exe: str | None = None
    container: str | None = None
    """Name of a container: then the conditions are met by what runs in it, and it is what is stopped."""
    expect: int = Field(default=1, ge=1, le=64)


class Server(Value):
    """The server under test, before any trial's changes. ``flags`` are without their leading dashes."""

    kind: Literal["sglang", "vllm", "llamacpp", "command"]
    host: str
    port: int
    gpus: int
    """How many GPUs it uses; 0 = none, and no GPU guard applies."""
    command: tuple[str, ...]
    """Its command line without flags; with a container, what follows the image's name (may be nothing)."""
    flags: dict[str, FlagValue] = {}
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Environment variable to the name of a secret."""
    cwd: str | None = None
    replaces: Replaces | None = None
    health: str = "/health"
    health_command: tuple[str, ...] = ()
    """Of a server without HTTP: ends with status 0 once it is up."""
    flag_form: tuple[str, ...] = ()
    """The words that a flag becomes, with ``{name}`` and ``{value}``; () = its name with two dashes, then its value."""
    container: Container | None = None


class SecretSource(Value):
    """Where a secret comes from on the controller: exactly one of the three."""

    env: str | None = None
    file: str | None = None
    command: tuple[str, ...] | None = None


class Workload(Value):
    """What a benchmark asks of the server. Tokens are counted by the server's own tokenizer."""

    name: str = "default"
    prompts: tuple[str, ...] = Field(min_length=1)
    output_tokens: int = Field(default=96, ge=1)
    requests: int = Field(default=2, ge=1)
    concurrency: int = Field(default=1, ge=1)
    warmup: int = Field(default=1, ge=0)


class Repeats(Value):
    """How often a benchmark is repeated in one launch: at least ``min``, until the coefficient of variation is
    at most ``until_cv`` (a fraction), at most ``max``.
    """

    min: int = Field(default=3, ge=1)
    max: int = Field(default=3, ge=1)
    until_cv: float | None = None


class Extract(Value):
    """Where a number stands in a tool's output: a path into JSON, or else a pattern (RE2) whose group it is."""

    json_: str = ""
    pattern: str = ""
    file: str = ""
    """A file that the tool leaves in its folder; '' = what it prints."""


class Benchmark(Value):
    """The load: a script, uploaded under its digest, that prints one JSON document.

    ``agent.core.probes.benchmark`` says what the document looks like.
    """

    script: str
    """Name of the file; ``builtin`` is the load script that comes with the agent, ``builtin:tool`` its runner of
    tools of others.
    """
    sha256: str
    args: tuple[str, ...] = ()
    tool: str = ""
    """A tool of ``agent.core.probes.benchmark.TOOLS``; '' = the script itself measures."""
    command: tuple[str, ...] = ()
    """How the tool is started."""
    files: dict[str, str] = {}
    """Further files of the job, by their name in its folder, as SHA-256."""
    metrics: dict[str, Extract] = {}
    slo: dict[str, float] = {}
    """Limits in ms of ``ttft``, ``tpot``, ``e2e``; a request that meets them all counts as good."""
    workload: Workload
    workloads: tuple[Workload, ...] = ()
    """Where there are several: all of them, the first of which is ``workload``."""
    repeats: Repeats = Repeats()
    timeout_s: float = 600.0

    @property
    def words(self) -> tuple[str, ...]:
        """The command line that a person would have typed, for rules that look at it."""
        return (*self.command, *self.args)


class Accuracy(Value):
    """Questions whose answers are compared with the baseline's, or a command that prints an accuracy.

    ``agree`` and ``drop`` are fractions, ``tie`` is in nats; ``files`` are those of the job, as SHA-256.
    """

    tokens: int = 24
    agree: float = 0.5
    drop: float = 0.1
    tie: float = 0.5
    command: tuple[str, ...] = ()
    metric: Extract = Extract()
    files: dict[str, str] = {}
    timeout_s: float = 600.0


class Profile(Value):
    """How the server is profiled: ``sample`` (perf record on its process, under load), ``engine`` (its own profiler
    or timings), or ``off``. ``on`` says which trials: ``base`` = those whose profile a stage's ``when`` may read;
    ``best`` = also the baseline, and each new best; or all. ``sha256`` is the script, ``files`` what lies beside it.
    """

    method: Literal["sample", "engine", "off"] = "sample"
    on: Literal["all", "best", "base"] = "all"
    seconds: float = 3.0
    steps: int = Field(default=40, ge=3)
    keep_bytes: int = Field(default=2**30, ge=0)
    sha256: str = ""
    files: dict[str, str] = {}


LOADS = ("benchmark", "request")
"""Targets of an axis that need no launch."""


class Axis(Value):
    """One dimension of a sweep: what it changes, and its values in order. None = not given.

    ``flags`` and ``env`` need a launch for each value; ``benchmark`` and ``request`` change the load, not the server.
    """

    target: Literal["flags", "env", "benchmark", "request"]
    key: str
    values: tuple[Scalar | None, ...] = Field(min_length=1)


class Stage(Value):
    """One stage of the search. It runs when ``when`` (CEL over ``profile`` and ``best``) is true, or always."""

    name: str
    when: str | None = None
    axes: tuple[Axis, ...] = Field(min_length=1)
    strategy: Literal["grid", "list", "random", "unimodal", "halving", "optuna"] = "grid"
    points: tuple[dict[str, Scalar | None], ...] = ()
    """With strategy ``list``: the points themselves, by ``flags.NAME``, ``env.NAME`` and so on."""
    sample: int | None = None
    """With strategy ``random`` or ``optuna``: how many points."""
    link: tuple[tuple[str, ...], ...] = ()
    """Axes that move together, by ``flags.NAME`` or ``env.NAME``: their values are taken one by one, not crossed."""
    skip_when: str | None = None
    """CEL over ``flags`` and ``env`` of a point's trial in full; where it is true the point is not tried."""

    def loads(self) -> bool:
        """Whether points of it differ in the load, so that several may be measured on one launch."""
        return any(axis.target in LOADS for axis in self.axes)


class Noise(Value):
    """What is assumed of the noise before it is measured: relative standard deviations, as fractions."""

    launches: float = 0.005
    """Between launches of one configuration (s_l)."""
    repeats: float = 0.003
    """Between repeats within a launch (s_w)."""


class Search(Value):
    """What is tried: candidates start from the server's own flags changed by ``flags`` and ``env``."""

    flags: dict[str, FlagValue] = {}
    env: dict[str, str | None] = {}
    stages: tuple[Stage, ...] = ()
    confirm_launches: int = 2
    """Fresh launches each of baseline and winner, alternating; the interval comes from these alone."""
    confirm_most: int | None = None
    """Further pairs up to so many, at fixed looks, while nothing is settled; None = the number above, no more."""
    noise: Noise | None = None
    """What is assumed before it is measured; None = a steady server, until its repeats say otherwise."""
    warm: int = 0
    """Launches of the baseline before anything counts: they fill caches, and no number of theirs is used."""
    reuse: Literal["none", "runs"] = "none"
    """Whether earlier runs on equal inputs say what is launched first."""
    hints: dict[str, float] = {}
    """What those found, by a trial's identity: log ratio to their baseline, above 0 when better. It orders, no more."""


class Budget(Value):
    """Where the campaign stops by itself. Seconds of campaign time; None = no limit."""

    launches: int | None = None
    time_s: float | None = None


class Cure(Value):
    """What to change in a candidate that failed in a certain way, before it is tried again."""

    set: dict[str, Scalar] = {}
    """Flags and the values they get."""
    add: dict[str, float] = {}
    """Flags and by how much they change each time."""
    attempts: int = 1

    def point(self, flags: Mapping[str, Any]) -> dict[str, Scalar]:
        """Return the coordinates of the changed configuration; ValueError where a flag has no number to change."""
        found: dict[str, Scalar] = {f"flags.{name}": value for name, value in self.set.items()}
        for name, amount in self.add.items():
            value = flags.get(name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{name} has no number to change")
            found[f"flags.{name}"] = rounded(value + amount)
        return found


class State(Value):
    """One state: what it does, what must hold to leave it by ``pass``, and where each outcome leads."""

    name: str
    do: tuple[str, ...] = ()
    guards: tuple[AnyGuard, ...] = ()
    observe: tuple[AnyGuard, ...] = ()
    """Judged and recorded; they open and close nothing."""
    on: dict[str, str] = {}
    timeout_s: float
    attempts: int = Field(default=1, ge=1, le=100)
    script: str | None = None
    """With ``do: [script]``: the file that runs as a host job."""
    sha256: str = ""
    args: tuple[str, ...] = ()


class Trial(Value):
    """One configuration on trial: the server's flags and environment in full, and why it is there."""

    id: str
    role: Literal["warm", "baseline", "base", "candidate", "confirm", "final", "hypothesis"]
    stage: str = ""
    point: dict[str, Scalar | None] = {}
    """The coordinates that the search chose, by ``flags.NAME``, ``env.NAME``, ``benchmark.NAME``, ``request.NAME``."""
    flags: dict[str, Scalar | tuple[Scalar, ...] | None] = {}
    env: dict[str, str] = {}
    benchmark: dict[str, Scalar | None] = {}
    """What the load is changed to: ``concurrency``, ``requests``, ``output_tokens``, or a flag of a tool with its
    dashes; None takes a flag away."""
    request: dict[str, Scalar] = {}
    """Fields of each request of the agent's own load."""
    of: str = ""
    """For confirm and final: the trial whose configuration this is."""
    files: tuple[HostChange, ...] = ()
    """What has to be changed on the host before the launch, in order; everything else is as it was."""
    predicts: str = ""
    """Of a hypothesis: what will be seen if it is so, in words."""

    def launch_digest(self) -> str:
        """Name the part that needs a launch of its own: equal digests may share one."""
        given = {key: value for key, value in self.flags.items() if value is not None and value is not False}
        files = {"files": [change.model_dump(mode="json") for change in self.files]} if self.files else {}
        return digest({"flags": given, "env": self.env, **files})[:16]

    def identity(self) -> str:
        """Name what is measured: the launch, and the load where the trial changes it."""
        if not self.benchmark and not self.request:
            return self.launch_digest()
        return digest({"launch": self.launch_digest(), "benchmark": self.benchmark, "request": self.request})[:16]

    def asked(self) -> str:
        """Name how requests are asked: '' as they are anyway."""
        return digest({"request": self.request})[:16] if self.request else ""

    def label(self) -> str:
        """Say the trial in a few words."""
        if not self.point and not (self.files and self.role == "hypothesis"):
            if self.role == "warm":
                return "baseline, to warm caches: discarded"
            return self.role if not self.of else f"{self.of} ({self.role})"
        words = [] if self.role != "hypothesis" else [place(change) for change in self.files]
        for key, value in self.point.items():
            name = key.split(".", 1)[1]
            words.append(f"{name} unset" if value is None else f"{name}={value}")
        return ", ".join(words)


class Plan(Value):
    """A whole campaign, resolved."""

    name: str
    aim: Literal["optimize", "debug"] = "optimize"
    hosts: dict[str, Host]
    server: Server
    goal: Goal = Goal()
    search: Search = Search()
    budget: Budget = Budget()
    benchmark: Benchmark | None = None
    accuracy: Accuracy | None = None
    """None: what the server answers is not compared."""
    profile: Profile = Profile()
    states: tuple[State, ...]
    """The table, in the order of the ladder; the first is where the campaign begins."""
    assumptions: dict[str, AnyGuard] = {}
    debug: Debug | None = None
    """With ``aim: debug``: what is to be found out."""
    on_fail: dict[str, Cure] = {}
    """By class of failure (``Finding``): what is changed before a candidate is tried again."""
    secrets: dict[str, SecretSource] = {}
    finally_: Literal["winner", "restore", "stop"] = Field(default="stop", alias="finally")
    seed: int = 0
    files: dict[str, str] = {}
    """Digests of every file the playbook brings, by its name."""
    allow: dict[str, str] = {}
    """Rules that the playbook sets aside by comment, each with its reason."""
    lab: dict[str, Any] = {}
    """Settings of a rehearsal, as written; a campaign on real hosts does not look at them."""

    @property
    def sides(self) -> int:
        """How many configurations a confirmation launches at most, the baseline included."""
        return 1 + FRONT_MAX if self.goal.pareto else 2

    def state(self, name: str) -> State:
        """Return the state of that name; KeyError if the table has none."""
        for state in self.states:
            if state.name == name:
                return state
        raise KeyError(name)
