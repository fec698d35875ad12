"""What the engines' own load generators print: JSON lines of ``sglang.bench_serving``, JSON of ``vllm bench serve``,
and the block of text of both.

A file of JSON lines is appended to, so its last line is the newest run. ``Infinity`` is written for an unlimited
rate. Neither tool's exit status says anything about how many requests succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import re2 as re

from .numbers import count, load_lenient, mapping, measure, numbers, word
from .result import BenchmarkResult, Latency, goodput, latencies

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
    for name in ("num_prompts", "random_output_len", "random_range_ratio", "flush_cache"):
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
    for candidate in dict.fromkeys((text.strip().rpartition("\n")[2], text.strip())):
        if not candidate.lstrip().startswith("{"):
            continue
        found = load_lenient(candidate)
        if isinstance(found, dict) and "duration" in found:
            return found
    return None


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value) else value


def requested_by(argv: Sequence[str]) -> dict[str, Any]:
    """Return what a command line of these tools asks for: the flags that a result can be held against."""
    found: dict[str, Any] = {}
    names = {
        "--num-prompts": "num_prompts",
        "--num-prompt": "num_prompts",
        "--random-output-len": "random_output_len",
        "--output-len": "random_output_len",
        "--random-range-ratio": "random_range_ratio",
    }
    vllm = "serve" in argv[:5]
    found["ends_early"] = ("--ignore-eos" not in argv) if vllm else ("--disable-ignore-eos" in argv)
    for place, item in enumerate(argv):
        flag, equals, value = item.partition("=")
        if flag == "--flush-cache":
            found["flush_cache"] = True
        elif flag in names and (equals or place + 1 < len(argv)):
            found[names[flag]] = _number(value if equals else argv[place + 1])
    return found


def _whole(found: Mapping[str, Any]) -> list[Latency]:
    """Return the time of each request to its last token, which vLLM 0.32 keeps without being asked, in seconds."""
    column = found.get("latencies")
    if not isinstance(column, list) or len(column) != found.get("completed"):
        return []
    values = [measure(value) for value in column]
    return [Latency(None, None, value * 1000) for value in values if value]


def _rows(found: Mapping[str, Any]) -> list[Latency]:
    """Return each request's latencies where the tool was told to keep them; [] where it was not.

    The gaps between chunks add up to the time after the first one, whatever the number of tokens in a chunk.
    """
    columns = [found.get(name) for name in ("ttfts", "itls", "output_lens")]
    if not all(isinstance(column, list) for column in columns):
        return []
    errors = found.get("errors")
    errors = errors if isinstance(errors, list) else []
    rows: list[Latency] = []
    for place, (first, gaps, tokens) in enumerate(zip(*columns, strict=False)):
        if place < len(errors) and errors[place]:
            continue
        ttft, out = measure(first), count(tokens)
        rest = [measure(gap) for gap in gaps] if isinstance(gaps, list) else [None]
        if ttft is None or None in rest:
            rows.append(Latency(None, None, None))
            continue
        after = sum(gap for gap in rest if gap is not None)
        each = after / (out - 1) * 1000 if out is not None and out > 1 else None
        rows.append(Latency(ttft * 1000, each, (ttft + after) * 1000))
    return rows


_NAMED = {
    "ttft_ms_mean": ("mean_ttft_ms",),
    "ttft_ms_p50": ("median_ttft_ms", "p50_ttft_ms"),
    "ttft_ms_p95": ("p95_ttft_ms",),
    "ttft_ms_p99": ("p99_ttft_ms",),
    "tpot_ms_mean": ("mean_tpot_ms",),
    "tpot_ms_p50": ("median_tpot_ms", "p50_tpot_ms"),
    "tpot_ms_p95": ("p95_tpot_ms",),
    "tpot_ms_p99": ("p99_tpot_ms",),
    "e2e_ms_mean": ("mean_e2e_latency_ms", "mean_e2el_ms"),
    "e2e_ms_p50": ("median_e2e_latency_ms", "median_e2el_ms"),
    "e2e_ms_p95": ("p95_e2e_latency_ms", "p95_e2el_ms"),
    "e2e_ms_p99": ("p99_e2e_latency_ms", "p99_e2el_ms"),
}


def _speculation(found: Mapping[str, Any], flushed: bool) -> dict[str, Any]:
    drafts, accepted = count(found.get("spec_decode_num_drafts")), count(found.get("spec_decode_accepted_tokens"))
    length = measure(found.get("spec_decode_acceptance_length"))
    if length is None and flushed:
        length = measure(found.get("accept_length"))
    return {
        "draft_tokens": count(found.get("spec_decode_draft_tokens")),
        "accepted_tokens": accepted,
        "drafts": drafts,
        "accept_len": length or None,
    }


def result_of(
    found: Mapping[str, Any], requested: Mapping[str, Any], limits: Mapping[str, float] | None = None
) -> BenchmarkResult:
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
    duration = measure(found.get("duration"))
    report, rows = mapping(found.get("cache_report")), _rows(found)
    own = {name: next((v for key in keys if (v := measure(found.get(key))) is not None), None)
           for name, keys in _NAMED.items()}  # fmt: skip
    own |= {name: value for name, value in latencies(rows or _whole(found)).items() if own.get(name) is None}
    rates = goodput(rows, limits or {}, asked, duration) if rows else {}
    if not rates and limits and (rate := measure(found.get("request_goodput"))) is not None and asked and duration:
        rates = {"goodput_req_s": rate, "slo_share": min(1.0, rate * duration / asked)}
    cached = found.get("total_cached_tokens", found.get("cached_tokens"))
    return BenchmarkResult.model_validate(
        {
            "completed": done,
            "requested": asked,
            "output_tokens": count(found.get("total_output_tokens")),
            "expected_output_tokens": asked * each if asked and each and _fixed(found, requested) else None,
            "duration_s": duration,
            "output_tok_s": measure(found.get("output_throughput")),
            "req_s": measure(found.get("request_throughput")),
            **own,
            **rates,
            "prompt_tokens": count(report.get("total_prompt_tokens", found.get("total_input_tokens"))),
            "cached_tokens": count(report.get("total_cached_tokens", cached)),
            **_speculation(found, flushed),
            "cache": "flushed" if flushed else "",
            "model": word(found.get("model_id"))[:200],
            "given": numbers({key: value for key, value in found.items() if key not in ("failed", "num_prompts")}),
        }
    )


def _fixed(found: Mapping[str, Any], requested: Mapping[str, Any]) -> bool:
    """Whether every answer has the same length: sglang's ratio 1.0 means so, and vllm's means it at 0.0."""
    if requested.get("ends_early") is True:
        return False
    ours = found.get("random_range_ratio", requested.get("random_range_ratio"))
    sglang = "dataset_name" in found or "total_output_tokens_retokenized" in found
    return ours == 1.0 if sglang else ours in (None, 0, 0.0, 1.0)
