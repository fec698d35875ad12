"""How a request ended, and how the host's own answers are read.

``Completed`` is the only outcome that carries knowledge. The others say why there is none; none of them may
ever be taken for success, for clean, or for dead.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from .values import Output, Value, is_count


class Completed(Value):
    """The command ran and its end was seen: an integer status and our own end mark."""

    result: Literal["completed"] = "completed"
    status: int
    out: Output = Output()
    err: Output = Output()


class Lost(Value):
    """The carrier failed: nothing is known about whether or how the command ran."""

    result: Literal["lost"] = "lost"
    why: str


class TimedOut(Value):
    """The request's own limit passed."""

    result: Literal["timed_out"] = "timed_out"
    after_s: float


class Cancelled(Value):
    """We gave it up."""

    result: Literal["cancelled"] = "cancelled"


class Refused(Value):
    """The host understood and said no. ``code`` is FENCED, BUSY, CONFLICT or ERR; ``text`` its whole answer."""

    result: Literal["refused"] = "refused"
    code: str
    text: str = ""


Outcome = Annotated[Completed | Lost | TimedOut | Cancelled | Refused, Field(discriminator="result")]

JobWord = Literal["ABSENT", "STARTING", "LIVE", "ORPHANED", "EXITED", "LOST", "CONFLICT", "UNKNOWN"]
JOB_WORDS: tuple[str, ...] = ("ABSENT", "STARTING", "LIVE", "ORPHANED", "EXITED", "LOST", "CONFLICT", "UNKNOWN")


class JobState(Value):
    """The state of a key on its host, as the host script tells it.

    ``pid``/``start`` identify the supervisor (which leads the job's session); ``up_s`` is the host's uptime when
    it started; ``rc`` the exit status of what ran; ``why`` the reason of LOST.
    """

    word: JobWord
    pid: int = 0
    start: int = 0
    up_s: int = 0
    rc: int | None = None
    why: str = ""


def read_job_state(text: str) -> JobState:
    """Read ``LIVE pid start up``, ``EXITED rc up``, ``LOST why`` and their kin; anything odd is UNKNOWN."""
    words = text.split()
    try:
        match words:
            case [("LIVE" | "ORPHANED") as word, pid, start, up]:
                return JobState(word=word, pid=int(pid), start=int(start), up_s=int(up))
            case ["EXITED", rc, up]:
                return JobState(word="EXITED", rc=int(rc), up_s=int(up))
            case ["LOST", why]:
                return JobState(word="LOST", why=why)
            case [("ABSENT" | "STARTING" | "CONFLICT") as word]:
                return JobState(word=word)
    except ValueError:
        pass
    return JobState(word="UNKNOWN", why=text[:200])


class SectionResult(Value):
    """What one command of a probe said. ``status`` None: it never got to run or to end."""

    status: int | None
    out: str


@lru_cache(maxsize=32)
def read_sections(text: str) -> Mapping[str, SectionResult]:
    """Split the answer to a Probe into its sections.

    The first line is ``#NONCE``, a mark that no output could know beforehand. Each section is
    ``#NONCE begin NAME``, the output as it came, then on a line of its own ``#NONCE end NAME rc=N``.
    A section without its end has no status; text without the mark has no sections. Several guards read the same
    answer, so the last few are kept.
    """
    mark = text.partition("\n")[0]
    results: dict[str, SectionResult] = {}
    if len(mark) < 9 or not mark.startswith("#"):
        return results
    name, out = "", ""
    for part in text.split(f"\n{mark} ")[1:]:
        head, _, rest = part.partition("\n")
        if head.startswith("begin "):
            name, out = head[6:], rest
            results[name] = SectionResult(status=None, out=out)
        elif name and head.startswith(f"end {name} rc="):
            status = head.rsplit("=", 1)[1]
            results[name] = SectionResult(status=int(status) if is_count(status) else None, out=out)
            name = ""
    return results


class Owned(Value):
    """A living process of a job of ours."""

    key: str
    pid: int
    start: int
    state: str
    argv: str


def read_owned(text: str) -> tuple[Owned, ...]:
    """Read the lines of an ``owned`` answer; a line that does not parse raises ValueError: never a shorter list."""
    found = []
    for line in text.splitlines():
        key, pid, start, state, *argv = line.split(" ", 4)
        found.append(Owned(key=key, pid=int(pid), start=int(start), state=state, argv=argv[0] if argv else ""))
    return tuple(found)
