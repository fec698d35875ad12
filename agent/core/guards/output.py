"""Guards on what a server says: its answer to a fixed question, and lines of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import re2
from pydantic import field_validator

from ..probes.http import read_http
from ..values import Finding, Verdict
from .base import Guard, failed, passed, unknown, waiting
from .view import log_lines

if TYPE_CHECKING:
    from ..evidence import Evidence


class Answers(Guard):
    """The server answers a fixed question with text that is neither empty nor a loop nor made of NaN."""

    poll: ClassVar[bool] = True
    guard: Literal["answers"] = "answers"
    contains: str | None = None
    """A pattern (RE2) that the answer must match."""

    @field_validator("contains")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        return _checked(value) if value is not None else None

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        if evidence.latest("inspect") is None:
            return waiting("the running server was not inspected yet")
        sections = evidence.sections("inspect")
        if sections is None:
            return unknown("the answer to the inspection is not known", "an answer")
        for line in log_lines(evidence):
            if "NaN in the logits" in line:
                return failed(Finding.BAD_OUTPUT, f"the log says: {line[:120]}", "numbers", "the model computes NaN")
        text = evidence.kind.answer(sections)
        if text is None:
            status = read_http(sections.get("answer"))
            if status is not None and status[0] != 200:
                saw = f"the fixed question got HTTP {status[0]:03d}"
                return failed(Finding.SERVER_NOT_READY, saw, "an answer", "healthy, but it does not serve")
            return unknown("there is no answer to the fixed question", "an answer")
        fault = degenerate(text)
        if fault:
            saw = f"{fault}: {text.strip()[:60]!r}"
            return failed(Finding.BAD_OUTPUT, saw, "sensible text", "check weights and the draft's wiring")
        if self.contains is not None and not re2.search(self.contains, text):
            return failed(Finding.BAD_OUTPUT, f"it answered {text.strip()[:80]!r}", f"a match of {self.contains}")
        return passed(f"it answered {text.strip()[:60]!r}")


def degenerate(text: str) -> str:
    """Return what is wrong with a generated text as such; '' when nothing is."""
    words = text.split()
    if not words:
        return "the answer is empty"
    solid = "".join(words)
    if len(solid) >= 16 and len(set(solid)) <= 2:
        return "the answer repeats one character"
    if len(words) >= 12 and max(words.count(word) for word in set(words)) >= 0.8 * len(words):
        return "the answer repeats one word"
    for period in (2, 3):
        if len(words) >= 24 and all(words[place] == words[place - period] for place in range(period, len(words))):
            return f"the answer repeats {period} words"
    return ""


def _checked(pattern: str) -> str:
    try:
        re2.compile(pattern)
    except re2.error as error:
        raise ValueError(f"not a pattern of RE2: {error}") from None
    return pattern


def _posix(pattern: str) -> str:
    """Write an RE2 pattern for ``grep -E``: what POSIX lacks is replaced by its long form."""
    for mine, theirs in ((r"\d", "[0-9]"), (r"\s", "[[:space:]]"), (r"\w", "[[:alnum:]_]"), ("(?:", "(")):
        pattern = pattern.replace(mine, theirs)
    return pattern


class _LogGuard(Guard):
    """The common part of guards on log lines."""

    pattern: str
    finding: Finding = Finding.CRASH

    @field_validator("pattern")
    @classmethod
    def _pattern(cls, value: str) -> str:
        return _checked(value)

    def wants(self) -> str:
        """See the base class."""
        return f"{'no line' if self.guard == 'log_lacks' else 'a line'} of the log that matches `{self.pattern}`"

    def patterns(self) -> tuple[str, ...]:
        """See the base class."""
        return (_posix(self.pattern),)


class LogLacks(_LogGuard):
    """No line of the server's output since its launch matches the pattern (RE2)."""

    guard: Literal["log_lacks"] = "log_lacks"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        lines = log_lines(evidence)
        for line in lines:
            if re2.search(self.pattern, line):
                return failed(self.finding, f"the log says: {line[:160]}", f"no line that matches {self.pattern}")
        return passed(f"{len(lines)} lines seen, none matches")


class LogHas(_LogGuard):
    """A line of the server's output since its launch matches the pattern (RE2); it is waited for until it is up."""

    poll: ClassVar[bool] = True
    guard: Literal["log_has"] = "log_has"
    finding: Finding = Finding.CONFIG_OVERRIDDEN

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        lines = log_lines(evidence)
        for line in lines:
            if re2.search(self.pattern, line):
                return passed(f"the log says: {line[:160]}")
        facts = evidence.watch()
        if facts is not None and not any(code == 200 for _, code in facts.health):
            return waiting(f"{len(lines)} lines seen, none matches yet", f"a line that matches {self.pattern}")
        saw = f"{len(lines)} lines seen, none matches"
        return failed(self.finding, saw, f"a line that matches {self.pattern}")
