"""Guards on measurements: speculation that contributes, a metric within bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ..probes.benchmark import BenchmarkResult, read_benchmark
from ..values import Finding, Verdict, rounded
from .base import Guard, failed, passed, unknown, waiting
from .view import log_lines

if TYPE_CHECKING:
    from ..evidence import Evidence


def results_of(evidence: Evidence) -> list[BenchmarkResult]:
    """Read every repeat of a benchmark; ValueError when one of them is no result."""
    results: list[BenchmarkResult] = []
    for place, text in enumerate(evidence.benchmarks, 1):
        result = read_benchmark(text, evidence.plan.benchmark)
        if result is None:
            raise ValueError(f"repeat {place} is not a result of a known form")
        results.append(result)
    return results


def metrics_of(evidence: Evidence) -> dict[str, float]:
    """Return the mean of every number that all repeats report."""
    return means(results_of(evidence))


def means(results: Sequence[Any]) -> dict[str, float]:
    """Return the mean of every finite number that all results have."""
    columns: dict[str, list[float]] = {}
    for result in results:
        own = getattr(result, "metrics", None)
        names = own() if callable(own) else own if isinstance(own, dict) else _fields(result)
        for name, value in names.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                columns.setdefault(name, []).append(float(value))
    found = {name: rounded(sum(v) / len(v)) for name, v in columns.items() if len(v) == len(results)}
    length = accept_length(results)
    if length is not None:
        found.setdefault("accept_len", rounded(length))
    return found


def _fields(result: Any) -> dict[str, Any]:
    if hasattr(result, "model_dump"):
        return dict(result.model_dump())
    return {name: getattr(result, name) for name in getattr(result, "__dataclass_fields__", {})}


def _total(results: Sequence[Any], name: str) -> float | None:
    values = [getattr(result, name, None) for result in results]
    known = [float(value) for value in values if value is not None]
    return math.fsum(known) if known and len(known) == len(values) else None


def accept_length(results: Sequence[Any]) -> float | None:
    """Return tokens per verification step over all repeats, by the counters of their own requests."""
    own = [getattr(result, "accept_len", None) for result in results]
    known = [float(value) for value in own if value is not None]
    if known and len(known) == len(own):
        return math.fsum(known) / len(known)
    drafts, accepted = _total(results, "drafts"), _total(results, "accepted_tokens")
    tokens = _total(results, "output_tokens")
    if not drafts:
        return None
    if accepted is not None:
        return 1.0 + accepted / drafts
    return tokens / drafts if tokens else None


_USELESS = "the draft does not fit: check the algorithm against the draft's architecture, then its weights"


class Drafting(Guard):
    """Speculation, where it is asked for, really runs and contributes, by the counters of the requests measured."""

    poll: ClassVar[bool] = True
    guard: Literal["drafting"] = "drafting"
    min_accept_len: float = Field(default=1.05, ge=1.0)

    def wants(self) -> str:
        """See the base class."""
        return f"tokens are drafted, and the accept length is at least {self.min_accept_len:g}"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        trial, kind = evidence.trial, evidence.kind
        if trial is None:
            return unknown("there is no trial")
        if not kind.speculates(trial):
            return passed("this trial asks for no speculation")
        if evidence.benchmarks:
            results = results_of(evidence)
            counts = _total(results, "draft_tokens"), _total(results, "drafts")
            silent = getattr(kind, "silent_is_off", True)
            found = self.check(accept_length(results), counts, silent, _total(results, "accepted_tokens"))
            if found is not None:
                return found
        read = getattr(kind, "accept_length", None)
        sections = evidence.sections("inspect")
        length = read(sections or {}, log_lines(evidence)) if read is not None else None
        if length is not None:
            return self._length(length)
        if not evidence.benchmarks and evidence.latest("inspect") is None:
            return waiting("nothing was generated yet")
        return unknown("neither requests nor log say how many tokens were drafted", "an accept length")

    def check(
        self,
        length: float | None,
        counts: tuple[float | None, float | None],
        silent_is_off: bool = True,
        accepted: float | None = None,
    ) -> Verdict | None:
        """Judge counters: (drafted tokens, verification steps), and accepted tokens. None when they do not tell.

        A server that does not count its steps still shows by accepted tokens that its drafts contribute.
        """
        drafted, steps = counts
        if length is not None and drafted != 0:
            return self._length(length)
        if drafted == 0 or steps == 0 or (drafted is None and silent_is_off):
            remedy = "look at the flag that switches speculation on, and at what the shortest draft may be"
            return failed(Finding.SPEC_OFF, "not one token was drafted", "drafted tokens", remedy)
        if drafted is not None and accepted is not None:
            saw = f"{accepted:.0f} of {drafted:.0f} drafted tokens were accepted"
            if accepted > 0:
                return passed(f"{saw}; steps are not counted")
            return failed(Finding.DRAFT_USELESS, saw, "accepted tokens", _USELESS)
        return None

    def _length(self, length: float) -> Verdict:
        saw = f"accept length {length:.2f}"
        if length < self.min_accept_len:
            return failed(Finding.DRAFT_USELESS, saw, f"at least {self.min_accept_len:.2f}", _USELESS)
        return passed(saw)


class Metric(Guard):
    """A metric of the benchmark, its mean over the repeats, is within bounds."""

    guard: Literal["metric"] = "metric"
    name: str = Field(min_length=1)
    above: float | None = None
    below: float | None = None
    finding: Finding = Finding.IMPLAUSIBLE

    @model_validator(mode="after")
    def _bounded(self) -> Metric:
        if self.above is None and self.below is None:
            raise ValueError("a metric needs above, below, or both")
        return self

    def wants(self) -> str:
        """See the base class."""
        bounds = [f"above {self.above:g}"] if self.above is not None else []
        bounds += [f"below {self.below:g}"] if self.below is not None else []
        return f"{self.name} {' and '.join(bounds)}"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        wanted = self.wants()
        if not evidence.benchmarks:
            return unknown("there is no result of a benchmark", wanted)
        value = metrics_of(evidence).get(self.name)
        if value is None:
            return unknown(f"the results have no {self.name}", wanted)
        low = self.above is not None and value <= self.above
        high = self.below is not None and value >= self.below
        if low or high:
            return failed(self.finding, f"{self.name} is {value:g}", wanted)
        return passed(f"{self.name} is {value:g}")
