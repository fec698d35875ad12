"""The document of the load script that comes with the agent (``agent-bench/1``), and of scripts of the user's own.

The script records every request and computes nothing; means and percentiles are made here, so that an old journal
can be read again with better rules. A script of the user's own may print the same document, or
``{"metrics": {name: number}}``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .numbers import METRICS_MAX, count, mapping, measure, word
from .result import METRICS, REQUESTS_MAX, BenchmarkResult, Latency, goodput, latencies, together

SCHEMA = "agent-bench/1"
WORKLOADS_MAX = 32


def read_metrics(document: dict[str, Any]) -> BenchmarkResult | None:
    """Read ``{"metrics": {name: number}}``; None when one of them is no number."""
    metrics = document.get("metrics")
    if not isinstance(metrics, dict) or not metrics or len(metrics) > METRICS_MAX:
        return None
    given: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e15 or len(name) > 100:
            return None
        if name in METRICS and value < 0:
            return None  # a time or a count below zero: whatever wrote this did not measure
        given[word(name)] = float(value)
    counts = ("completed", "requested", "output_tokens", "draft_tokens", "accepted_tokens", "drafts", "cached_tokens")
    known: dict[str, Any] = {name: count(given[name]) for name in counts if name in given}
    rates = ("output_tok_s", "accept_len", "duration_s", "req_s", "goodput_req_s")
    known |= {name: measure(given[name]) for name in rates if name in given}
    return BenchmarkResult(
        **known,
        given=given,
        endpoint=word(document.get("endpoint")),
        model=word(document.get("model")),
        simulated=document.get("simulated") is True,
    )


def read_requests(document: dict[str, Any], limits: Mapping[str, float]) -> BenchmarkResult | None:
    """Read a record of every request. ``limits``: the latencies that count as good, in ms."""
    named = document.get("workloads")
    if named is None:
        found = _window(document, document, limits)
        return found[0] if found is not None else None
    if not isinstance(named, list) or not 1 <= len(named) <= WORKLOADS_MAX:
        return None
    parts: dict[str, BenchmarkResult] = {}
    rows: list[Latency] = []
    for item in named:
        found = _window(item, document, limits) if isinstance(item, dict) else None
        name = word(item.get("name")) if isinstance(item, dict) else ""
        if found is None or not name or name in parts:
            return None
        parts[name] = found[0]
        rows += found[1]
    common = {"errors": (), "warmup": _warmup(document), "warmup_failed": count(document.get("warmup_failed"))}
    whole = together(parts, rows)
    return whole.model_copy(update={**_source(document), **common, "errors": whole.errors})


def _source(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "endpoint": word(document.get("endpoint")),
        "model": word(document.get("model")),
        "tool": word(document.get("tool")),
        "dataset": word(document.get("prompts")),
        "simulated": document.get("simulated") is True,
    }


def _warmup(document: Mapping[str, Any]) -> int | None:
    parameters = document.get("parameters")
    return count(parameters.get("warmup")) if isinstance(parameters, dict) else None


def _window(
    part: dict[str, Any], document: dict[str, Any], limits: Mapping[str, float]
) -> tuple[BenchmarkResult, list[Latency]] | None:
    """Read one measured window: ``part`` has its requests, ``document`` what holds for all windows."""
    parameters, records = part.get("parameters"), part.get("requests")
    if not isinstance(parameters, dict) or not isinstance(records, list) or len(records) > REQUESTS_MAX:
        return None
    if not all(isinstance(record, dict) for record in records):
        return None
    done = [record for record in records if record.get("ok") is True]
    asked, tokens_each = count(parameters.get("requests")), count(parameters.get("output_tokens"))
    if asked is None or tokens_each is None or asked < len(records):
        return None
    wall_s = measure(part.get("wall_s"))
    output = _total(done, "output_tokens")
    causes = Counter(
        word(record.get("error")) or "no reason given" for record in records if record.get("ok") is not True
    )
    exact = parameters.get("stop_at_eos") is False
    rows = _rows(done)
    result = BenchmarkResult(
        completed=len(done),
        requested=asked,
        output_tokens=output,
        expected_output_tokens=asked * tokens_each if exact else None,
        duration_s=wall_s,
        output_tok_s=output / wall_s if output is not None and done and wall_s else None,
        req_s=len(done) / wall_s if done and wall_s else None,
        prompt_tokens=_total(done, "prompt_tokens"),
        cached_tokens=_total(done, "cached_tokens"),
        **goodput(rows, limits, asked, wall_s),
        **latencies(rows),
        **_speculation(part, done, output),
        **_source(document),
        cache=_cache(part, parameters),
        asked=mapping(parameters.get("request")),
        applied=dict(part["applied"]) if isinstance(part.get("applied"), dict) else None,
        warmup=count(parameters.get("warmup")),
        warmup_failed=count(part.get("warmup_failed")),
        errors=tuple(f"{number} × {cause}" for cause, number in causes.most_common(20)),
        text_digests=tuple(sorted({word(record.get("text_sha256")) for record in done} - {""})),
    )
    return result, rows


def _cache(part: Mapping[str, Any], parameters: Mapping[str, Any]) -> Literal["", "flushed", "bypassed", "unique"]:
    """Return how the prefix cache was kept out of the window; '' where the document does not say that it was."""
    if part.get("flushed") is True:
        return "flushed"
    if parameters.get("api") == "llamacpp":
        return "bypassed"  # every request asks not to use it
    # A seed that is drawn anew makes prefixes that no earlier repeat has sent.
    return "unique" if parameters.get("unique_prefix") is True else ""


def _total(records: list[dict[str, Any]], name: str) -> int | None:
    """Return the sum over all requests, or None when one of them does not tell."""
    values = [count(record.get(name)) for record in records]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _speculation(part: dict[str, Any], done: list[dict[str, Any]], output: int | None) -> dict[str, Any]:
    """Return what is known of speculative decoding: each request's own counts before the engine's counters."""
    counters = part.get("counters")
    counters = counters if isinstance(counters, dict) else {}
    drafted, accepted = _total(done, "draft_tokens"), _total(done, "accepted_tokens")
    if drafted is None or accepted is None:
        drafted, accepted = count(counters.get("draft_tokens")), count(counters.get("accepted_tokens"))
    steps, length = _total(done, "verify_steps"), None
    if steps is not None:
        length = output / steps if output is not None and steps else None
    else:
        steps = count(counters.get("drafts"))
        if steps and accepted is not None:
            length = 1 + accepted / steps
    return {
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "drafts": steps,
        "accept_len": length,
        "served_tokens": count(counters.get("generated_tokens")),
    }


def _rows(done: Sequence[Mapping[str, Any]]) -> list[Latency]:
    """Return the latencies of the requests; a request whose times contradict each other tells none."""
    rows: list[Latency] = []
    for record in done:
        first, last = measure(record.get("ttft_s")), measure(record.get("latency_s"))
        tokens = count(record.get("output_tokens"))
        if first is None or last is None or last < first:
            rows.append(Latency(None, None, None))
            continue
        each = (last - first) / (tokens - 1) * 1000 if tokens is not None and tokens > 1 else None
        rows.append(Latency(first * 1000, each, last * 1000))
    return rows
