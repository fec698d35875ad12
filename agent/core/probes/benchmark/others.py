"""What other benchmark tools leave behind: sglang's batch and speculation sweeps, AIPerf, GuideLLM, llama-bench.

Each reader takes the tool's own field names and gives back one result, or None for what is not its output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .numbers import count, load_lenient, mapping, measure, numbers, word
from .result import BenchmarkResult, Latency, goodput, together

Limits = Mapping[str, float]


def rows_of(text: str, *wanted: str) -> list[dict[str, Any]]:
    """Return the JSON objects, one a line, that have all these keys."""
    found = [mapping(load_lenient(line)) for line in text.split("\n") if line.startswith("{")]
    return [row for row in found if all(key in row for key in wanted)]


# ---------------------------------------------------------------- sglang


def read_batches(text: str) -> BenchmarkResult | None:
    """Read ``sglang.benchmark.one_batch_server``: a line a case, appended to its file.

    Its ``output_throughput`` leaves the prefill out; ours, tokens over the whole latency, does not. It flushes the
    prefix cache before each case and stops at the first failed request, so a line is a batch that succeeded, except
    where it counted fewer tokens than were asked for. ``acc_length`` -1 means that nobody told.
    """
    rows = rows_of(text, "batch_size", "input_len", "output_len", "latency", "last_ttft")
    parts: dict[str, BenchmarkResult] = {}
    many = len({(row["input_len"], row["output_len"]) for row in rows}) > 1
    for row in rows:
        batch, each = count(row["batch_size"]), count(row["output_len"])
        latency, came = measure(row["latency"]), count(row.get("total_output_tokens"))
        if batch is None or each is None or not latency:
            return None
        tokens = came if came is not None else batch * each
        prompt = batch * (count(row["input_len"]) or 0)
        rate, length = measure(row.get("cache_hit_rate")), measure(row.get("acc_length"))
        name = f"b{batch}" + (f"_in{row['input_len']}_out{row['output_len']}" if many else "")
        parts[name] = BenchmarkResult(
            completed=batch,
            requested=batch,
            output_tokens=tokens,
            expected_output_tokens=None if row.get("num_early_stopped") else batch * each,
            duration_s=latency,
            output_tok_s=tokens / latency,
            req_s=batch / latency,
            prompt_tokens=prompt,
            cached_tokens=round(rate * prompt) if rate is not None else None,
            accept_len=length or None,
            cache="flushed",
            given=numbers({key: row[key] for key in row if key not in ("acc_length", "batch_size")}),
        )
    if len(parts) < 2:
        return next(iter(parts.values()), None)
    return together(parts, [])


def read_speculative(text: str) -> BenchmarkResult | None:
    """Read the newest record of sglang's ``bench_speculative.py``. An accept length it did not find it writes as 1."""
    rows = rows_of(text, "steps", "topk", "num_draft_tokens", "acc_length", "speed")
    if not rows:
        return None
    row = rows[-1]
    length = measure(row["acc_length"])
    return BenchmarkResult(
        output_tokens=count(row.get("completion_tokens")),
        output_tok_s=measure(row["speed"]),
        accept_len=length if length and length != 1.0 else None,
        given=numbers(row),
        whole=False,
    )


# ---------------------------------------------------------------- AIPerf


def read_aiperf(text: str, limits: Limits) -> BenchmarkResult | None:
    """Read ``profile_export_aiperf.json``. Failed requests stand in ``error_request_count``, never in the others.

    A run that broke off says so (``is_complete``, ``was_cancelled``): then nothing is known to have been asked for.
    """
    found = mapping(load_lenient(text))
    if "aiperf_version" not in found or "request_count" not in found:
        return None

    def get(name: str, what: str = "avg") -> float | None:
        return measure(mapping(found.get(name)).get(what))

    done, lost = count(get("request_count")), count(get("error_request_count")) or 0
    broken = found.get("is_complete") is False or found.get("was_cancelled") is True
    asked = done + lost if done is not None and not broken else None
    duration = get("benchmark_duration")
    rate, good = get("goodput"), get("good_request_count")
    own = {
        f"{ours}_ms_{what}": get(theirs, name)
        for ours, theirs in (
            ("ttft", "time_to_first_token"), ("tpot", "inter_token_latency"), ("e2e", "request_latency"))
        for what, name in (("mean", "avg"), ("p50", "p50"), ("p95", "p95"), ("p99", "p99"))
    }  # fmt: skip
    tokens = count(get("total_output_tokens")) or count(get("total_osl"))
    errors = found.get("error_summary")
    return BenchmarkResult.model_validate(
        {
            **own,
            "completed": done,
            "requested": asked,
            "output_tokens": tokens,
            "duration_s": duration,
            "output_tok_s": get("output_token_throughput"),
            "req_s": get("request_throughput"),
            "goodput_req_s": rate,
            "slo_share": good / asked if good is not None and asked else None,
            "prompt_tokens": count(get("total_isl")),
            "cached_tokens": count(get("total_usage_prompt_cache_read_tokens")),
            "version": f"aiperf {word(found['aiperf_version'])}",
            "errors": tuple(word(json.dumps(item))[:300] for item in errors[:20]) if isinstance(errors, list) else (),
            "given": numbers(
                {name: mapping(item).get("avg") for name, item in found.items() if isinstance(item, dict)}
            ),
        }
    )


# ---------------------------------------------------------------- GuideLLM


def read_guidellm(text: str, limits: Limits) -> BenchmarkResult | None:
    """Read ``benchmarks.json``: a benchmark for each rate or concurrency it tried, each a workload of its own.

    Requests that were cut off at the end of the window are neither done nor failed and are not counted as asked for.
    """
    found = mapping(load_lenient(text))
    metadata, benchmarks = mapping(found.get("metadata")), found.get("benchmarks")
    if "guidellm_version" not in metadata or not isinstance(benchmarks, list) or not benchmarks:
        return None
    parts: dict[str, BenchmarkResult] = {}
    for place, item in enumerate(benchmarks, 1):
        part, name = _guided(mapping(item), limits), _strategy(mapping(item)) or f"b{place}"
        if part is None:
            return None
        parts[name if name not in parts else f"{name}_{place}"] = part
    version = f"guidellm {word(metadata['guidellm_version'])}"
    only = next(iter(parts.values())) if len(parts) == 1 else together(parts, [])
    return only.model_copy(update={"version": version})


def _strategy(benchmark: Mapping[str, Any]) -> str:
    """Return a word for what was tried: ``c8`` for eight streams, ``r2`` for two requests a second."""
    strategy = mapping(mapping(benchmark.get("config")).get("strategy"))
    kind = word(strategy.get("type_"))
    for key, letter in (("streams", "c"), ("rate", "r")):
        value = measure(strategy.get(key))
        if value is not None and kind:
            return f"{letter}{value:g}".replace(".", "p")
    return "c1" if kind == "synchronous" else ""


def _requests(benchmark: Mapping[str, Any], done: int) -> list[Latency]:
    """Return each request's latencies; [] where it kept only a sample of them."""
    kept = mapping(benchmark.get("requests")).get("successful")
    if not isinstance(kept, list) or len(kept) != done:
        return []
    rows: list[Latency] = []
    for row in map(mapping, kept):
        whole = measure(row.get("request_latency"))
        first, each = measure(row.get("time_to_first_token_ms")), measure(row.get("inter_token_latency_ms"))
        rows.append(Latency(first, each, whole * 1000 if whole is not None else None))
    return rows


def _guided(benchmark: Mapping[str, Any], limits: Limits) -> BenchmarkResult | None:
    metrics = mapping(benchmark.get("metrics"))
    totals = mapping(metrics.get("request_totals"))
    done, lost = count(totals.get("successful")), count(totals.get("errored"))
    duration = measure(benchmark.get("duration"))
    if done is None or duration is None:
        return None

    def get(name: str, *path: str, of: str = "successful") -> Any:
        value: Any = mapping(mapping(metrics.get(name)).get(of))
        for step in path:
            value = mapping(value).get(step)
        return value

    own: dict[str, Any] = {}
    for ours, theirs, scale in (
        ("ttft", "time_to_first_token_ms", 1.0),
        ("tpot", "inter_token_latency_ms", 1.0),
        ("e2e", "request_latency", 1000.0),
    ):
        for what, path in (("mean", ("mean",)), ("p50", ("median",)), ("p95", ("percentiles", "p95")),
                           ("p99", ("percentiles", "p99"))):  # fmt: skip
            value = measure(get(theirs, *path))
            own[f"{ours}_ms_{what}"] = value * scale if value is not None else None
    tokens = count(get("output_token_count", "total_sum"))
    asked = done + lost if lost is not None else None
    return BenchmarkResult.model_validate(
        {
            **own,
            "completed": done,
            "requested": asked,
            "output_tokens": tokens,
            "duration_s": duration,
            "output_tok_s": tokens / duration if tokens is not None and duration else None,
            "req_s": done / duration if duration else None,
            **(goodput(rows, limits, asked, duration) if (rows := _requests(benchmark, done)) else {}),
            "prompt_tokens": count(get("prompt_token_count", "total_sum")),
            "given": numbers(
                {name: mapping(mapping(value).get("successful")).get("mean") for name, value in metrics.items()}
            ),
        }
    )


# ---------------------------------------------------------------- llama-bench


def read_llama_bench(text: str) -> BenchmarkResult | None:
    """Read ``llama-bench -o json``: a list with an entry for each test, ``pp512`` (prompt) or ``tg128`` (generation).

    It loads the model by itself: there are no requests, and what it measures is the library, not a server.
    """
    start = text.find("[")
    found = load_lenient(text[start:]) if start >= 0 else None
    if not isinstance(found, list) or not found:
        return None
    given: dict[str, float] = {}
    speed: float | None = None
    last: Mapping[str, Any] = {}
    for item in found:
        row = mapping(item)
        if "avg_ts" not in row or "n_gen" not in row:
            return None
        prompt, gen, depth = (count(row.get(name)) or 0 for name in ("n_prompt", "n_gen", "n_depth"))
        name = "_".join(
            part for part, size in ((f"pp{prompt}", prompt), (f"tg{gen}", gen), (f"d{depth}", depth)) if size
        )
        given |= {f"{name}_{what}": value for what in ("avg_ts", "stddev_ts") if (value := measure(row.get(what)))}
        if gen and not prompt:
            speed = measure(row["avg_ts"])
        last = row
    return BenchmarkResult(
        output_tok_s=speed,
        given=given,
        model=word(last.get("model_filename")),
        version=f"llama.cpp b{count(last.get('build_number')) or 0} {word(last.get('build_commit'))[:12]}",
        whole=False,
    )
