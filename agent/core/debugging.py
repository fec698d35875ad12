"""The part of a plan that says what is to be found out: hypotheses, or a fault to be narrowed down."""

from __future__ import annotations

from typing import Literal

from pydantic import StrictBool, StrictFloat, StrictInt, StrictStr

from .changes import HostChange, cost
from .guards import AnyGuard
from .values import Value

FlagGiven = StrictBool | StrictInt | StrictFloat | StrictStr | None


class Delta(Value):
    """A difference from the server's own settings: flags, environment, and what lies on the host. None = not given."""

    name: str
    flags: dict[str, FlagGiven] = {}
    env: dict[str, str | None] = {}
    files: tuple[HostChange, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it changes nothing: then it can be tested on a server that is up anyway."""
        return not (self.flags or self.env or self.files)

    @property
    def cost(self) -> int:
        """Return a rank: 0 needs no launch, 1 needs one, 2 and 3 need a commit or a package changed before it."""
        return 0 if self.empty else max([1, *(cost(one) for one in self.files)])


class Hypothesis(Delta):
    """A possible cause: a change that would show it, and what would then be seen, said before the test."""

    because: str
    predict: tuple[AnyGuard, ...]
    """All of them hold: supported. One does not: refuted. One cannot tell: undecided."""
    evidence: tuple[AnyGuard, ...] = ()
    """What has to hold for the test to count at all."""
    revert: Literal["always", "unless-supported", "never"] = "unless-supported"
    rules_out: dict[Literal["supported", "refuted"], tuple[str, ...]] = {}
    """Which other hypotheses need no test after this verdict."""


class Check(Value):
    """A script that runs beside the server and prints metrics as one JSON object."""

    script: str
    sha256: str = ""
    args: tuple[str, ...] = ()
    timeout_s: float = 600.0


class Bisect(Value):
    """A fault that is there at the end of a list and not at its beginning, or that some of a set of changes bring.

    ``bad`` are the guards that hold where the fault is; one that fails says that it is not there.
    """

    mode: Literal["ordered", "subset"]
    points: tuple[Delta, ...]
    bad: tuple[AnyGuard, ...]
    confirm: bool = True


class Debug(Value):
    """What a debug campaign is to find out."""

    healthy: tuple[AnyGuard, ...] = ()
    """What a server without the fault shows; where it holds of the baseline there is nothing to find."""
    hypotheses: tuple[Hypothesis, ...] = ()
    until: Literal["supported", "all"] = "supported"
    bisect: Bisect | None = None
    checks: dict[str, Check] = {}
    collect: Literal["failures", "always", "never"] = "failures"
    tools: dict[str, str] = {}
    """Digests of the scripts that run on the host, by name."""

    def guards(self) -> tuple[AnyGuard, ...]:
        """Return every guard that may be judged of a server under test."""
        found = [*self.healthy, *(self.bisect.bad if self.bisect else ())]
        for one in self.hypotheses:
            found += [*one.predict, *one.evidence]
        return tuple(found)

    def of(self, trial: str) -> Hypothesis | None:
        """Return the hypothesis that a trial tests."""
        return next((one for one in self.hypotheses if one.name == trial), None)
