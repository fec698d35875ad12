"""What the campaign may ask of the world. An action is data; hosts carry it out.

An action with ``effect`` true changes a host. Its ``Requested`` is on disk before it starts, and it takes
effect at most once per key. All others may be repeated freely, so a resumed run just asks again.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .values import Value


class Section(Value):
    """One shell command of a probe; its output comes back under ``name`` with its exit status."""

    name: str
    command: str
    timeout_s: float = 20.0


class Target(Value):
    """A process by identity: pid and start time (field 22 of ``/proc/PID/stat``, clock ticks)."""

    pid: int = Field(gt=1)
    start: int = Field(ge=0)


class Job(Value):
    """What a host job runs.

    ``argv`` is passed literally, word for word; a word that starts with ``@job/`` names a file of the job's
    own folder. ``files`` maps names in that folder to the SHA-256 of what is put there; ``secrets`` maps
    environment variables to names of secrets, delivered by standard input, never by command line.
    """

    role: Literal["server", "benchmark", "profile", "script", "change", "collect"]
    argv: tuple[str, ...] = Field(min_length=1)
    env: dict[str, str] = {}
    cwd: str | None = None
    files: dict[str, str] = {}
    secrets: dict[str, str] = {}


class Action(Value):
    """What every action has: whether it changes a host, and the host it is for ('' = none)."""

    effect: ClassVar[bool] = False
    host: str = ""


class Wait(Action):
    """Wait until the campaign's clock (seconds since it was opened) reads ``until_s``."""

    do: Literal["wait"] = "wait"
    until_s: float


class Cancel(Action):
    """Give up open requests; each then has its own observation that says ``cancelled``."""

    do: Literal["cancel"] = "cancel"
    requests: tuple[str, ...] = Field(min_length=1)


class Ask(Action):
    """Ask the operator to confirm exactly ``lines``; ``digest`` names that list."""

    do: Literal["ask"] = "ask"
    question: str
    lines: tuple[str, ...] = ()
    digest: str = ""


class Knob(Value):
    """One dimension of what an adviser chooses from: the numbers of its values from 0 on, ordered or not."""

    name: str
    values: int = Field(ge=1)
    ordered: bool = False


class Told(Value):
    """What became of a suggestion: ``merit`` is larger when better; None = it was not measured, or must not win."""

    at: tuple[int, ...]
    merit: float | None = None


class Advise(Action):
    """Ask an adviser for the next point of a stage, given everything it suggested so far.

    The adviser keeps nothing between two questions, and nobody asks it in a replay: its answer is an observation. That
    is JSON, ``{"at": [INDEX, …], "version": "optuna 5.0.0"}``; without ``at`` it has nothing left to suggest.
    """

    do: Literal["advise"] = "advise"
    stage: str
    seed: int
    knobs: tuple[Knob, ...] = Field(min_length=1)
    told: tuple[Told, ...] = ()
    startup: int = 10
    """How many suggestions are drawn at random before the rest are modelled on them."""


class Acquire(Action):
    """Take or renew a lease on the host. The answer is ``EPOCH n``, or ``BUSY owner epoch n age s resource r since s``.

    Where several leases are in the way there is a line for each, the newest first. ``take_over`` names that newest
    epoch and stands for all that were listed. ``ttl_s`` 0 gives the lease back: the next campaign may have it at once.
    """

    effect: ClassVar[bool] = True
    do: Literal["acquire"] = "acquire"
    owner: str
    ttl_s: int = 1800
    take_over: int | None = None
    resources: tuple[Annotated[str, Field(pattern=r"^[a-z0-9.:_-]+$")], ...] = ()
    """What of the host it is for, as ``gpu0`` or ``port:8000``; none = the whole host. All or none are given, and
    they replace what this owner had. Leases on other things of the host go on beside it."""


class Probe(Action):
    """Run read-only commands in one round trip. The answer is framed section by section."""

    do: Literal["probe"] = "probe"
    sections: tuple[Section, ...]
    timeout_s: float = 30.0


class Start(Action):
    """Start a job at most once under ``key``. The answer is the state of the job on the host."""

    effect: ClassVar[bool] = True
    do: Literal["start"] = "start"
    key: str
    job: Job
    again: str = ""
    """The request this one repeats under the same key, after the host said that the key is absent."""


class Status(Action):
    """Ask the host for the state of ``key``; ``of`` is the request whose answer was lost."""

    do: Literal["status"] = "status"
    key: str
    of: str = ""


class Follow(Action):
    """Wait until the job ends; then its exit status, standard output and the tail of standard error."""

    do: Literal["follow"] = "follow"
    key: str
    timeout_s: float


class Watch(Action):
    """Watch a server from its host and report only changes, until cancelled or until its process is gone.

    ``url`` is asked again and again; ``run:`` with a shell command counts as 200 when that ends with status 0.

    Lines of the stream: ``state …`` as in Status, ``health CODE`` (000 = no answer), ``workers N`` (processes
    of the job that are not zombies), ``log OFFSET TEXT`` (a line of the server's output that matches a pattern).
    """

    do: Literal["watch"] = "watch"
    key: str
    url: str
    patterns: tuple[str, ...] = ()
    interval_s: float = 0.25
    offset: int = Field(default=0, ge=0)
    """The line that begins at this byte has been seen: only what comes after it is news."""
    once: bool = False
    """Read what there is by now, to its end, and be done: what a watch that is given up may not have come to."""


class Owned(Action):
    """List the living processes of jobs: a line ``KEY PID START STATE ARGV`` for each."""

    do: Literal["owned"] = "owned"
    keys: tuple[str, ...]


class Signal(Action):
    """Send a signal to exactly these processes, each re-checked by identity at the moment of the signal.

    With a ``key``, a process must also still belong to that job. Without, the list is one that the playbook
    named and the operator confirmed. The answer has a line ``SENT PID``, ``GONE PID`` or ``REFUSED PID`` for each.
    """

    effect: ClassVar[bool] = True
    do: Literal["signal"] = "signal"
    signal: Literal["TERM", "KILL", "INT"]
    targets: tuple[Target, ...] = Field(min_length=1)
    key: str = ""
    container: str = ""
    """``ENGINE ID`` of the container that the targets live in and that the playbook named: then its engine sends the
    signal, and the answer has the id in place of pids."""


AnyAction = Annotated[
    Wait | Cancel | Ask | Advise | Acquire | Probe | Start | Status | Follow | Watch | Owned | Signal,
    Field(discriminator="do"),
]
