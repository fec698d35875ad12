"""Pasted logs of servers: how far the start came, what ended it, what was changed, what is drafted."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import re2 as re

from ..actions import Watch
from ..evidence import Answer, Evidence
from ..guards import Guard, failed, unknown, waiting
from ..guards.config import EffectiveConfig, EnvApplied, compare
from ..guards.lifecycle import REMEDY, Progressing
from ..guards.load import Drafting
from ..guards.view import cause_of
from ..observations import SectionResult
from ..probes.logs import clock_of, nccl_settings, pairs, rank_of
from ..servers import ServerKind, kind_of
from ..servers.forms import generation, told
from ..servers.startup import Startup, read_startup
from ..values import Finding, Result, Verdict
from .base import TEXT_MAX, Cause, Diagnosis, Line, evidence_of, judge_all, look, scalars, words, worst_of
from .logscan import LogScan, scan

MIN_ACCEPT_LEN = 1.15
"""An accept length below this is "about 1": a head that is broken in some way still guesses a few tokens."""
FROZEN = 3
"""So many reports of the engine in a row, with requests and without a token, are a standstill."""
PIECE = 1 << 20

_LINE = re.compile(r'^\s*File "|^\s{2,}|^$')


def engine_of(text: str) -> str:
    """Return the engine whose log this is."""
    if re.search(r"vLLM|\(EngineCore|\(APIServer|SpecDecoding metrics|VllmWorker", text):
        return "vllm"
    if "server_args" not in text and re.search(r"llama_|llama-server|srv  |main: |ggml_|gguf", text):
        return "llamacpp"
    return "sglang"


def version_of(lines: Sequence[str], engine: str) -> str:
    """Return the release that the log tells, or the generation that its forms belong to; '' when neither."""
    named = told(engine, lines[:400])
    if engine == "llamacpp":
        named = next((str(match[1]) for line in lines[:400] if (match := re.search(r"^build: (\S.{0,60})", line))), "")
    found = generation(engine, lines, named)
    return named or (f"like {found.first}" if found is not None else "")


def read(text: str, context: dict[str, Any]) -> Diagnosis:
    """Judge a log that is at hand as text."""
    data = text.encode("utf-8", "backslashreplace")
    return read_scan(scan(data[at : at + PIECE] for at in range(0, len(data), PIECE)), context)


def read_scan(found: LogScan, context: dict[str, Any]) -> Diagnosis:
    """Judge a log that was scanned piece by piece."""
    lines = tuple(Line(line.number, _bare(line.text)) for line in found.lines())
    if not any(line.text.strip() for line in lines):
        return Diagnosis(unknown("the log is empty", "a log"))
    name = engine_of("\n".join(line.text for line in lines))
    kind = kind_of(name)
    lines = _newest_start(kind, lines)
    texts = tuple(line.text.rstrip() for line in lines if line.text.strip())
    start = read_startup(kind, texts)
    evidence = _evidence(name, texts, context)
    ended = context.get("process_rc") not in (None, 0) or _ended(texts)
    verdict, shows = _verdict(kind, evidence, start, texts, context, ended=ended)
    causes = _useless(kind, start, texts) if verdict.finding is Finding.DRAFT_USELESS else _causes(kind, texts, verdict)
    parsed = _facts(kind, evidence, start, texts, context)
    blank = start.phase == "" and start.accept_len is None and not _asked(context)
    if blank and verdict.finding is None and verdict.result in (Result.PASS, Result.WAIT):
        verdict = unknown("no line of a known kind of server is in it", "a log of sglang, vLLM or llama.cpp")
    shown = [line for piece in shows for line in lines if piece and piece in line.text]
    shown = shown or [line for line in lines if causes and causes[0].text[:80] in line.text]
    evidence_lines = tuple(Line(line.number, line.text[:TEXT_MAX]) for line in dict.fromkeys(shown))[:3]
    version = str(context.get("engine_version") or version_of(texts, name))
    return Diagnosis(verdict, parsed, version=version, causes=causes, evidence=evidence_lines)


_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CARRIER = re.compile(
    r"^(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?|"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} [^\s:]{1,80}: |[A-Za-z0-9_.-]{1,60} +\| |> )"
)


def _bare(text: str) -> str:
    """Return a line without what carried it here: docker, a pod, compose, the journal, a quotation, colours."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return str(_CARRIER.sub("", text, count=1))


def _asked(context: Mapping[str, Any]) -> bool:
    return bool(context.get("requested") or context.get("requested_env"))


def _newest_start(kind: ServerKind, lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Return the lines of the newest start, where one file holds several.

    A start begins with the engine's own arguments; warnings about them stand right before, without a time.
    """
    begins = [
        place
        for place, line in enumerate(lines)
        if kind.phase(line.text) == "ARGUMENTS" and "non-default args" not in line.text
    ]
    over = [
        place
        for place, line in enumerate(lines)
        if kind.phase(line.text) == "READY" or kind.fatal(line.text) is not None
    ]
    if len(begins) < 2 or not any(begins[0] < place < begins[-1] for place in over):
        return lines
    first = begins[-1]
    while first > 0 and clock_of(lines[first - 1].text) is None and not _LINE.search(lines[first - 1].text):
        if kind.fatal(lines[first - 1].text) is not None or "Error" in lines[first - 1].text:
            break
        first -= 1
    return lines[first:]


def _evidence(name: str, texts: tuple[str, ...], context: Mapping[str, Any]) -> Evidence:
    stamps = [at for line in texts if (at := clock_of(line)) is not None]
    first = stamps[0] if stamps else 0.0
    watch, at = [(0.0, "state LIVE 2 0 0")], 0.0
    for place, line in enumerate(texts):
        stamp = clock_of(line)
        at = max(at, stamp - first) if stamp is not None else at
        watch.append((at, f"log {place} {line}"))
    watch.append((at, "health 200"))  # what was pasted is all there will be: nothing is worth waiting for
    return evidence_of(
        name,
        now=at,
        answers=[
            Answer("watch", Watch(key="log", url=""), "watch", 0.0, None, None, watch),
            look("inspect", {"log": SectionResult(status=0, out="")}),
        ],
        launch_log=texts,
        flags=scalars(context.get("requested")),
        env=words(context.get("requested_env")),
    )


_LAST = re.compile(
    r"^(?:\(.{1,60}\) )?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b|^Killed|^Aborted|"
    r"^Segmentation fault|core dumped|^Bus error|exiting due to|: (?:command )?not found$|: cannot execute\b|"
    r": Exec format error$|: (?:No such file or directory|Permission denied)$"
)


def _ended(texts: Sequence[str]) -> bool:
    """Whether the log ends like that of a program that died: with an exception, or the word of a shell."""
    return any(_LAST.search(line) for line in texts[-3:])


# ---------------------------------------------------------------- verdict


def _verdict(
    kind: ServerKind,
    evidence: Evidence,
    start: Startup,
    texts: tuple[str, ...],
    context: Mapping[str, Any],
    *,
    ended: bool,
) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict and pieces of the lines that show it. What ended the server counts first."""
    cause = cause_of(kind, texts, dead=ended)
    if cause is None and ended:
        cause = (Finding.CRASH, texts[-1], ())
    if cause is not None:
        finding, line, also = cause
        return failed(finding, f"the log says: {line[:160]}", "no fatal line", REMEDY.get(finding, ""), also), (line,)
    guards: list[Guard] = []
    if context.get("requested"):
        allowed = context.get("allowed_overrides")
        names = tuple(str(name) for name in allowed) if isinstance(allowed, (list, tuple)) else ()
        guards.append(EffectiveConfig(allow_overrides=names))
    if context.get("requested_env"):
        guards.append(EnvApplied())
    found = judge_all([Progressing(), *guards], evidence)
    serving = _serving(kind, evidence, start, texts)
    if serving is not None and serving[0].result is not Result.PASS:
        found.append(serving[0])
    verdict = worst_of(found)
    if verdict.result is Result.PASS and start.phase != "READY" and not guards and start.accept_len is None:
        verdict = verdict.model_copy(update={"result": Result.WAIT, "wanted": "the log's word that it is up"})
    shows: tuple[str, ...] = ("is adjusted to", "is reset to", "server_args=", "with config: ")
    if serving is not None and verdict is serving[0]:
        shows = serving[1]
    elif verdict.finding is Finding.ENV_NOT_APPLIED:
        shows = ("set by environment to",)
    elif verdict.finding is Finding.HANG:
        shows = ("No available shared memory broadcast block", texts[-1])
    elif verdict.finding is None:
        shows = ("fired up and ready", "Application startup complete", "model loaded", texts[-1])
    return verdict, shows


def _serving(
    kind: ServerKind, evidence: Evidence, start: Startup, texts: tuple[str, ...]
) -> tuple[Verdict, tuple[str, ...]] | None:
    """Judge what a server does once it is up: numbers, progress, speculation. None when the log does not tell."""
    for line in texts:
        if "NaN in the logits" in line:
            remedy = "the model computes NaN: check weights, quantisation and attention backend"
            return failed(Finding.BAD_OUTPUT, f"the log says: {line[:120]}", "numbers", remedy), (line,)
    frozen = _frozen(texts)
    if frozen:
        saw = f"{len(frozen)} reports in a row with requests and without a token"
        return failed(Finding.HANG, saw, "tokens", REMEDY[Finding.HANG]), tuple(frozen[-2:])
    busy = _health(kind, texts)
    if busy is not None:
        return busy
    return _drafting(kind, evidence, start, texts)


def _frozen(texts: Sequence[str]) -> list[str]:
    """Return vLLM's newest reports, if all of them say that requests wait and nothing is generated."""
    found: list[str] = []
    for line in reversed(texts):
        if "Avg generation throughput" not in line:
            continue
        match = re.search(r"generation throughput: (\d+\.\d+) tokens/s, Running: (\d+) reqs?, Waiting: (\d+)", line)
        prompt = re.search(r"prompt throughput: (\d+\.\d+)", line)
        if match is None or float(match[1]) > 0 or not int(match[2]) + int(match[3]):
            break
        if prompt is not None and float(prompt[1]) > 0:
            break
        found.insert(0, line)
    return found if len(found) >= FROZEN else []


def _health(kind: ServerKind, texts: Sequence[str]) -> tuple[Verdict, tuple[str, ...]] | None:
    """Judge refused health checks of a server that was up: long prefills refuse as well, and are no death."""
    refused = [place for place, line in enumerate(texts) if "Health check failed" in line]
    if not refused:
        return None
    working = getattr(kind, "working", "") or "Prefill batch|Decode batch"
    if any(re.search(working, line) for line in texts[refused[0] :]):
        if any("Decode batch" in line for line in texts[refused[-1] :]):
            return None
        saw = "health checks fail while its log shows work"
        return waiting(saw, "200", Finding.BUSY_PREFILL), (texts[refused[-1]],)
    if len(refused) >= FROZEN:
        saw = f"{len(refused)} health checks failed, and no sign of work since"
        return failed(Finding.HANG, saw, "work", REMEDY[Finding.HANG]), (texts[refused[-1]],)
    return waiting(f"{len(refused)} health checks failed", "200"), (texts[refused[-1]],)


def _drafting(
    kind: ServerKind, evidence: Evidence, start: Startup, texts: tuple[str, ...]
) -> tuple[Verdict, tuple[str, ...]] | None:
    """Judge speculation by what the newest batches say, where it is asked for or reported."""
    lengths, last = lengths_of(texts)
    guard = Drafting(min_accept_len=MIN_ACCEPT_LEN)
    if lengths:
        verdict = guard.check(statistics.median(lengths[-50:]), (None, None))
        return (verdict, (last,)) if verdict is not None else None
    if any("speculative decoding not supported by this context" in line for line in texts):
        verdict = guard.check(None, (0, None))
        return (verdict, ("speculative decoding not supported",)) if verdict is not None else None
    effective = kind.effective({}, texts)
    algorithm = (effective.values if effective else {}).get("speculative-algorithm")
    decodes = [line for line in texts if "Decode batch" in line]
    if kind.name == "sglang" and algorithm not in (None, "", "None") and len(decodes) >= FROZEN:
        verdict = guard.check(None, (0, None))
        return (verdict, (decodes[-1],)) if verdict is not None else None
    return None


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


# ---------------------------------------------------------------- causes and facts


def _useless(kind: ServerKind, start: Startup, texts: tuple[str, ...]) -> tuple[Cause, ...]:
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


def _causes(kind: ServerKind, texts: Sequence[str], verdict: Verdict) -> tuple[Cause, ...]:
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


def _facts(
    kind: ServerKind, evidence: Evidence, start: Startup, texts: tuple[str, ...], context: Mapping[str, Any]
) -> dict[str, Any]:
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
