"""Benchmark tools by the word that a playbook uses: how each is started, what it leaves behind, who reads it.

The host script ``bench_tool.py`` runs the tool and prints one document (``agent-tool/1``): what it printed, the files
it left, its version, and what the server counted meanwhile. Everything else is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import re2 as re

from ..files import NotThereError, json_at
from .numbers import METRICS_MAX, count, load_lenient, mapping, measure, numbers, word
from .others import read_aiperf, read_batches, read_guidellm, read_llama_bench, read_speculative
from .result import BenchmarkResult
from .serving import read_json, read_text, requested_by, result_of

SCHEMA = "agent-tool/1"
Limits = Mapping[str, float]
_NUMBER = re.compile(r"[-+]?(?:\d{1,15}(?:,\d{3}){0,4})(?:\.\d{1,15})?(?:[eE][-+]?\d{1,3})?")


@dataclass(frozen=True)
class Left:
    """What a tool left behind: its output and its files, by name."""

    out: str
    files: Mapping[str, str]
    argv: Sequence[str]
    limits: Limits

    @property
    def file(self) -> str:
        """The first of its files; '' when it left none."""
        return next(iter(self.files.values()), "")


@dataclass(frozen=True)
class Tool:
    """One tool. ``usual`` are groups of words that are added unless the playbook gives that flag itself.

    In a word, ``{url}``, ``{host}``, ``{port}``, ``{model}`` and ``{job}`` stand for the server that is up, the model
    it offers, and the folder of the job.
    """

    command: tuple[str, ...]
    read: Callable[[Left], BenchmarkResult | None]
    package: str = ""
    """The Python package whose version is noted."""
    usual: tuple[tuple[str, ...], ...] = ()
    instead: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other flags that make one of the usual ones superfluous."""
    results: tuple[str, ...] = ()
    """Patterns of files in the job's folder, of which the newest is read."""
    slo_words: Callable[[Limits], list[str]] | None = None
    """How it is told of latency limits; None: it cannot count what met them."""

    @property
    def tells_slo(self) -> bool:
        """Whether goodput can be known from it."""
        return self.slo_words is not None


def _serving(left: Left) -> BenchmarkResult | None:
    found = read_json(left.file) or read_json(left.out) or read_text(left.out)
    return result_of(found, requested_by(left.argv), left.limits) if found is not None else None


def _pairs(limits: Limits, names: Mapping[str, str]) -> list[str]:
    return [f"{names[name]}:{limit:g}" for name, limit in limits.items()]


_SHORT = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
_LONG = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}

TOOLS: dict[str, Tool] = {
    "sglang.bench_serving": Tool(
        command=("python3", "-m", "sglang.bench_serving"),
        read=_serving,
        package="sglang",
        usual=(
            ("--backend", "sglang"),
            ("--host", "127.0.0.1"),
            ("--port", "{port}"),
            ("--output-file", "result.jsonl"),
        ),
        instead={"--host": ("--base-url",), "--port": ("--base-url",)},
        results=("*.jsonl",),
        # Older releases know no --goodput; from every request's latencies it follows for all of them.
        slo_words=lambda limits: ["--output-details"],
    ),
    "sglang.benchmark.one_batch_server": Tool(
        command=("python3", "-m", "sglang.benchmark.one_batch_server"),
        read=lambda left: read_batches(left.file),
        package="sglang",
        usual=(("--model", "None"), ("--base-url", "{url}"), ("--result-filename", "result.jsonl")),
        results=("*.jsonl",),
    ),
    "vllm bench serve": Tool(
        command=("vllm", "bench", "serve"),
        read=_serving,
        package="vllm",
        usual=(
            ("--base-url", "{url}"),
            ("--model", "{model}"),
            ("--save-result",),
            ("--result-dir", "{job}"),
            ("--result-filename", "result.json"),
        ),
        instead={"--base-url": ("--host", "--port")},
        results=("result.json",),
        slo_words=lambda limits: ["--goodput", *_pairs(limits, _SHORT)],
    ),
    "aiperf": Tool(
        command=("aiperf", "profile"),
        read=lambda left: read_aiperf(left.file, left.limits),
        package="aiperf",
        usual=(
            ("--model", "{model}"),
            ("--url", "{url}"),
            ("--streaming",),
            ("--ui", "none"),
            ("--output-artifact-dir", "{job}/aiperf"),
        ),
        instead={"--output-artifact-dir": ("--artifact-dir",)},
        results=("aiperf/profile_export_aiperf.json",),
        slo_words=lambda limits: ["--goodput", " ".join(_pairs(limits, _LONG))],
    ),
    "guidellm": Tool(
        command=("guidellm", "run"),
        read=lambda left: read_guidellm(left.file, left.limits),
        package="guidellm",
        usual=(
            ("--backend", "kind=openai_http,target={url}"),
            ("--output", "kind=json,path={job}/benchmarks.json"),
            ("--disable-console-interactive",),
        ),
        results=("benchmarks.json",),
        slo_words=lambda limits: [],  # it keeps every request, unless it is told to sample them
    ),
    "llama-bench": Tool(
        command=("llama-bench",),
        read=lambda left: read_llama_bench(left.out),
        usual=(("-o", "json"),),
        instead={"-o": ("--output",)},
    ),
    "command": Tool(command=(), read=lambda left: None),
}


def read_any(text: str, limits: Limits) -> BenchmarkResult | None:
    """Read the output of a script that printed what one of these tools left; None when it is none of them."""
    found = read_json(text) or read_text(text)
    if found is not None and ("completed" in found or "output_throughput" in found):
        return result_of(found, {}, limits)
    readers = (read_batches, read_speculative, lambda out: read_aiperf(out, limits))
    return next((result for read in readers if (result := read(text)) is not None), None)


def read_tool(
    document: Mapping[str, Any], limits: Limits, extracts: Mapping[str, Any] | None = None
) -> BenchmarkResult | None:
    """Read the document of a tool's run. ``extracts``: the metrics that a playbook picks out of any output."""
    tool = TOOLS.get(word(document.get("tool")))
    if tool is None:
        return None
    files = {word(name): text for name, text in mapping(document.get("files")).items() if isinstance(text, str)}
    argv = [word(item) for item in document.get("argv") or ()]
    out = document.get("out")
    left = Left(out if isinstance(out, str) else "", files, argv, limits)
    picked = pick(left, extracts or {})
    if picked is None:
        return None
    result = tool.read(left)
    if result is None:
        if not picked:
            return None
        result = BenchmarkResult(whole=False)
    ended = count(document.get("status"))
    errors = result.errors if ended == 0 else (*result.errors, f"the tool ended with status {ended}")
    return result.model_copy(update={**_picked(picked, result), **_known(document, result), "errors": errors})


def _picked(picked: Mapping[str, float], result: BenchmarkResult) -> dict[str, Any]:
    """Let a metric that is called like a number of ours be that number; the others keep their own names."""
    counts = ("completed", "requested", "output_tokens", "expected_output_tokens", "prompt_tokens", "cached_tokens")
    known: dict[str, Any] = {name: count(picked[name]) for name in counts if name in picked}
    rates = ("duration_s", "output_tok_s", "req_s", "accept_len", "goodput_req_s")
    known |= {name: measure(picked[name]) for name in rates if name in picked}
    return {"given": {**result.given, **picked}, **known}


def _known(document: Mapping[str, Any], result: BenchmarkResult) -> dict[str, Any]:
    """Return what the host script knows beside the tool: who measured whom, and what the server counted meanwhile."""
    counters = mapping(document.get("counters"))
    known: dict[str, Any] = {
        "endpoint": word(document.get("endpoint")),
        "model": word(document.get("model")) or result.model,
        "tool": word(document.get("sha256")),
        "version": word(document.get("version")) or result.version,
        "dataset": word(document.get("dataset")),
        "simulated": document.get("simulated") is True,
    }
    if result.cached_tokens is None and (cached := count(counters.get("cached_tokens"))) is not None:
        known["cached_tokens"] = cached
    if result.draft_tokens is None:
        drafts, accepted = count(counters.get("drafts")), count(counters.get("accepted_tokens"))
        known |= {"drafts": drafts, "accepted_tokens": accepted, "draft_tokens": count(counters.get("draft_tokens"))}
        if result.accept_len is None and drafts and accepted is not None:
            known["accept_len"] = 1 + accepted / drafts
    return known


def pick(left: Left, extracts: Mapping[str, Any]) -> dict[str, float] | None:
    """Return each metric that a playbook names, from JSON or by a pattern; None when one of them is not there.

    Of several matches of a pattern the last counts: a tool prints its summary at the end.
    """
    found: dict[str, float] = {}
    for name, how in list(extracts.items())[:METRICS_MAX]:
        text = next((text for file, text in left.files.items() if file == how.file), None) if how.file else left.out
        value = _one(text, how) if text is not None else None
        if value is None:
            return None
        found[name] = value
    return found


def _one(text: str, how: Any) -> float | None:
    if how.pattern:
        last = None
        for match in re.finditer(how.pattern, text):
            last = match
        return _read_number(last[1] if last.groups() else last[0]) if last is not None else None
    for candidate in dict.fromkeys((text.strip(), text.strip().rpartition("\n")[2])):
        if load_lenient(candidate) is None:
            continue
        try:
            return _read_number(json_at(candidate, how.json_))
        except (NotThereError, ValueError):
            return None
    return None


def _read_number(value: Any) -> float | None:
    if isinstance(value, str):
        return float(value.replace(",", "")) if _NUMBER.fullmatch(value) else None
    return next(iter(numbers({"value": value}).values()), None)
