"""Everything that ends the program: an exit code, what was found, where, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the process. Finer findings are a field of ``--json`` output."""

    OK = 0
    GOAL_NOT_MET = 1
    USAGE = 2
    HELD = 3
    HOST = 4
    BUDGET = 5
    INCONCLUSIVE = 6
    JOURNAL = 7
    DEFECT = 70
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an input, with its place and its remedy.

    ``line`` and ``column`` count from 1; 0 means that the place is not known.
    """

    code: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    field: str = ""
    found: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line or "", self.column or "") if part != "")
        head = f"{place}: " if place else ""
        where = f"{self.field}: " if self.field else ""
        found = f" (found {self.found})" if self.found else ""
        tail = f"\n    {self.remedy}" if self.remedy else ""
        return f"{head}{self.code}: {where}{self.message}{found}{tail}"


@dataclass
class AgentError(Exception):
    """An error with a message fit for the operator: what happened, and what to do next."""

    what: str
    remedy: str = ""
    code: str = "E_AGENT"
    finding: int = 0
    exit: Exit = field(default=Exit.USAGE, kw_only=True)

    def __str__(self) -> str:
        return f"{self.code}: {self.what}" + (f"\n    {self.remedy}" if self.remedy else "")


@dataclass
class PlaybookError(AgentError):
    """The playbook cannot be used; every problem found is listed, nothing was contacted."""

    problems: tuple[Problem, ...] = field(default=(), kw_only=True)
    unchecked: str = field(default="", kw_only=True)
    """What could not be looked at before these are right; more problems may be there."""
    code: str = "E_PLAYBOOK"

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems) or super().__str__()


@dataclass
class HostError(AgentError):
    """A host or the way to it failed; nothing is known about what was asked."""

    code: str = "E_HOST"
    exit: Exit = field(default=Exit.HOST, kw_only=True)


@dataclass
class JournalError(AgentError):
    """The journal cannot be written, read or believed; or it is in use, or in the way, and nothing is wrong with it."""

    code: str = "E_JOURNAL"
    exit: Exit = field(default=Exit.JOURNAL, kw_only=True)

    def __post_init__(self) -> None:
        """Who asks for a journal that somebody else writes, or for a place that is taken, is not told of damage."""
        if self.code in ("E_JOURNAL_LOCKED", "E_JOURNAL_EXISTS"):
            self.exit = Exit.USAGE
