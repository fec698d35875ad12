"""What the engines' own benchmark tools print: JSON lines of ``sglang.bench_serving``, JSON of ``vllm bench serve``,
and the block of text of both.

A file of JSON lines is appended to, so its last line is the newest run. ``Infinity`` is written for an unlimited
rate. Neither tool's exit status says anything about how many requests succeeded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import re2 as re

from .benchmark import BenchmarkResult, count, measure

_TEXT = {
    "backend": "backend",
    "traffic request rate": "request_rate",
    "max request concurrency": "max_concurrency",
    "successful requests": "completed",
    "failed requests": "failed",
    "benchmark duration (s)": "duration",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput",
    "output token throughput (tok/s)": "output_throughput",
    "accept length": "accept_length",
    "mean ttft (ms)": "mean_ttft_ms",
    "median ttft (ms)": "median_ttft_ms",
    "p99 ttft (ms)": "p99_ttft_ms",
    "mean tpot (ms)": "mean_tpot_ms",
    "median tpot (ms)": "median_tpot_ms",
    "p99 tpot (ms)": "p99_tpot_ms",
    "mean itl (ms)": "mean_itl_ms",
    "mean e2e latency (ms)": "mean_e2e_latency_ms",
    "median e2e latency (ms)": "median_e2e_latency_ms",
    "p99 e2e latency (ms)": "p99_e2e_latency_ms",
}
_LINE_MAX = 4 << 20


def read_text(text: str) -> dict[str, Any] | None:
    """Read the last block ``Serving Benchmark Result``; None when there is none that came to its end."""
    start = text.rfind(" Serving Benchmark Result ")
    if start < 0 or "\n" + "=" * 50 not in text[start:]:
        return None
    found: dict[str, Any] = {}
    for line in text[start:].splitlines():
        name, colon, value = line.partition(":")
        key = _TEXT.get(name.strip().lower())
        if colon and key is not None:
            found[key] = _value(value.strip())
    for name in ("num_prompts", "random_output_len", "flush_cache"):
        match = re.search(rf"\b{name}=([A-Za-z0-9.]+)", text[:start])
        if match:
            found[name] = _value(match[1])
    return found


def _value(word: str) -> Any:
    if re.fullmatch(r"\d{1,15}", word):
        return int(word)
    if re.fullmatch(r"\d{1,15}\.\d{1,9}", word):
        return float(word)
    return {"True": True, "False": False, "not set": None}.get(word, word)


def read_json(text: str) -> dict[str, Any] | None:
    """Read the last JSON object of the text, a whole document or the last of several lines."""
    for candidate in (text.strip().rpartition("\n")[2], text.strip()):
        if not candidate.lstrip().startswith("{") or len(candidate) > _LINE_MAX:
            continue
        try:
            found = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and "duration" in found:
            rate = found.get("request_rate")
            if isinstance(rate, float) and math.isinf(rate):
                found["request_rate"] = "inf"
            return found
    return None


def result_of(found: Mapping[str, Any], requested: Mapping[str, Any]) -> BenchmarkResult:
    """Return the numbers as a result; what was asked for comes from ``requested``, else from the tool's own words.

    ``accept_length`` of sglang is an average over the server's life since its cache was last flushed: it counts
    only when the run says that it flushed.
    """
    done, lost = count(found.get("completed")), count(found.get("failed"))
    asked = count(requested.get("num_prompts")) or count(found.get("num_prompts"))
    if asked is None and done is not None and lost is not None:
        asked = done + lost
    each = count(requested.get("random_output_len")) or count(found.get("random_output_len"))
    flushed = requested.get("flush_cache", found.get("flush_cache")) is True
    return BenchmarkResult(
        completed=done,
        requested=asked,
        output_tokens=count(found.get("total_output_tokens")),
        expected_output_tokens=asked * each if asked and each and found.get("random_range_ratio", 1.0) == 1.0 else None,
        duration_s=measure(found.get("duration")),
        output_tok_s=measure(found.get("output_throughput")),
        ttft_ms_mean=measure(found.get("mean_ttft_ms")),
        ttft_ms_p50=measure(found.get("median_ttft_ms")),
        ttft_ms_p99=measure(found.get("p99_ttft_ms")),
        tpot_ms_mean=measure(found.get("mean_tpot_ms")),
        tpot_ms_p50=measure(found.get("median_tpot_ms")),
        tpot_ms_p99=measure(found.get("p99_tpot_ms")),
        e2e_ms_mean=measure(found.get("mean_e2e_latency_ms")),
        e2e_ms_p50=measure(found.get("median_e2e_latency_ms")),
        e2e_ms_p99=measure(found.get("p99_e2e_latency_ms")),
        prompt_tokens=count(found.get("total_input_tokens")),
        cached_tokens=count(found.get("total_cached_tokens", found.get("cached_tokens"))),
        draft_tokens=count(found.get("spec_decode_draft_tokens")),
        accepted_tokens=count(found.get("spec_decode_accepted_tokens")),
        drafts=count(found.get("spec_decode_num_drafts")),
        accept_len=measure(found.get("accept_length")) if flushed else None,
        model=str(found.get("model_id", ""))[:200],
    )
