"""What a benchmark printed, read with suspicion: one JSON document from a host, turned into numbers or into None.

The script that comes with the agent records every request and computes nothing; means and percentiles are made
here, so that an old journal can be read again with better rules. A script of the user's own may print the same
document, or ``{"metrics": {name: number}}``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..values import Value, digest

if TYPE_CHECKING:
    from ..plan import Benchmark, Server, Workload

DOCUMENT_CHARS_MAX = 16 * 1024 * 1024
REQUESTS_MAX = 100_000
METRICS_MAX = 200
PROMPTS_INLINE_CHARS_MAX = 16 * 1024
"""Prompts up to this size travel on the script's command line, longer ones as a file of the job."""

SCHEMA = "agent-bench/1"
BUILTIN = "bench.py"
API = {
    "sglang": ("sglang", "--flush", "--unique-prefix"),
    "vllm": ("vllm", "--unique-prefix", "--seed", "-1"),
    "llamacpp": ("llamacpp",),
    "command": ("openai", "--unique-prefix", "--seed", "-1"),
}
"""The protocol of each server kind, and how its prefix cache is kept out of the measurement.

llama.cpp is asked not to use it, SGLang to empty it; elsewhere every prompt of every repeat begins differently.
"""


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
    ttft_ms_mean: float | None = None
    ttft_ms_p50: float | None = None
    ttft_ms_p99: float | None = None
    tpot_ms_mean: float | None = None
    tpot_ms_p50: float | None = None
    tpot_ms_p99: float | None = None
    e2e_ms_mean: float | None = None
    e2e_ms_p50: float | None = None
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
    """SHA-256 of the script that measured, by its own account."""
    errors: tuple[str, ...] = ()
    text_digests: tuple[str, ...] = ()
    """Digests of the answers, one for each different text, sorted: equal sets mean equal answers."""
    given: dict[str, float] = {}
    """Metrics that a user's own script reported by name."""
    simulated: bool = False
    """The server, or the script, said that these numbers are simulated: they say nothing about a real one."""

    def metrics(self) -> dict[str, float]:
        """Return every number that is known, by its name; what the script itself reported comes on top.

        Simulated numbers are marked among themselves by ``simulated`` = 1, so that no table can lose it.
        """
        found: dict[str, float] = {}
        for name in METRICS:
            value = getattr(self, name)
            if value is not None:
                found[name] = float(value)
        return found | self.given | ({"simulated": 1.0} if self.simulated else {})


METRICS = tuple(
    name
    for name, field in BenchmarkResult.model_fields.items()
    if field.annotation in (int | None, float | None) and name != "expected_output_tokens"
)


# ---------------------------------------------------------------- hostile JSON


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(f"not a number: {text}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"not a finite number: {text[:40]}")
    return number


def load_json(text: str) -> Any:
    """Return the JSON value, or None for anything that is not strict JSON of a sane size.

    NaN, Infinity, 1e999, duplicate keys, and nesting or integers without end are refused.
    """
    if len(text) > DOCUMENT_CHARS_MAX:
        return None
    try:
        return json.loads(text, object_pairs_hook=_pairs, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def load_document(text: str) -> dict[str, Any] | None:
    """Return the one JSON object in this output: the whole of it, or its last line when others stand before."""
    stripped = text.strip()
    lines = stripped.rsplit("\n", 1)
    for candidate in dict.fromkeys((stripped, lines[-1].strip())):
        value = load_json(candidate) if candidate.startswith("{") else None
        if isinstance(value, dict):
            return value
    return None


def count(value: Any) -> int | None:
    """Return a count (a whole number from 0 to 2**53), or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 2**53:
        return None
    return int(value) if value == int(value) else None


def measure(value: Any) -> float | None:
    """Return a finite number that is not negative, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e15:
        return None
    return float(value)


def word(value: Any) -> str:
    """Return a short text that can be written as UTF-8, or ''."""
    return value[:500].encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else ""


# ---------------------------------------------------------------- reading


def read_benchmark(text: str) -> BenchmarkResult | None:
    """Read what a benchmark script printed; None when it is not a document that this agent knows."""
    document = load_document(text)
    if document is None:
        return None
    if document.get("schema") == SCHEMA:
        return _read_requests(document)
    return _read_metrics(document)


def _read_metrics(document: dict[str, Any]) -> BenchmarkResult | None:
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
    known |= {name: measure(given[name]) for name in ("output_tok_s", "accept_len", "duration_s") if name in given}
    return BenchmarkResult(
        **known,
        given=given,
        endpoint=word(document.get("endpoint")),
        model=word(document.get("model")),
        simulated=document.get("simulated") is True,
    )


def _read_requests(document: dict[str, Any]) -> BenchmarkResult | None:
    parameters, records = document.get("parameters"), document.get("requests")
    if not isinstance(parameters, dict) or not isinstance(records, list) or len(records) > REQUESTS_MAX:
        return None
    if not all(isinstance(record, dict) for record in records):
        return None
    done = [record for record in records if record.get("ok") is True]
    asked, tokens_each = count(parameters.get("requests")), count(parameters.get("output_tokens"))
    if asked is None or tokens_each is None or asked < len(records):
        return None
    wall_s = measure(document.get("wall_s"))
    output = _total(done, "output_tokens")
    rate = output / wall_s if output is not None and done and wall_s else None
    causes = Counter(
        word(record.get("error")) or "no reason given" for record in records if record.get("ok") is not True
    )
    exact = parameters.get("stop_at_eos") is False
    return BenchmarkResult(
        completed=len(done),
        requested=asked,
        output_tokens=output,
        expected_output_tokens=asked * tokens_each if exact else None,
        duration_s=wall_s,
        output_tok_s=rate,
        prompt_tokens=_total(done, "prompt_tokens"),
        cached_tokens=_total(done, "cached_tokens"),
        **_latencies(done),
        **_speculation(document, done, output),
        endpoint=word(document.get("endpoint")),
        model=word(document.get("model")),
        tool=word(document.get("tool")),
        errors=tuple(f"{number} × {cause}" for cause, number in causes.most_common(20)),
        text_digests=tuple(sorted({word(record.get("text_sha256")) for record in done} - {""}))[:REQUESTS_MAX],
        simulated=document.get("simulated") is True,
    )


def _total(records: list[dict[str, Any]], name: str) -> int | None:
    """Return the sum over all requests, or None when one of them does not tell."""
    values = [count(record.get(name)) for record in records]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _speculation(document: dict[str, Any], done: list[dict[str, Any]], output: int | None) -> dict[str, Any]:
    """Return what is known of speculative decoding: each request's own counts before the engine's counters."""
    counters = document.get("counters")
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


def percentile(values: list[float], share: float) -> float:
    """Return the percentile by linear interpolation between the two nearest of the sorted values."""
    place = (len(values) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def _latencies(done: list[dict[str, Any]]) -> dict[str, float]:
    """Return mean, median and 99th percentile of the three latencies, in ms, of requests that tell them."""
    columns: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": []}
    for record in done:
        first, last = measure(record.get("ttft_s")), measure(record.get("latency_s"))
        tokens = count(record.get("output_tokens"))
        if first is None or last is None or last < first:
            continue
        columns["ttft"].append(first * 1000)
        columns["e2e"].append(last * 1000)
        if tokens is not None and tokens > 1:
            columns["tpot"].append((last - first) / (tokens - 1) * 1000)
    found: dict[str, float] = {}
    for name, values in columns.items():
        if values:
            values.sort()
            found[f"{name}_ms_mean"] = math.fsum(values) / len(values)
            found[f"{name}_ms_p50"] = percentile(values, 0.5)
            found[f"{name}_ms_p99"] = percentile(values, 0.99)
    return found


# ---------------------------------------------------------------- asking


def prompts_text(workload: Workload) -> str:
    """Return the prompts as the JSON list that the script reads: pure ASCII, no line breaks."""
    return json.dumps(list(workload.prompts))


def generated_files(workload: Workload) -> dict[str, bytes]:
    """Return the files that a job with this workload needs beside its script, by SHA-256; mostly none."""
    data = prompts_text(workload).encode()
    return {digest(data): data} if len(data) > PROMPTS_INLINE_CHARS_MAX else {}


def prompt_words(workload: Workload) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the words that hand over the prompts, and the job's files (name to SHA-256) that they name."""
    files = generated_files(workload)
    if not files:
        return ("--prompts", prompts_text(workload)), {}
    return ("--prompts-file", "@job/prompts.json"), {"prompts.json": next(iter(files))}


def bench_command(benchmark: Benchmark, server: Server) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line of one repeat and the job's files, by name, as SHA-256.

    A script of the user's own gets its own arguments and nothing else; where to send requests stands in the
    environment (``AGENT_PORT``, ``AGENT_URL``). It must be executable by ``python3``, or by ``sh`` if it ends in .sh.
    """
    if benchmark.script != "builtin":
        name = benchmark.script.rsplit("/", 1)[-1]
        shell = "sh" if name.endswith(".sh") else "python3"
        return (shell, f"@job/{name}", *benchmark.args), {name: benchmark.sha256}
    load = benchmark.workload
    words, files = prompt_words(load)
    argv = (
        *("python3", f"@job/{BUILTIN}", "--port", str(server.port), "--api", *API[server.kind]),
        *("--output-tokens", str(load.output_tokens), "--requests", str(load.requests)),
        *("--concurrency", str(load.concurrency), "--warmup", str(load.warmup)),
        *words,
        *benchmark.args,
    )
    return argv, {BUILTIN: benchmark.sha256, **files}
