"""What a pasted log tells beside its verdict: every reason in their order, and single facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import re2 as re

from ..evidence import Evidence
from ..guards.config import compare
from ..guards.lifecycle import REMEDY
from ..probes.logs import nccl_settings, pairs, rank_of
from ..servers import ServerKind
from ..servers.startup import Startup
from ..values import Finding, Result, Verdict
from .base import TEXT_MAX, Cause, scalars, words


def lengths_of(texts: Sequence[str]) -> tuple[list[float], str]:
    """Return tokens per verification step of every report, oldest first, and the newest line of them."""
    found: list[float] = []
    last = ""
    for line in texts:
        value: Any = None
        if "accept len: " in line and "Decode batch" in line:
            value = pairs(line).get("accept len")
        elif "SpecDecoding metrics" in line:
            value = pairs("x, " + line.partition("SpecDecoding metrics: ")[2]).get("Mean acceptance length")
        elif "draft acceptance = " in line and (match := re.search(r"mean len = +(\d+\.\d+)", line)):
            value = float(match[1])
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            found.append(float(value))
            last = line
    return found, last


def useless(kind: ServerKind, start: Startup, texts: tuple[str, ...]) -> tuple[Cause, ...]:
    """Return why drafts may contribute nothing, the likeliest first: the number looks the same in every case."""
    effective = kind.effective({}, texts)
    values = effective.values if effective else {}
    algorithm, path = str(values.get("speculative-algorithm", "")), str(values.get("speculative-draft-model-path", ""))
    three = [name for name in (*start.models, path) if re.search(r"(?i)eagle-?_?3", name)]
    mixed = "an EAGLE-3 draft under another algorithm: its hidden states are never captured"
    causes = [
        ("the draft was made for another target, or for another chat template or tokenizer", "check its training data"),
        ("weights of the draft are missing or named otherwise (lm_head, d2t) and kept random values", "check its keys"),
    ]
    if three and algorithm in ("EAGLE", "NEXTN"):
        causes.insert(0, (f"{algorithm} with {three[0]}: {mixed}", "use EAGLE3 for this draft"))
    elif kind.name == "vllm" or not algorithm:
        causes.insert(0, (f"the method does not fit the draft's architecture; {mixed}", "compare both"))
    else:
        causes.append((f"{algorithm} does not fit the draft's architecture", "read its config.json"))
    lost = next((line for line in texts if "not found in params_dict" in line), "")
    if lost:
        causes.insert(0, (lost[:TEXT_MAX], "the checkpoint's keys do not fit this version"))
    return tuple(Cause(str(Finding.DRAFT_USELESS), text, remedy) for text, remedy in causes)


def causes(kind: ServerKind, texts: Sequence[str], verdict: Verdict) -> tuple[Cause, ...]:
    """Return every reason that the log gives: the one that counts first, then the others by time."""
    if verdict.result is not Result.FAIL:
        return ()
    reason = getattr(kind, "cause", None)
    found: dict[tuple[str, str], Cause] = {}
    for line in texts:
        fatal = kind.fatal(line) or (reason(line) if reason is not None else None)
        if fatal is not None:
            key = (str(fatal.finding), fatal.line[:80])
            found.setdefault(key, Cause(key[0], fatal.line[:TEXT_MAX], REMEDY.get(fatal.finding, "")))
    causes = list(found.values())
    chosen = next((cause for cause in causes if cause.finding == verdict.finding), None)
    if chosen is None:
        return (Cause(str(verdict.finding), verdict.saw, verdict.remedy), *causes[:9])
    rest = [cause for cause in causes if cause is not chosen]
    return (chosen, *(Cause(c.finding, c.text, c.remedy, cascade=True) for c in rest[:9]))


def facts(
    kind: ServerKind, evidence: Evidence, start: Startup, texts: tuple[str, ...], context: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what was read on the way to the verdict, by the names that cases and programs use."""
    effective = kind.effective({}, texts)
    settings = nccl_settings(texts)
    asked = words(context.get("requested_env"))
    whole = "\n".join(texts)
    port = re.search(
        r"\('[\d.:]+', (\d{1,5})(?:, \d+, \d+)?\): address already in use|hostname: \S+ port: (\d+)", whole
    )
    lengths, _ = lengths_of(texts)
    begun = {rank_of(line) for line in texts if "Load weight begin" in line} - {None}
    loaded = {rank_of(line) for line in texts if "Load weight end" in line} - {None}
    return {
        "engine": kind.name,
        "phase": start.phase,
        "ranks_seen": sorted(start.ranks),
        "repeat_count": start.stalls,
        "startup_s": start.startup_s,
        "capture_s": start.capture_s,
        "weight_load_s": start.weights_s,
        "max_total_num_tokens": start.tokens,
        "accept_len": start.accept_len if start.accept_len is not None else (lengths[-1] if lengths else None),
        "gen_throughput": start.throughput,
        "models": start.models,
        "memory_balanced": start.balanced,
        "dead_ranks": sorted(rank for rank in begun - loaded if rank is not None) if loaded else [],
        "effective": dict(effective.values) if effective else {},
        "overrides": overrides(kind, context, effective.values if effective else {}, texts),
        "applied": {name: value for name, value in settings.items() if name in asked},
        "not_applied": [name for name in asked if name not in settings],
        "wrong_value": {
            name: {"requested": value, "effective": settings[name]}
            for name, value in asked.items()
            if name in settings and settings[name].lower() != value.lower()
        },
        "port": int(port[1] or port[2]) if port else None,
        "stamps": start.stamps,
        "last_progress_at": start.last_progress_at,
        "root_rank": next((rank_of(line) for line in texts if "hit an exception" in line), None),
        **_details(start, texts, effective.values if effective else {}),
        "memory_gb": {key: float(value) for key, value in re.findall(r"(\w+_gpu_memory)=(\d+\.\d+)", whole)},
    }


_EXIT = re.compile(r"[Ee]xit code:? (-?\d{1,3})")
_OOM = re.compile(r"Tried to allocate (\d+\.\d+) [GM]iB\. GPU (\d{1,3})")
_HOLDS = re.compile(r"Process (\d{1,9}) has (\d+\.\d+) GiB memory in use")
_DESK = re.compile(r"Free memory on device(?: \S+)? \((\d+\.\d+)/(\d+\.\d+) GiB\)")


def _details(start: Startup, texts: Sequence[str], effective: Mapping[str, Any]) -> dict[str, Any]:
    """Return single facts that people look for in a log; None where it does not tell."""
    whole = "\n".join(texts)
    exits, oom, free = _EXIT.search(whole), _OOM.search(whole), _DESK.search(whole)
    decode = next((pairs(line) for line in reversed(texts) if "Decode batch" in line), {})
    spec = next((line for line in reversed(texts) if "Per-position acceptance rate" in line), "")
    rates = re.search(r"Per-position acceptance rate: ([\d., ]+)", spec)
    memory = {key: float(value) for key, value in re.findall(r"(\w+_gpu_memory)=(\d+\.\d+)", whole)}
    return {
        "start_at": next(iter(start.stamps.values()), None),
        "ready_at": start.stamps.get("READY"),
        "target_type": start.models[0] if start.models else None,
        "draft_type": start.models[1] if len(start.models) > 1 else None,
        "tp_size": effective.get("tensor-parallel-size"),
        "accept_rate": decode.get("accept rate"),
        "cuda_graph": decode.get("cuda graph"),
        "per_position": [float(rate) for rate in rates[1].strip(" ,").split(", ")] if rates else None,
        "exit_code": int(exits[1]) if exits else None,
        "oom_gpu": int(oom[2]) if oom else None,
        "holders": [{"pid": int(pid), "gib": float(gib)} for pid, gib in dict.fromkeys(_HOLDS.findall(whole))],
        "free_gib": float(free[1]) if free else None,
        "min_gb": memory.get("min_per_gpu_memory"),
        "local_gb": memory.get("local_gpu_memory"),
        "retracted": whole.count("Retract requests"),
    }


def overrides(
    kind: ServerKind, context: Mapping[str, Any], effective: Mapping[str, Any], texts: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Return every difference, also of flags that nobody asked for and that the engine says it changed."""
    requested = scalars(context.get("requested"))
    given = {str(getattr(kind, "canonical", str)(name)) for name in requested}
    told = getattr(kind, "announced", lambda lines: ())(texts)
    requested |= {name.replace("-", "_"): None for name in told if name not in given}
    found, _, _ = compare(kind, requested, effective)
    return [{"field": item.flag, "requested": item.asked, "effective": item.effective} for item in found]
