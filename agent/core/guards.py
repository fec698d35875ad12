"""What must hold before a state may be left: a closed union of checks, each a value with one pure method.

A guard compares what was asked with what is so. It answers PASS only on evidence; evidence that is missing,
lost or unreadable is UNKNOWN. A guard that raises is UNKNOWN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from .values import Finding, Result, Value, Verdict

if TYPE_CHECKING:
    from .evidence import Evidence


def passed(saw: str) -> Verdict:
    """Say that it holds, and what was seen."""
    return Verdict(result=Result.PASS, saw=saw)


def waiting(saw: str, wanted: str = "") -> Verdict:
    """Say that it does not hold yet and may still come."""
    return Verdict(result=Result.WAIT, saw=saw, wanted=wanted)


def unknown(saw: str, wanted: str = "", finding: Finding | None = None) -> Verdict:
    """Say that the evidence does not tell."""
    return Verdict(result=Result.UNKNOWN, saw=saw, wanted=wanted, finding=finding)


def failed(finding: Finding, saw: str, wanted: str, remedy: str = "", also: tuple[Finding, ...] = ()) -> Verdict:
    """Say that it does not hold, of which class, and what would help."""
    return Verdict(result=Result.FAIL, finding=finding, saw=saw, wanted=wanted, remedy=remedy, also=also)


class Guard(Value):
    """The common part. ``poll`` guards may answer WAIT and are asked again with newer observations."""

    poll: ClassVar[bool] = False
    guard: str

    def judge(self, evidence: Evidence) -> Verdict:
        """Return the verdict on this evidence. Pure."""
        raise NotImplementedError


class Alive(Guard):
    """The launched server's process is there, by pid and start time."""

    guard: Literal["alive"] = "alive"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        facts = evidence.watch()
        if facts is None or facts.state is None:
            return unknown("no state of the server's job was seen", "a live job")
        match facts.state.word:
            case "LIVE" | "ORPHANED":
                return passed(f"supervisor {facts.state.pid} is there")
            case "EXITED":
                return failed(Finding.CRASH, f"the server ended with status {facts.state.rc}", "a live server")
            case "LOST":
                return failed(Finding.CRASH, f"the server's job is gone ({facts.state.why})", "a live server")
        return unknown(f"the host says {facts.state.word}", "a live job")


class LogLacks(Guard):
    """No line of the server's output matches the pattern (RE2)."""

    guard: Literal["log_lacks"] = "log_lacks"
    pattern: str

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        import re2

        for line in evidence.launch_log:
            if re2.search(self.pattern, line):
                return failed(Finding.CRASH, f"the log says: {line[:160]}", f"no line that matches {self.pattern}")
        return passed(f"{len(evidence.launch_log)} lines seen, none matches")


AnyGuard = Annotated[Alive | LogLacks, Field(discriminator="guard")]


def judge(guard: Guard, evidence: Evidence) -> Verdict:
    """Ask a guard; an exception inside it is UNKNOWN with its name. The verdict names what was read."""
    evidence.read.clear()
    try:
        verdict = guard.judge(evidence)
    except Exception as error:  # a broken check must never open or slam a gate
        verdict = unknown(f"the check itself failed: {type(error).__name__}: {error}")
    return verdict.model_copy(update={"read": tuple(sorted(evidence.read))})
