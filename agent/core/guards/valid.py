"""A guard on a benchmark's soundness: complete, consistent, cold, quiet, alike. What fails is kept and never used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import re2
from pydantic import Field

from ..probes.benchmark import BenchmarkResult
from ..servers.served import alike
from ..values import Finding, Verdict
from .base import Fraction, Guard, Seconds, failed, passed, unknown
from .config import same
from .load import results_of

if TYPE_CHECKING:
    from ..evidence import Evidence
    from ..plan import Trial
    from ..servers.base import ServerKind

_EAGER = "Decode batch.*cuda graph: False"
_WINDOW = ("Retract requests", "Health check failed", "NVRM: Xid", _EAGER)
"""Lines that spoil a window, beside those that condemn a server."""


class BenchValid(Guard):
    """Every repeat finished what was asked, its numbers agree with each other, and the repeats with one another."""

    guard: Literal["bench_valid"] = "bench_valid"
    cv: Fraction | None = None
    """The largest coefficient of variation between repeats."""
    metric: str = ""
    """What varies between repeats. Default: the goal's metric."""
    min_repeats: int = Field(default=1, ge=1)
    min_duration: Seconds = 0.5
    """A shorter run measured nothing."""
    length_share: Fraction = 0.99
    """At least this share of the tokens that were asked for must have come, where answers have a fixed length."""
    max_cached: Fraction = 0.05
    """At most this share of prompt tokens may come from the prefix cache."""
    warm_ok: bool = False
    """Prompts may come from the prefix cache, and nobody needs to know whether they do."""
    cold_ok: bool = False
    """The first requests may be among those that are measured: nothing has to be sent before."""
    unseen_ok: bool = False
    """Further fields of requests may be ones that the server does not say it went by."""
    counts_required: bool = True
    """Without this, a script of the user's own may keep to itself how many requests and tokens there were."""
    max_tok_s: float = 1e6

    def patterns(self) -> tuple[str, ...]:
        """See the base class."""
        return _WINDOW

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        if not evidence.benchmarks:
            return unknown("there is no result of a benchmark", f"{self.min_repeats} results")
        try:
            results = results_of(evidence)
        except ValueError as error:
            return unknown(f"a result cannot be read: {error}", "readable results")
        fault = _window(evidence)
        if fault is not None:
            return fault
        metric = self.metric or evidence.plan.goal.metric
        names = evidence.kind.called(evidence.server, evidence.trial) if evidence.trial is not None else ()
        return self.check(results, metric, evidence.kind, evidence.trial, evidence.server.port, names)

    def check(
        self,
        results: Sequence[BenchmarkResult],
        metric: str = "output_tok_s",
        kind: ServerKind | None = None,
        trial: Trial | None = None,
        port: int | None = None,
        names: Sequence[str] = (),
    ) -> Verdict:
        """Judge results that were read already. Without a kind, nothing is known of the server that was measured.

        ``names``: what its model may be called; () = anything.
        """
        for place, result in enumerate(results, 1):
            for name, part in {"": result, **result.workloads}.items():
                prefix = f"repeat {place}{f' ({name})' if name else ''}: "
                fault = self._fault(part, metric if not name else "", prefix)
                fault = fault or self._requested(part, prefix)
                fault = fault or (self._conditions(part, kind, trial, prefix) if kind is not None else None)
                if fault is not None:
                    return fault
        if (fault := _other_server(results, port, names)) is not None:
            return fault
        if len(results) < self.min_repeats:
            return unknown(f"{len(results)} results", f"at least {self.min_repeats}")
        cv = variation([result.metrics().get(metric) for result in results])
        if self.cv is not None and len(results) > 1:
            if cv is None:
                return unknown(f"the results have no {metric}", f"a variation of at most {self.cv:.2%}")
            if cv > self.cv:
                remedy = "repeat more often, look for other load, for clocks and for power limits"
                return failed(Finding.NOISY, f"variation {cv:.2%}", f"at most {self.cv:.2%}", remedy)
        first = results[-1]
        counts = self.counts_required or first.completed is not None
        words = f"{first.completed} of {first.requested} requests" if first.requested else f"{first.completed} requests"
        words = words if counts and first.completed is not None else "counts not told"
        return passed(f"{len(results)} results, {words} each" + (f", variation {cv:.2%}" if cv is not None else ""))

    def _fault(self, result: BenchmarkResult, metric: str, prefix: str) -> Verdict | None:
        done, asked = result.completed, result.requested
        duration, tokens, speed = result.duration_s, result.output_tokens, result.output_tok_s
        if any(value is not None and not math.isfinite(value) for value in (duration, tokens, speed)):
            return unknown(f"{prefix}it has numbers that are none", "finite numbers")
        if done == 0:
            saw = f"{prefix}none of {asked or 'the'} requests succeeded in {duration} s"
            remedy = "the server was not ready, or refuses: ask it once by hand; zeros are no measurement"
            return failed(Finding.SERVER_NOT_READY, saw, "answers", remedy, (Finding.INCOMPLETE_RUN,))
        if done is not None and asked is not None and done < asked:
            remedy = "look at the errors in its output and in the server's log: the numbers are of the survivors"
            saw = f"{prefix}{done} of {asked} requests succeeded"
            return failed(Finding.INCOMPLETE_RUN, saw, f"{asked}", remedy)
        if result.errors:
            remedy = "read what it printed: numbers of a run that failed are not used"
            return failed(Finding.INCOMPLETE_RUN, f"{prefix}{result.errors[0][:160]}", "no error", remedy)
        own = result.metrics().get(metric or "output_tok_s")
        if not result.whole:
            return None if own is not None and own > 0 else unknown(f"{prefix}it has no {metric}", "a number above 0")
        if done is None and not self.counts_required and (own or 0) > 0:
            return None
        if done is None:
            return unknown(f"{prefix}it does not say how many requests succeeded", "completed, requested, tokens, time")
        if asked is None:
            return unknown(f"{prefix}it does not say how many requests were asked for", "completed = asked")
        if duration is None or tokens is None or speed is None:
            return unknown(f"{prefix}duration, tokens or speed are missing", "all three")
        return self._implausible(result, prefix, duration, tokens, speed)

    def _implausible(
        self, result: BenchmarkResult, prefix: str, duration: float, tokens: int, speed: float
    ) -> Verdict | None:
        wrong, expected = "", result.expected_output_tokens
        if 0 < duration < self.min_duration:
            remedy = "ask for more requests or tokens in a repeat, or lower `min_duration` of bench_valid"
            saw = f"{prefix}{tokens} tokens in {duration:g} s: too short to tell a speed"
            return failed(Finding.IMPLAUSIBLE, saw, f"at least {self.min_duration:g} s (min_duration)", remedy)
        if duration <= 0 or tokens <= 0 or speed <= 0 or speed > self.max_tok_s:
            wrong = f"{tokens} tokens in {duration:g} s at {speed:g} tok/s"
        elif abs(tokens / duration - speed) > 0.01 * speed:
            wrong = f"{tokens} tokens in {duration:g} s are {tokens / duration:.2f} tok/s, it says {speed:.2f}"
        elif (result.completed or 0) > tokens:
            wrong = f"{result.completed} requests and only {tokens} tokens"
        elif expected and tokens > 1.01 * expected:
            wrong = f"{tokens} tokens came where {expected} were asked for"
        wrong = wrong or _percentiles(result)
        if wrong:
            return failed(Finding.IMPLAUSIBLE, f"{prefix}{wrong}", "numbers that agree", "do not use this result")
        if expected and tokens < self.length_share * expected:
            saw = f"{prefix}{tokens} of {expected} tokens came"
            remedy = "answers ended early: ignore the end mark, or compare only runs of equal length"
            return failed(Finding.INCOMPLETE_RUN, saw, f"{self.length_share:.0%} of them", remedy)
        cached, prompt = result.cached_tokens, result.prompt_tokens
        if not self.warm_ok and cached and (prompt is None or cached > self.max_cached * prompt):
            saw = f"{prefix}{cached} prompt tokens came from the cache" + (f" of {prompt}" if prompt else "")
            remedy = "flush the cache before each run, or vary the prompts"
            return failed(Finding.CACHE_WARM, saw, f"at most {self.max_cached:.0%}", remedy)
        served = result.served_tokens
        if served is not None and served > 1.1 * tokens + 64:
            saw = f"{prefix}the server generated {served} tokens meanwhile, {tokens} of them for us"
            return failed(Finding.IMPLAUSIBLE, saw, "no other load", "somebody else uses this server")
        return None

    def _requested(self, result: BenchmarkResult, prefix: str) -> Verdict | None:
        """Judge whether the server went by the further fields of requests: what it does not know it ignores."""
        applied = result.applied
        if not result.asked or self.unseen_ok:
            return None
        wanted = "each further field in the server's own account of the request"
        if applied is None:
            saw = f"{prefix}whether the server goes by {', '.join(result.asked)} is not known"
            return unknown(saw, f"{wanted}; else `unseen_ok`")
        odd = [
            f"{name}: asked {asked}, " + (f"in effect {applied[name]}" if name in applied else "unknown to the server")
            for name, asked in result.asked.items()
            if name not in applied or not same(asked, applied[name])
        ]
        if not odd:
            return None
        remedy = "this release does not know the field, or changes it: every point of its sweep is the same"
        return failed(Finding.CONFIG_OVERRIDDEN, f"{prefix}{'; '.join(odd)[:200]}", wanted, remedy)

    def _conditions(
        self, result: BenchmarkResult, kind: ServerKind, trial: Trial | None, prefix: str
    ) -> Verdict | None:
        """Judge what was so while it was measured: warm, from no cache, with accept lengths that can be."""
        if not result.whole or result.completed is None or kind.name == "command":
            return None
        if result.warmup_failed:
            remedy = "the server was not ready: ask it once by hand"
            saw = f"{prefix}{result.warmup_failed} of the requests before it failed"
            return failed(Finding.SERVER_NOT_READY, saw, "a warm-up that succeeds", remedy)
        if result.warmup == 0 and not self.cold_ok:
            saw = f"{prefix}nothing was sent before it: the first requests are slower"
            remedy = "write `benchmark: {warmup: 1}`, or `cold_ok: true` at the guard bench_valid where this is meant"
            return unknown(saw, "`warmup: 1`, or cold_ok", remedy=remedy)
        if not self.warm_ok and not result.cache and result.cached_tokens is None:
            wanted = "a flush that succeeded, or how many prompt tokens came from the cache; else warm_ok"
            return unknown(f"{prefix}whether prompts came from the prefix cache is not known", wanted)
        length, longest = result.accept_len, kind.longest_accept(trial) if trial is not None else None
        if length is not None and (length < 0.99 or (longest is not None and length > 1.01 * longest)):
            saw = f"{prefix}an accept length of {length:.2f}"
            remedy = "this counter is not of this run, or another configuration runs than was asked for"
            return failed(Finding.IMPLAUSIBLE, saw, f"between 1 and {longest or 'steps + 1'}", remedy)
        return None


def _percentiles(result: BenchmarkResult) -> str:
    for what in ("ttft_ms", "tpot_ms", "e2e_ms"):
        middle, high = getattr(result, f"{what}_p50", None), getattr(result, f"{what}_p99", None)
        if middle is not None and high is not None and middle > high * 1.000001:
            return f"{what}: the median {middle:g} is above the 99th percentile {high:g}"
    return ""


def _window(evidence: Evidence) -> Verdict | None:
    """Judge what the server's log says of the window itself: what was logged before it is another matter."""
    facts = evidence.watch()
    lines = [line for _, line in facts.log] if facts is not None else list(evidence.launch_log)
    working = getattr(evidence.kind, "working", "")
    for place, line in enumerate(lines):
        if "Retract requests" in line:
            remedy = "the cache was too small for this load: fewer requests at once, or more memory for it"
            return failed(Finding.IMPLAUSIBLE, f"the log says: {line[:120]}", "no retracted request", remedy)
        if "NVRM: Xid" in line:
            remedy = "look at the device before anything else is measured on it"
            return failed(Finding.THROTTLED, f"the log says: {line[:120]}", "no Xid", remedy)
        if "Health check failed" in line and not any(working and re2.search(working, later) for later in lines[place:]):
            # Long prefills answer no health check and are no fault; the log goes on, then.
            remedy = "nothing came back for many seconds while it was measured: look for a stall, then measure again"
            return failed(Finding.HANG, f"the log says: {line[:120]}", "a server that answers", remedy)
        graphs = evidence.trial is not None and evidence.kind.graphs(evidence.trial)
        if graphs and re2.search(_EAGER, line):
            remedy = "steps ran without CUDA graphs: capture this batch size, or switch graphs off on purpose"
            return failed(Finding.CONFIG_OVERRIDDEN, f"the log says: {line[:160]}", "cuda graph: True", remedy)
    return None


def _other_server(results: Sequence[BenchmarkResult], port: int | None, names: Sequence[str]) -> Verdict | None:
    """Return what shows that another server was measured than the one that is up, or two of them."""
    for place, result in enumerate(results, 1):
        match = re2.search(r":(\d{1,5})(?:/|$)", result.endpoint)
        if port is not None and match and int(match[1]) != port:
            remedy = "the numbers belong to another server: point the tool at the one under test"
            return failed(
                Finding.FOREIGN_SERVER, f"repeat {place} measured {result.endpoint[:80]}", f"port {port}", remedy
            )
    models = list(dict.fromkeys(result.model for result in results if result.model))
    strange = [result.model for result in results if result.whole and result.endpoint and result.model]
    strange = [model for model in strange if not any(alike(model, name) for name in names)] if names else []
    if strange:
        remedy = "the numbers belong to another model: look at who answers on this port, and at the tool's arguments"
        saw = f"it measured the model {strange[0][:80]}"
        return failed(Finding.FOREIGN_SERVER, saw, f"{' or '.join(names)[:120]}", remedy)
    if len(models) > 1:
        saw = f"the repeats measured {models[0][:60]} and {models[1][:60]}"
        return failed(Finding.FOREIGN_SERVER, saw, "one model", "another server has taken the port meanwhile")
    return None


def variation(values: Sequence[float | None]) -> float | None:
    """Return the coefficient of variation (sample standard deviation over mean); None below two numbers."""
    numbers = [float(value) for value in values if value is not None]
    if len(numbers) < 2 or len(numbers) != len(values):
        return None
    mean = sum(numbers) / len(numbers)
    if mean == 0:
        return None
    return math.sqrt(sum((value - mean) ** 2 for value in numbers) / (len(numbers) - 1)) / abs(mean)
