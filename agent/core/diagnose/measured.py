"""Pasted results of benchmarks, and what servers say of their own configuration and counters."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import re2 as re

from ..guards import failed, judge, unknown
from ..guards.config import EffectiveConfig, same
from ..guards.load import Drafting
from ..guards.valid import BenchValid
from ..observations import SectionResult
from ..probes.benchmark import BenchmarkResult
from ..probes.benchmark.serving import read_json, read_text, result_of
from ..probes.pasted import blocks
from ..servers import ServerKind
from ..servers.engine import counter
from ..values import Finding, Result, Verdict
from .base import Diagnosis, evidence_of, look, mapping, scalars
from .logfacts import overrides
from .logs import MIN_ACCEPT_LEN

ALWAYS_ONE = 1.02
_NOTHING = re.compile(r"index -1 is out of bounds|Warmup failed|Initial test run failed|All requests failed")
_CACHED = re.compile(r"#new-token: (\d{1,9}), #cached-token: (\d{1,9})")


def bench(read: Callable[[str], dict[str, Any] | None]) -> Callable[[str, dict[str, Any]], Diagnosis]:
    """Return the reader of one form of results."""

    def judged(text: str, context: dict[str, Any]) -> Diagnosis:
        rows = _sweep(text)
        if rows:
            return _swept(rows)
        found = read(text)
        if found is None:
            return _without(text, context)
        requested = mapping(context.get("requested"))
        result = result_of(found, requested)
        verdict = BenchValid().check([result])
        if verdict.result is not Result.FAIL:
            verdict = _around(text, context) or _speculation(result, found) or verdict
        failed_count = None
        if result.completed is not None and result.requested is not None:
            failed_count = result.requested - result.completed
        parsed = {**found, "failed": failed_count, "result": result, "checks": _checks(result, requested, found)}
        shows = ('"completed"', "Successful requests:", '"output_throughput"', "Output token throughput")
        return Diagnosis(verdict, parsed, version=_version(found), shows=shows)

    return judged


def _version(found: Mapping[str, Any]) -> str:
    return str(mapping(found.get("server_info")).get("version", ""))[:40]


def _sweep(text: str) -> list[dict[str, Any]]:
    """Return the rows of sglang's sweep over speculative parameters; [] when it is not that."""
    rows: list[dict[str, Any]] = []
    for line in text.split("\n"):
        if not line.startswith("{") or '"acc_length"' not in line:
            continue
        try:
            rows.append(mapping(json.loads(line)))
        except (ValueError, RecursionError):
            continue
    return [row for row in rows if {"acc_length", "steps", "topk", "num_draft_tokens"} <= row.keys()]


def _swept(rows: list[dict[str, Any]]) -> Diagnosis:
    """Judge such rows: their labels are what was asked for, and a missing accept length is written as 1."""
    parsed = {"rows": rows, "same_as": {}}
    for row in rows:
        steps, drafts = row["steps"], row["num_draft_tokens"]
        if row["topk"] == 1 and isinstance(steps, int) and isinstance(drafts, int) and steps and drafts != steps + 1:
            saw = f"a row says {drafts} draft tokens with {steps} steps and topk 1, which runs with {steps + 1}"
            remedy = "rows with topk 1 and equal steps are one configuration, whatever their labels say"
            verdict = failed(Finding.CONFIG_OVERRIDDEN, saw, f"{steps + 1}", remedy)
            return Diagnosis(verdict, parsed, shows=(f'"num_draft_tokens": {drafts}',))
    for row in rows:
        length = row["acc_length"]
        if row["steps"] and isinstance(length, (int, float)) and length < MIN_ACCEPT_LEN:
            checked = Drafting(min_accept_len=MIN_ACCEPT_LEN).check(float(length), (None, None))
            if checked is not None:
                return Diagnosis(checked, parsed, shows=(f'"acc_length": {length}',))
    return Diagnosis(unknown(f"{len(rows)} rows of a sweep, without counts of requests", "completed = asked"), parsed)


def _without(text: str, context: Mapping[str, Any]) -> Diagnosis:
    """Judge an output that has no result: its last words may say why."""
    match = _NOTHING.search(text)
    if match:
        saw = f"there is no result, and it says: {match[0]}"
        remedy = "not one request succeeded: look at the server and its log, the tool's own trouble follows from that"
        verdict = failed(Finding.SERVER_NOT_READY, saw, "a result", remedy, (Finding.INCOMPLETE_RUN,))
        return Diagnosis(verdict, shows=(match[0],))
    if context.get("process_rc") not in (None, 0):
        saw = f"it ended with status {context['process_rc']} and has no result"
        remedy = "read the end of its output: a run without a result is no measurement"
        verdict = failed(Finding.INCOMPLETE_RUN, saw, "a result", remedy)
        return Diagnosis(verdict, shows=tuple(reversed(text.strip().split("\n")[-1:])))
    return Diagnosis(unknown("there is no result of a benchmark in it", "a result that came to its end"))


def _around(text: str, context: Mapping[str, Any]) -> Verdict | None:
    """Judge what stands beside the result: the tool's exit status, and the server's log of the same time."""
    if context.get("process_rc") not in (None, 0):
        saw = f"there is a result, and the tool ended with status {context['process_rc']}"
        return unknown(saw, "status 0")
    for block in blocks(text):
        fresh = cached = 0
        for match in _CACHED.findall(block.text):
            fresh, cached = fresh + int(match[0]), cached + int(match[1])
        if "Retract requests" in block.text:
            remedy = "the cache was too small for this load: fewer requests at once, or more memory for it"
            return failed(Finding.IMPLAUSIBLE, "requests were retracted meanwhile", "no retracted request", remedy)
        if cached > 0.05 * max(1, fresh + cached) and cached > 1000:
            saw = f"{cached} of {fresh + cached} prompt tokens came from the cache"
            return failed(
                Finding.CACHE_WARM, saw, "at most 5 %", "flush the cache before each run, or vary the prompts"
            )
    return None


def _speculation(result: BenchmarkResult, found: Mapping[str, Any]) -> Verdict | None:
    """Judge drafted tokens where the tool counts them for the run itself.

    An average over the server's life says nothing good of this run; but no step gives less than one token, so where
    the average is one, this run's was as well.
    """
    length = result.accept_len
    if length is None and result.drafts and result.accepted_tokens is not None:
        length = 1 + result.accepted_tokens / result.drafts
    average = found.get("accept_length")
    if length is None and isinstance(average, (int, float)) and 0 < average <= ALWAYS_ONE:
        length = float(average)
    if length is None:
        return None
    verdict = Drafting(min_accept_len=MIN_ACCEPT_LEN).check(length, (None, None))
    return verdict if verdict is not None and verdict.result is Result.FAIL else None


def _checks(result: BenchmarkResult, requested: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can be checked without knowing the server, each true, false, or None where it cannot."""
    done, asked, tokens = result.completed, result.requested, result.output_tokens
    duration, speed = result.duration_s, result.output_tok_s
    each = requested.get("random_output_len", found.get("random_output_len"))
    rate = tokens / duration if tokens is not None and duration else None
    flushed = requested.get("flush_cache", found.get("flush_cache")) is True
    return {
        "completed_equals_requested": None if done is None or asked is None else done == asked,
        "throughput_consistent": None if rate is None or not speed else abs(rate - speed) <= 0.01 * speed,
        "tokens_per_request_ok": None
        if not isinstance(each, int) or not done or tokens is None
        else tokens >= 0.9 * each * done,
        "accept_length_scope": "run" if flushed else "server_lifetime" if "accept_length" in found else None,
    }


bench_json = bench(read_json)
bench_text = bench(read_text)


# ---------------------------------------------------------------- configuration


def info(text: str, context: dict[str, Any]) -> Diagnosis:
    """Judge what a server says of its configuration; of sglang's two copies the scheduler's counts."""
    document = _document(text)
    name, key = _speaker(document)
    section = {key: SectionResult(status=0, out=f"{_body(text)}\nHTTP 200")}
    requested = scalars(context.get("requested"))
    asked = requested or _launched(document.get("launch_command"))
    evidence = evidence_of(name, answers=[look("inspect", section)], flags=asked)
    allowed = context.get("allowed_overrides")
    names = tuple(str(name) for name in allowed) if isinstance(allowed, (list, tuple)) else ()
    verdict = judge(EffectiveConfig(allow_overrides=names), evidence)
    effective = evidence.kind.effective(section, ())
    values = dict(effective.values) if effective else {}
    length = values.get("avg-spec-accept-length")
    if verdict.result is Result.PASS and not asked:
        verdict = _copies(evidence.kind, document) or verdict
    if verdict.result is Result.PASS and isinstance(length, (int, float)) and length > 0:
        drafting = Drafting(min_accept_len=MIN_ACCEPT_LEN).check(float(length), (None, None))
        verdict = drafting if drafting is not None and drafting.result is Result.FAIL else verdict
    if verdict.result is Result.PASS and not asked and length is None:
        verdict = unknown("what was asked for is not known", "the command line, or `requested`")
    parsed = {
        "engine": name,
        "effective": values,
        "overrides": overrides(evidence.kind, {"requested": asked}, values),
        "accept_length": length,
    }
    version = str(document.get("version", "") or context.get("engine_version", ""))[:40]
    return Diagnosis(verdict, parsed, version=version, shows=('"internal_states"',))


def _speaker(document: Mapping[str, Any]) -> tuple[str, str]:
    """Return the engine that says this, and the section it would stand in."""
    if "vllm_config" in document:
        return "vllm", "server_info"
    return ("llamacpp", "props") if "default_generation_settings" in document else ("sglang", "server_info")


def _body(text: str) -> str:
    """Return the JSON in a text that may have lines of a tool before it."""
    start = text.find("{")
    return text[start:].strip().split("\n#== ")[0] if start >= 0 else text.strip()


def _document(text: str) -> dict[str, Any]:
    try:
        return mapping(json.loads(_body(text)))
    except (ValueError, RecursionError):
        return {}


def _launched(command: Any) -> dict[str, Any]:
    """Return the flags of the command line that newer servers tell."""
    try:
        line = [str(word) for word in command] if isinstance(command, list) else shlex.split(str(command or ""))
    except ValueError:
        return {}
    found: dict[str, Any] = {}
    for place, word in enumerate(line):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            after = line[place + 1] if place + 1 < len(line) else "--"
            found[name] = value if equals else True if after.startswith("--") else after
    return found


def _copies(kind: ServerKind, document: Mapping[str, Any]) -> Verdict | None:
    """Compare the copies of both processes, where nothing else says what was asked for."""
    states = document.get("internal_states")
    first = mapping(states[0]) if isinstance(states, list) and states else {}
    changed = [
        f"{key}: {value} -> {first[key]}"
        for key, value in document.items()
        if key in first
        and isinstance(value, (str, int, float, bool))
        and value != "auto"
        and not same(value, first[key])
    ]
    if not changed:
        return None
    saw = f"the scheduler runs with other values than the server was given: {', '.join(changed[:4])}"
    remedy = "ask for what is in effect, or allow this override: the scheduler's copy is what runs"
    return failed(Finding.CONFIG_OVERRIDDEN, saw, f"{kind.name}'s processes agree", remedy)


# ---------------------------------------------------------------- counters


def metrics(text: str, context: dict[str, Any]) -> Diagnosis:
    """Judge counters in Prometheus' text form: whether drafts contribute, and whether anything waits in vain."""
    names = {
        "drafts": ("vllm:spec_decode_num_drafts", "llamacpp:spec_decode_num_drafts"),
        "accepted": ("vllm:spec_decode_num_accepted_tokens", "llamacpp:spec_decode_num_accepted_tokens"),
        "drafted": ("vllm:spec_decode_num_draft_tokens", "llamacpp:spec_decode_num_draft_tokens"),
        "accept_length": ("sglang:spec_accept_length",),
        "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
        "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
    }
    found = {key: _first(text, options) for key, options in names.items()}
    length = found["accept_length"] or None
    if found["drafts"] and found["accepted"] is not None:
        length = 1 + found["accepted"] / found["drafts"]
    verdict: Verdict | None = None
    if length is not None or found["drafted"] == 0:
        verdict = Drafting(min_accept_len=MIN_ACCEPT_LEN).check(length, (found["drafted"], found["drafts"]))
    parsed = {**found, "accept_len": length}
    shows = ("spec_decode_num_accepted_tokens", "spec_accept_length", "num_requests_waiting", "num_queue_reqs")
    return Diagnosis(verdict or unknown("counters of one moment prove no progress", "drafts, or two moments"), parsed,
                     shows=shows)  # fmt: skip


def _first(text: str, options: tuple[str, ...]) -> float | None:
    return next((value for name in options if (value := counter(text, name)) is not None), None)
