"""Benchmarks: how one repeat is asked for, and what it printed, read with suspicion and turned into numbers or None."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import builtin, tools
from .ask import API, BUILTIN, OWN_SCRIPTS, PROMPTS_INLINE_CHARS_MAX, TOOL, bench_command, generated_files, prompt_words
from .numbers import count, load_document, load_json, mapping, measure, percentile, word
from .result import METRICS, BenchmarkResult
from .tools import TOOLS

if TYPE_CHECKING:
    from ...plan import Benchmark


def read_benchmark(text: str, benchmark: Benchmark | None = None) -> BenchmarkResult | None:
    """Read what one repeat printed; None when it is not a document that this agent knows.

    ``benchmark`` is what was asked for: its latency limits, and the metrics it picks out of a tool's output.
    """
    limits = benchmark.slo if benchmark is not None else {}
    document = load_document(text)
    if document is None:
        return tools.read_any(text, limits)
    if document.get("schema") == builtin.SCHEMA:
        return builtin.read_requests(document, limits)
    if document.get("schema") == tools.SCHEMA:
        return tools.read_tool(document, limits, benchmark.metrics if benchmark is not None else None)
    return builtin.read_metrics(document) if "metrics" in document else tools.read_any(text, limits)


__all__ = [
    "API", "BUILTIN", "METRICS", "OWN_SCRIPTS", "PROMPTS_INLINE_CHARS_MAX", "TOOL", "TOOLS", "BenchmarkResult",
    "bench_command", "count", "generated_files", "load_document", "load_json", "mapping", "measure", "percentile",
    "prompt_words", "read_benchmark", "word",
]  # fmt: skip
