"""What one repeat of a benchmark measured, whoever measured it: one record, and what it says by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ...values import Value
from .numbers import summary

REQUESTS_MAX = 100_000


class Latency(NamedTuple):
    """One request that succeeded, in ms. None: it does not tell. ``tpot`` leaves the first token out."""

    ttft: float | None
    tpot: float | None
    e2e: float | None


class BenchmarkResult(Value):
    """What one repeat measured. None says that the document does not tell; it never means zero.

    ``output_tok_s`` is all output tokens over the wall time of the measured window, prefill included. A *draft* is
    one step in which the engine verified drafted tokens; ``accept_len`` is how many tokens such a step gave.
    """

    completed: int | None = None
    requested: int | None = None
    output_tokens: int | None = None
    expected_output_tokens: int | None = None
    duration_s: float | None = None
    output_tok_s: float | None = None
    req_s: float | None = None
    """Requests that succeeded, a second."""
    goodput_req_s: float | None = None
    """Requests a second that met every latency limit. Of several workloads the best one's: what it can sustain."""
    slo_share: float | None = None
    """The share of the requests asked for that met every limit; a failed request met none."""
    ttft_ms_mean: float | None = None
    ttft_ms_p50: float | None = None
    ttft_ms_p95: float | None = None
    ttft_ms_p99: float | None = None
    tpot_ms_mean: float | None = None
    tpot_ms_p50: float | None = None
    tpot_ms_p95: float | None = None
    tpot_ms_p99: float | None = None
    e2e_ms_mean: float | None = None
    e2e_ms_p50: float | None = None
    e2e_ms_p95: float | None = None
    e2e_ms_p99: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    drafts: int | None = None
    accept_len: float | None = None
    served_tokens: int | None = None
    """Tokens that the server itself counted in the window: more than ours means that somebody else was served."""
    endpoint: str = ""
    model: str = ""
    tool: str = ""
    """SHA-256 of the script or program that measured, by its own account."""
    version: str = ""
    """Name and version of a tool that is not the agent's own."""
    dataset: str = ""
    """Digest of the prompts, or of the files that they came from."""
    cache: Literal["", "flushed", "bypassed", "unique"] = ""
    """How the prefix cache was kept out; '' = not known to have been, so only ``cached_tokens`` can tell."""
    warmup: int | None = None
    """Requests before the measured window that are not counted."""
    warmup_failed: int | None = None
    asked: dict[str, Any] = {}
    """Further fields of each request."""
    applied: dict[str, Any] | None = None
    """Those of them that the server says it went by, with its values; None: it does not say."""
    errors: tuple[str, ...] = ()
    text_digests: tuple[str, ...] = ()
    """Digests of the answers, one for each different text, sorted: equal sets mean equal answers."""
    given: dict[str, float] = {}
    """Metrics that a script or a tool reported under names of its own."""
    workloads: dict[str, BenchmarkResult] = {}
    """By name, where one repeat measured several; the numbers above are then of all of them together."""
    whole: bool = True
    """False: of a tool that has no requests or tokens to count; only its own numbers can be judged."""
    simulated: bool = False
    """The server, or the script, said that these numbers are simulated: they say nothing about a real one."""

    def metrics(self) -> dict[str, float]:
        """Return every number that is known, by its name; what the script itself reported comes on top.

        A number of one of several workloads is called ``NAME_WORKLOAD``. Simulated numbers are marked among
        themselves by ``simulated`` = 1, so that no table can lose it.
        """
        found: dict[str, float] = {}
        for name in METRICS:
            value = getattr(self, name)
            if value is not None:
                found[name] = float(value)
        for own, part in self.workloads.items():
            found |= {f"{name}_{own}": value for name, value in part.metrics().items() if name != "simulated"}
        return found | self.given | ({"simulated": 1.0} if self.simulated else {})


_UNCOUNTED = ("expected_output_tokens", "warmup", "warmup_failed")
METRICS = tuple(
    name
    for name, field in BenchmarkResult.model_fields.items()
    if field.annotation in (int | None, float | None) and name not in _UNCOUNTED
)


def latencies(rows: Iterable[Latency]) -> dict[str, float]:
    """Return mean and percentiles of the three latencies, of the requests that tell them."""
    columns: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": []}
    for row in rows:
        for name, value in zip(columns, row, strict=True):
            if value is not None:
                columns[name].append(value)
    return {f"{name}_ms_{what}": value for name, values in columns.items() for what, value in summary(values).items()}


def goodput(
    rows: Sequence[Latency], limits: Mapping[str, float], requested: int | None, duration_s: float | None
) -> dict[str, float]:
    """Return goodput and share of the requests that met every limit (ms, by ``ttft``, ``tpot``, ``e2e``).

    A request that does not tell a limited latency has not shown that it met it: then nothing is returned, except
    for the time per token of an answer of one token, which has none.
    """
    if not limits or not requested or not duration_s:
        return {}
    good = 0
    for row in rows:
        values = row._asdict()
        if any(values[name] is None for name in limits if name != "tpot"):
            return {}
        good += all(values[name] is None or values[name] <= limit for name, limit in limits.items())
    return {"goodput_req_s": good / duration_s, "slo_share": good / requested}


def together(parts: Mapping[str, BenchmarkResult], rows: Sequence[Latency]) -> BenchmarkResult:
    """Return several workloads of one repeat as one result: sums, and rates over the sum of their windows."""
    results = list(parts.values())

    def total(name: str) -> float | None:
        values = [getattr(result, name) for result in results]
        return sum(values) if all(value is not None for value in values) else None

    names = ("completed", "requested", "output_tokens", "expected_output_tokens", "prompt_tokens", "cached_tokens")
    sums = {name: total(name) for name in (*names, "draft_tokens", "accepted_tokens", "drafts", "served_tokens")}
    duration, tokens, drafts = total("duration_s"), sums["output_tokens"], sums["drafts"]
    lengths = [(result.accept_len, result.drafts) for result in results]
    length = None
    if drafts and all(own is not None or not steps for own, steps in lengths):
        length = sum((own or 0.0) * (steps or 0) for own, steps in lengths) / drafts
    rates = [result.goodput_req_s for result in results if result.goodput_req_s is not None]
    requested = sums["requested"]
    met = [(result.slo_share, result.requested or 0) for result in results]
    share = None
    if requested and all(own is not None for own, _ in met):
        share = sum((own or 0.0) * asked for own, asked in met) / requested
    caches = {result.cache for result in results}
    return BenchmarkResult.model_validate(
        {
            **sums,
            "duration_s": duration,
            "output_tok_s": tokens / duration if tokens is not None and duration else None,
            "req_s": sums["completed"] / duration if sums["completed"] is not None and duration else None,
            "goodput_req_s": max(rates) if len(rates) == len(results) else None,
            "slo_share": share,
            "accept_len": length,
            **latencies(rows),
            "cache": caches.pop() if len(caches) == 1 else "",
            "errors": tuple(f"{name}: {error}" for name, part in parts.items() for error in part.errors)[:20],
            "text_digests": tuple(sorted({text for result in results for text in result.text_digests})),
            "workloads": dict(parts),
        }
    )
