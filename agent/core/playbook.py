"""The playbook language: what may be written, key by key, with types and defaults.

Only shapes live here. What a value means together with others (a stage's points, the graph of states, expressions)
is worked out by ``agent.core.resolve``; where a value stands in the file is known to ``agent.core.yaml``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictInt, StrictStr, Tag

from .fields import (
    Address,
    EnvName,
    EnvValue,
    File,
    FlagName,
    FlagValue,
    ImageName,
    Name,
    OptionName,
    OptionValue,
    Part,
    Port,
    Scalar,
    Size,
    Timeout,
    by_kind,
)  # fmt: skip
from .playbook_benchmark import Accuracy, Benchmark
from .playbook_debug import BisectPart, DebugPart, GuardSpec, Hypothesis
from .playbook_search import Budget, Goal, OnFail, Point, Search

# ---------------------------------------------------------------- hosts and the server


class SecretSource(Part):
    """Where a secret comes from on this machine: exactly one of the three. Its value is never written anywhere."""

    env: EnvName | None = None
    """A variable of the agent's own environment."""
    file: StrictStr | None = None
    """A file that only you can read."""
    command: tuple[StrictStr, ...] | None = None
    """A command whose first line of output it is."""


class SudoPassword(Part):
    """How sudo is answered when it asks."""

    password: SecretSource
    """Where the password comes from; it is sent once, on standard input."""


class HostPart(Part):
    """A host whose login is not root."""

    address: Address
    """An alias of ~/.ssh/config, `user@host:port`, or `local`."""
    sudo: Annotated[
        Annotated[StrictBool, Tag("one")] | Annotated[SudoPassword, Tag("map")],
        by_kind("true, or password: {env: NAME}"),
    ] = False
    """`true`: everything there is done as root, whom the login becomes by `sudo`. With `password: {env: NAME}` (or
    `file`, `command`) sudo is given that when it asks."""


class Replaces(Part):
    """The server that may be stopped to make room. At least two kinds of condition, so that it matches no more."""

    container: Name | None = None
    """Name of the container it runs in; it is stopped through its engine."""

    argv: tuple[StrictStr, ...] = ()
    """Words that must each stand in its command line."""
    port: Port | None = None
    """The port it listens on."""
    user: StrictStr | None = None
    """Its owner."""
    exe: StrictStr | None = None
    """The path of its program."""
    expect: Annotated[StrictInt, Field(ge=1, le=64)] = 1
    """How many root processes must match, exactly."""


class Container(Part):
    """The container that the server runs in: what `docker run` would be given, with the long names of its options."""

    engine: Literal["docker", "podman"] = "docker"
    """Whose command line is used on the host."""
    image: ImageName
    """The image. It has to be on the host: a launch fetches nothing."""
    name: Name | None = None
    """Name of the container. Default: `agent-` and the key of the launch."""
    labels: dict[StrictStr, StrictStr] = {}
    """Labels beside the agent's own."""
    options: dict[OptionName, OptionValue] = {}
    """Options of `docker run` by their long names without dashes: `{gpus: all, ipc: host, volume: [/data:/data:ro]}`.
    `true` writes a bare option, a list the option once for each value."""


class Health(Part):
    """A check of a server that does not speak HTTP."""

    command: Annotated[tuple[StrictStr, ...], Field(min_length=1)]
    """Words of a command on the host, `{port}` among them; status 0 means that it is up. It runs again and again."""


class Server(Part):
    """The server under test, before any trial's changes."""

    kind: Literal["sglang", "vllm", "llamacpp", "command"]
    """Which engine: it decides how flags are written and what is checked. `command` is anything with a health check."""
    host: Name | None = None
    """The host it runs on, by its name in `hosts`; may be left out when there is only one."""
    port: Port
    """The port it listens on."""
    tensor_parallel: Annotated[StrictInt, Field(ge=1, le=1024)] | None = None
    """Over how many GPUs the model is split; written as the engine's own flag."""
    gpus: Annotated[StrictInt, Field(ge=0, le=1024)] | None = None
    """How many GPUs it uses; 0 = none. Default: `tensor_parallel` for sglang and vllm (1), 0 for others."""
    command: tuple[StrictStr, ...] = ()
    """The command line without flags, word for word; no shell reads it. In a container, what follows the image:
    none where the image itself starts the server."""
    container: Container | None = None
    """The container it runs in; left out, it is a process of the host."""
    flags: dict[FlagName, FlagValue] = {}
    """Flags by name without dashes. `true` writes a bare flag, `false` and `unset` leave it out."""
    env: dict[EnvName, EnvValue] = {}
    """Environment variables; values are words, so numbers are quoted."""
    allow_env: tuple[Literal["LD_LIBRARY_PATH"], ...] = ()
    """Variables that are refused unless they are named here."""
    secrets: dict[EnvName, SecretSource] = {}
    """Environment variables whose values are secrets, by where these come from."""
    replaces: Replaces | None = None
    """Whose server may be replaced, after one confirmation of the processes found."""
    cwd: StrictStr | None = None
    """The folder it is started in (absolute, on the host)."""
    health: Annotated[
        Annotated[Annotated[StrictStr, Field(pattern=r"^/[^\s]*$")], Tag("one")] | Annotated[Health, Tag("map")],
        by_kind("a path, or command: [WORD, …]"),
    ] = "/health"
    """The path that answers 200 once it is up; of a server without HTTP, a command that then ends with status 0."""
    flag_form: Annotated[tuple[StrictStr, ...], Field(min_length=1)] | None = None
    """How `kind: command` writes a flag, where not as two words: `["--{name}={value}"]`, `[-c, "{name}={value}"]`."""


# ---------------------------------------------------------------- measuring


class Profile(Part):
    """How the server is profiled under load."""

    method: Literal["sample", "engine", "off"] = "sample"
    """`sample` looks at its process, `engine` uses its own profiler, `off`.
    Default: `engine` where a `when` asks an SGLang or vLLM for phases or kernels, else `sample`."""
    on: Literal["all", "best", "base"] = "best"
    """Which trials: those that a `when` reads (`base`), with the baseline and each new best (`best`), or `all`."""
    duration: Timeout = 3.0
    """For how long. SGLang's own profiler goes by `steps`."""
    steps: Annotated[StrictInt, Field(ge=3, le=10_000)] = 40
    """Batches that SGLang's own profiler records."""
    keep: Size = 2**30
    """Of the traces at most so much stays on the host."""


# ---------------------------------------------------------------- states

DO_WORDS = (
    "probe", "survey", "kill", "clean", "change", "launch", "watch", "inspect", "benchmark", "profile", "test",
    "decide", "finally",
)  # fmt: skip
OUTCOMES = (
    "pass", "fail", "unknown", "timeout", "lost", "settled", "next", "same-launch", "finish", "leave", "launch", "stop"
)  # fmt: skip
DoWord = Literal[
    "probe", "survey", "kill", "clean", "change", "launch", "watch", "inspect", "benchmark", "profile", "test",
    "decide", "finally",
]  # fmt: skip
Outcome = Literal[
    "pass", "fail", "unknown", "timeout", "lost", "settled", "next", "same-launch", "finish", "leave", "launch", "stop"
]


class Script(Part):
    """A file beside the playbook that runs on the host as a job. Other keys become its flags: `requests: 150`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Scalar]

    script: File
    """The file."""
    args: tuple[StrictStr, ...] = ()
    """Words of its command line."""


class State(Part):
    """A state of the ladder. A key that is left out keeps the standard ladder's value."""

    after: Name | None = None
    """For a new state: the state whose `pass` leads here."""
    do: (
        Annotated[
            tuple[
                Annotated[
                    Annotated[DoWord, Tag("one")] | Annotated[Script, Tag("map")],
                    by_kind("a word, or script: FILE"),
                ],
                ...,
            ],
            Field(min_length=1),
        ]
        | None
    ) = None
    """What is done, in parallel where it is independent."""
    guards: tuple[GuardSpec, ...] | None = None
    """What must hold to leave by `pass`."""
    observe: tuple[GuardSpec, ...] | None = None
    """Guards that are judged and recorded and open or close nothing: what is wrong already when debugging begins."""
    on: dict[Outcome, Name] = {}
    """Outcome → next state, `done`, `failed`, `hold`, or `skip-trial` (= `decide`)."""
    timeout: Timeout | None = None
    """How long it may take."""
    attempts: Annotated[StrictInt, Field(ge=1, le=100)] | None = None
    """How often it is tried."""


# ---------------------------------------------------------------- the whole


class Playbook(Part):
    """A campaign: what to try, what must hold before each step, and what counts as better."""

    playbook: Name
    """Its name; runs are called after it."""
    aim: Literal["optimize", "debug"] = "optimize"
    """`optimize` looks for the best, `debug` for what is wrong (`hypotheses` or `bisect`)."""
    goal: Goal = Goal()
    """What counts as better."""
    hosts: Annotated[
        dict[
            Name,
            Annotated[
                Annotated[Address, Tag("one")] | Annotated[HostPart, Tag("map")],
                by_kind("an address, or address: … with sudo: true"),
            ],
        ],
        Field(min_length=1),
    ]
    """Name → an alias of ~/.ssh/config, `user@host:port`, or `local`; `{address: …, sudo: true}` for root."""
    server: Server
    """The server under test."""
    assumptions: dict[Name, GuardSpec] = {}
    """Guards judged in `probe`, before anything is stopped; a refuted one holds."""
    search: Search | None = None
    """What is tried."""
    trials: Annotated[tuple[Point, ...], Field(min_length=1)] | None = None
    """Short form of a search with one stage: the trials themselves."""
    budget: Budget = Budget()
    """Where it stops by itself."""
    benchmark: Benchmark = Benchmark()
    """The load that measures."""
    accuracy: (
        Annotated[
            Annotated[Literal["off"], Tag("one")] | Annotated[Accuracy, Tag("map")], by_kind("off, or its limits")
        ]
        | None
    ) = None
    """What answers are compared with the baseline's. Default: the agent's own questions; `off` for `kind: command`."""
    profile: Profile = Profile()
    """How it is profiled."""
    states: Annotated[dict[Name, State], Field(max_length=100)] = {}
    """Changes to the standard ladder, new states, or a whole graph."""
    on_fail: dict[Name, OnFail] = {}
    """Class of failure → what is changed before a candidate is tried again."""
    hypotheses: dict[Name, Hypothesis] = {}
    """Possible causes, each with a change and a prediction; tested in the order of what they cost and decide."""
    debug: DebugPart = DebugPart()
    """How the fault shows, and what is gathered."""
    bisect: BisectPart | None = None
    """A fault to be narrowed down."""
    finally_: Literal["winner", "restore", "stop"] | None = Field(default=None, alias="finally")
    """What is left running. Default: `restore` when a server was replaced, else `stop`."""
    seed: Annotated[StrictInt, Field(ge=0, le=2**31)] = 0
    """Seed of everything random."""
    lab: dict[str, Any] = {}
    """Settings of a rehearsal; not read otherwise."""
