"""Guards on measurements: a valid benchmark, speculation that contributes, a metric within bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from pydantic import Field, model_validator

from ..probes.benchmark import BenchmarkResult, read_benchmark
from ..values import Finding, Verdict, rounded
from .base import Fraction, Guard, Seconds, failed, passed, unknown, waiting
from .view import log_lines

if TYPE_CHECKING:
    from ..evidence import Evidence


class Measured(Protocol):
    """What is needed of a benchmark's result here. None: the tool does not tell."""

    @property
    def completed(self) -> int | None: ...  # noqa: D102
    @property
    def requested(self) -> int | None: ...  # noqa: D102
    @property
    def output_tokens(self) -> int | None: ...  # noqa: D102
    @property
    def expected_output_tokens(self) -> int | None: ...  # noqa: D102
    @property
    def duration_s(self) -> float | None: ...  # noqa: D102
    @property
    def output_tok_s(self) -> float | None: ...  # noqa: D102


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


class BenchValid(Guard):
    """Every repeat finished what was asked, its numbers agree with each other, and the repeats with one another."""

    guard: Literal["bench_valid"] = "bench_valid"
    cv: Fraction | None = None
    """The largest coefficient of variation between repeats."""
    metric: str = "output_tok_s"
    min_repeats: int = Field(default=1, ge=1)
    min_duration: Seconds = 0.5
    """A shorter run measured nothing."""
    length_share: Fraction = 0.9
    """At least this share of the tokens that were asked for must have come."""
    max_cached: Fraction = 0.05
    """At most this share of prompt tokens may come from the prefix cache."""
    warm_ok: bool = False
    counts_required: bool = True
    """Without this, a script of the user's own may keep to itself how many requests and tokens there were."""
    max_tok_s: float = 1e6

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        if not evidence.benchmarks:
            return unknown("there is no result of a benchmark", f"{self.min_repeats} results")
        try:
            results = results_of(evidence)
        except ValueError as error:
            return unknown(f"a result cannot be read: {error}", "readable results")
        for line in log_lines(evidence):
            if "Retract requests" in line:
                remedy = "the cache was too small for this load: fewer requests at once, or more memory for it"
                return failed(Finding.IMPLAUSIBLE, f"the log says: {line[:120]}", "no retracted request", remedy)
        return self.check(results)

    def check(self, results: Sequence[Any]) -> Verdict:
        """Judge results that were read already."""
        for place, result in enumerate(results, 1):
            fault = self._fault(result, f"repeat {place}: ")
            if fault is not None:
                return fault
        if len(results) < self.min_repeats:
            return unknown(f"{len(results)} results", f"at least {self.min_repeats}")
        cv = variation([getattr(result, self.metric, None) for result in results])
        if self.cv is not None and len(results) > 1:
            if cv is None:
                return unknown(f"the results have no {self.metric}", f"a variation of at most {self.cv:.2%}")
            if cv > self.cv:
                remedy = "repeat more often, look for other load, for clocks and for power limits"
                return failed(Finding.NOISY, f"variation {cv:.2%}", f"at most {self.cv:.2%}", remedy)
        first = results[-1]
        counts = self.counts_required or first.completed is not None
        words = f"{first.completed} of {first.requested} requests" if first.requested else f"{first.completed} requests"
        words = words if counts else "counts not told"
        return passed(f"{len(results)} results, {words} each" + (f", variation {cv:.2%}" if cv is not None else ""))

    def _fault(self, result: Any, prefix: str) -> Verdict | None:
        done, asked = result.completed, result.requested
        duration, tokens, speed = result.duration_s, result.output_tokens, result.output_tok_s
        numbers = (duration, tokens, speed)
        if any(value is not None and not math.isfinite(value) for value in numbers):
            return unknown(f"{prefix}it has numbers that are none", "finite numbers")
        if done is None and not self.counts_required and (getattr(result, self.metric, None) or 0) > 0:
            return None
        if done is None:
            return unknown(f"{prefix}it does not say how many requests succeeded", "completed, requested, tokens, time")
        if done == 0:
            saw = f"{prefix}none of {asked or 'the'} requests succeeded in {duration} s"
            remedy = "the server was not ready, or refuses: ask it once by hand; zeros are no measurement"
            return failed(Finding.SERVER_NOT_READY, saw, "answers", remedy, (Finding.INCOMPLETE_RUN,))
        if asked is not None and done < asked:
            remedy = "look at the errors in its output and in the server's log: the numbers are of the survivors"
            saw = f"{prefix}{done} of {asked} requests succeeded"
            return failed(Finding.INCOMPLETE_RUN, saw, f"{asked}", remedy)
        if asked is None:
            return unknown(f"{prefix}it does not say how many requests were asked for", "completed = asked")
        if duration is None or tokens is None or speed is None:
            return unknown(f"{prefix}duration, tokens or speed are missing", "all three")
        return self._implausible(result, prefix, duration, tokens, speed)

    def _implausible(self, result: Any, prefix: str, duration: float, tokens: int, speed: float) -> Verdict | None:
        wrong = ""
        if duration < self.min_duration or tokens <= 0 or speed <= 0 or speed > self.max_tok_s:
            wrong = f"{tokens} tokens in {duration:g} s at {speed:g} tok/s"
        elif abs(tokens / duration - speed) > 0.01 * speed:
            wrong = f"{tokens} tokens in {duration:g} s are {tokens / duration:.2f} tok/s, it says {speed:.2f}"
        elif result.completed > tokens:
            wrong = f"{result.completed} requests and only {tokens} tokens"
        for name in _fields(result):
            value = getattr(result, name)
            if name.endswith(("_ms", "_s")) and isinstance(value, (int, float)) and value < 0:
                wrong = wrong or f"{name} is {value:g}"
        wrong = wrong or _percentiles(result)
        if wrong:
            return failed(Finding.IMPLAUSIBLE, f"{prefix}{wrong}", "numbers that agree", "do not use this result")
        expected = result.expected_output_tokens
        if expected and tokens < self.length_share * expected:
            saw = f"{prefix}{tokens} of {expected} tokens came"
            remedy = "answers ended early: ignore the end mark, or compare only runs of equal length"
            return failed(Finding.INCOMPLETE_RUN, saw, f"{self.length_share:.0%} of them", remedy)
        cached, prompt = getattr(result, "cached_tokens", None), _prompt_tokens(result)
        if not self.warm_ok and cached and (prompt is None or cached > self.max_cached * prompt):
            saw = f"{prefix}{cached} prompt tokens came from the cache" + (f" of {prompt}" if prompt else "")
            remedy = "flush the cache before each run, or vary the prompts"
            return failed(Finding.CACHE_WARM, saw, f"at most {self.max_cached:.0%}", remedy)
        served = getattr(result, "served_tokens", None)
        if served is not None and served > 1.1 * tokens + 64:
            saw = f"{prefix}the server generated {served} tokens meanwhile, {tokens} of them for us"
            return failed(Finding.IMPLAUSIBLE, saw, "no other load", "somebody else uses this server")
        return None


def _prompt_tokens(result: Any) -> int | None:
    for name in ("prompt_tokens", "input_tokens"):
        value = getattr(result, name, None)
        if isinstance(value, int):
            return value
    return None


def _percentiles(result: Any) -> str:
    for what in ("ttft_ms", "tpot_ms"):
        middle, high = getattr(result, f"{what}_p50", None), getattr(result, f"{what}_p99", None)
        if middle is not None and high is not None and middle > high * 1.000001:
            return f"{what}: the median {middle:g} is above the 99th percentile {high:g}"
    return ""


def variation(values: Sequence[float | None]) -> float | None:
    """Return the coefficient of variation (sample standard deviation over mean); None below two numbers."""
    numbers = [float(value) for value in values if value is not None]
    if len(numbers) < 2 or len(numbers) != len(values):
        return None
    mean = sum(numbers) / len(numbers)
    if mean == 0:
        return None
    return math.sqrt(sum((value - mean) ** 2 for value in numbers) / (len(numbers) - 1)) / abs(mean)


_USELESS = "the draft does not fit: check the algorithm against the draft's architecture, then its weights"


class Drafting(Guard):
    """Speculation, where it is asked for, really runs and contributes, by the counters of the requests measured."""

    poll: ClassVar[bool] = True
    guard: Literal["drafting"] = "drafting"
    min_accept_len: float = Field(default=1.05, ge=1.0)

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
