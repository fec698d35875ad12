"""Guards on what a debug campaign gathers: how far a launch came, values in its log, stacks, checks."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Literal

import re2
from pydantic import Field, model_validator

from ..values import Finding, Result, Verdict
from .base import Guard, by_name, failed, names, passed, unknown
from .output import _LogGuard
from .view import log_lines

if TYPE_CHECKING:
    from ..actions import Section
    from ..evidence import Answer, Evidence
    from ..plan import Server


class Reached(Guard):
    """The launch left a state by ``pass``."""

    guard: Literal["reached"] = "reached"
    state: str = Field(min_length=1)

    def wants(self) -> str:
        """See the base class."""
        return f"{self.state} is passed"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        if self.state in evidence.passed:
            return passed(f"{self.state} was passed")
        saw = f"{self.state} was not passed" + (f": {evidence.finding}" if evidence.finding else "")
        return failed(Finding.SERVER_NOT_READY, saw, f"{self.state} passed")


class Fails(Guard):
    """Another guard fails, and of this class: what is wrong is of the kind that was thought."""

    guard: Literal["fails"] = "fails"
    of: str = Field(min_length=1)
    """A guard by its name, with its defaults."""
    finding: Finding

    def wants(self) -> str:
        """See the base class."""
        return f"{self.of} fails with {self.finding}"

    def inner(self) -> Guard:
        """Return the guard that is to fail; ValidationError when there is none of this name without options."""
        return by_name(self.of)

    def asks(self, server: Server) -> tuple[Section, ...]:
        """See the base class."""
        return self.inner().asks(server)

    def patterns(self) -> tuple[str, ...]:
        """See the base class."""
        return self.inner().patterns()

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        verdict = self.inner().judge(evidence)
        if verdict.result is Result.FAIL:
            same = self.finding in (verdict.finding, *verdict.also)
            saw = f"{self.of}: {verdict.finding} {verdict.saw}"
            return passed(saw) if same else failed(verdict.finding or Finding.CRASH, saw, self.wants())
        if verdict.result is Result.PASS:
            return failed(Finding.OURS, f"{self.of} holds: {verdict.saw}", self.wants())
        # What is still waited for has not failed yet; but a class that it names already is told.
        saw = f"{self.of}: {verdict.finding or verdict.result} {verdict.saw}"
        if verdict.finding is None:
            return unknown(saw, self.wants())
        return passed(saw) if verdict.finding is self.finding else failed(verdict.finding, saw, self.wants())


def number_of(text: str) -> float | None:
    """Return the number that a text is; None when it is none, or not finite."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class _Bounded(Guard):
    """The common part of guards on one number or word: ``is``, ``above``, ``below``; at least one of them."""

    is_: float | str | bool | None = Field(default=None, alias="is")
    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _some(self) -> Any:
        if self.is_ is None and self.above is None and self.below is None:
            raise ValueError("it needs is, above or below")
        return self

    def bounds(self) -> str:
        """Say what is wanted of the value."""
        parts = [f"is {self.is_}"] if self.is_ is not None else []
        parts += [f"above {self.above:g}"] if self.above is not None else []
        parts += [f"below {self.below:g}"] if self.below is not None else []
        return " and ".join(parts)

    def compare(self, found: Any, what: str, finding: Finding) -> Verdict:
        """Compare a value with the bounds."""
        wanted = f"{what} {self.bounds()}"
        number = number_of(str(found)) if not isinstance(found, bool) else None
        if self.is_ is not None:
            aim = number_of(str(self.is_)) if not isinstance(self.is_, bool) else None
            same = str(found).lower() == str(self.is_).lower() if aim is None or number is None else number == aim
            if not same:
                return failed(finding, f"{what} is {found}", wanted)
        if (self.above, self.below) != (None, None):
            if number is None:
                return unknown(f"{what} is {found}, which is no number", wanted)
            if (self.above is not None and number <= self.above) or (self.below is not None and number >= self.below):
                return failed(finding, f"{what} is {found}", wanted)
        return passed(f"{what} is {found}")


class LogValue(_Bounded, _LogGuard):
    """A value in the server's log: the first group of the pattern (RE2), in every line that matches it.

    Lines of debugging switches carry sizes and shapes of tensors; here they become numbers. No line: UNKNOWN.
    """

    guard: Literal["log_value"] = "log_value"
    finding: Finding = Finding.CONFIG_OVERRIDDEN

    @model_validator(mode="after")
    def _group(self) -> Any:
        if re2.compile(self.pattern).groups < 1:
            raise ValueError("the pattern needs a group: the part in brackets is the value")
        return self

    def wants(self) -> str:
        """See the base class."""
        return f"`{self.pattern}` in the log {self.bounds()}"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        found = [match[1] for line in log_lines(evidence) if (match := re2.search(self.pattern, line)) is not None]
        if not found:
            return unknown("no line of the log has it", self.wants())
        kinds = list(dict.fromkeys(value or "" for value in found))
        if len(kinds) > 8:
            kinds = kinds[:8]
        verdicts = [self.compare(value, f"the value in {len(found)} lines", self.finding) for value in kinds]
        bad = [verdict for verdict in verdicts if verdict.result.value != "PASS"]
        return bad[0] if bad else verdicts[0]


class Check(_Bounded):
    """A number that a check script of the playbook printed about this server."""

    guard: Literal["check"] = "check"
    name: str = Field(min_length=1)
    """The check, as in ``debug.checks``."""
    metric: str = Field(min_length=1)
    """A key of the JSON object that it printed last."""

    def wants(self) -> str:
        """See the base class."""
        return f"{self.metric} of the check {self.name} {self.bounds()}"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        answer = evidence.latest(f"check-{self.name}")
        values = check_values(answer)
        if values is None:
            return unknown(f"the check {self.name} brought no result", self.wants())
        if self.metric not in values:
            return unknown(f"the check {self.name} says nothing of {self.metric}: {names(list(values))}", self.wants())
        return self.compare(values[self.metric], self.metric, Finding.BAD_OUTPUT)


def check_values(answer: Answer | None) -> dict[str, Any] | None:
    """Return what a check printed: the last line that is a JSON object; None when it failed or there is none."""
    outcome = answer.outcome if answer else None
    if answer is None or getattr(outcome, "status", None) != 0:
        return None
    for line in reversed((answer.text() or "").splitlines()):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return {str(key): value for key, value in found.items()}
    return None


class Collected(Guard):
    """A line of the gathered evidence matches (RE2): stacks, kernel messages, environment, versions, log windows."""

    guard: Literal["collected"] = "collected"
    pattern: str
    part: Literal["stacks", "kernel", "environ", "versions", "log", "processes", "limits", "any"] = "any"
    lacks: bool = False
    """No line must match."""

    @model_validator(mode="after")
    def _compiled(self) -> Any:
        try:
            re2.compile(self.pattern)
        except re2.error as error:
            raise ValueError(f"not a pattern of RE2: {error}") from None
        return self

    def wants(self) -> str:
        """See the base class."""
        return f"{'no line' if self.lacks else 'a line'} of {self.part} that matches `{self.pattern}`"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        answer = evidence.latest("collect")
        text = answer.text() if answer else None
        parts = read_collected(text) if text is not None else None
        chosen = [body for name, body in (parts or {}).items() if self.part in ("any", name)]
        if not chosen:
            return unknown(f"no {self.part} was gathered", self.wants())
        for body in chosen:
            for line in body.splitlines():
                if re2.search(self.pattern, line):
                    saw = f"it says: {line.strip()[:160]}"
                    return failed(Finding.CRASH, saw, self.wants()) if self.lacks else passed(saw)
        saw = f"{sum(len(body.splitlines()) for body in chosen)} lines of {self.part}, none matches"
        if any(NO_SPY in body for body in chosen):
            # The frames of Python were not seen: that none of them matches is not known.
            return unknown(f"{saw}; py-spy is not on the host", self.wants())
        return passed(saw) if self.lacks else failed(Finding.CRASH, saw, self.wants())


NO_SPY = "py-spy: not on this host"
"""What the script says where only the kernel's side of the stacks could be gathered."""


def read_collected(text: str) -> dict[str, str] | None:
    """Split gathered evidence into parts: ``==== NAME`` begins one, ``==== end`` is the last line; None: cut off."""
    if not text.rstrip("\n").endswith("\n==== end"):
        return None
    found: dict[str, str] = {}
    for piece in ("\n" + text).split("\n==== ")[1:]:
        name, _, body = piece.partition("\n")
        if name != "end":
            found[name.strip()] = body
    return found
