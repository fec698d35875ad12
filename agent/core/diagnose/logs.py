"""Pasted logs of servers: how far the start came, what ended it, what was changed, what is drafted."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import re2 as re

from ..actions import Watch
from ..evidence import Answer, Evidence
from ..guards import Guard, failed, unknown, waiting
from ..guards.config import EffectiveConfig, EnvApplied
from ..guards.lifecycle import REMEDY, Progressing
from ..guards.load import Drafting
from ..guards.view import cause_of
from ..observations import SectionResult
from ..probes.logs import clock_of
from ..servers import ServerKind, kind_of
from ..servers.forms import generation, told
from ..servers.startup import Startup, read_startup
from ..values import Finding, Result, Verdict
from .base import TEXT_MAX, Diagnosis, Line, evidence_of, judge_all, look, scalars, words, worst_of
from .logfacts import causes as reasons
from .logfacts import facts, lengths_of, useless
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
    causes = useless(kind, start, texts) if verdict.finding is Finding.DRAFT_USELESS else reasons(kind, texts, verdict)
    parsed = facts(kind, evidence, start, texts, context)
    blank = start.phase == "" and start.accept_len is None and not _asked(context)
    if blank and verdict.finding is None and verdict.result in (Result.PASS, Result.WAIT):
        # The first engine was tried for want of a better one: to name it would be a guess.
        parsed = {**parsed, "engine": ""}
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
        guards.append(EffectiveConfig(allow_overrides=_allowed(context)))
    if context.get("requested_env"):
        guards.append(EnvApplied())
    found = judge_all([Progressing(), *guards], evidence)
    serving = _serving(kind, evidence, start, texts)
    if serving is not None and serving[0].result is not Result.PASS:
        found.append(serving[0])
    verdict = worst_of(found)
    if verdict.result is Result.PASS and start.phase != "READY" and not guards and start.accept_len is None:
        verdict = verdict.model_copy(update={"result": Result.WAIT, "wanted": "the log's word that it is up"})
    if verdict.result is Result.PASS and not context.get("requested"):
        changed = _changed(kind, texts, context)
        verdict = changed[0] if changed is not None else verdict
        serving = changed or serving
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


def _allowed(context: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the flags that may be changed, as the context names them."""
    allowed = context.get("allowed_overrides")
    return tuple(str(name) for name in allowed) if isinstance(allowed, (list, tuple)) else ()


def _changed(
    kind: ServerKind, texts: tuple[str, ...], context: Mapping[str, Any]
) -> tuple[Verdict, tuple[str, ...]] | None:
    """Judge words of the engine that it changed flags, where nobody says what was asked for: that is not known."""
    told = getattr(kind, "announced", lambda lines: ())
    # What it chose because nothing was said is no change of what was asked for.
    shows = tuple(line for line in texts if "override this by explicitly setting" not in line and told((line,)))
    flags = set(told(shows)) - {name.replace("_", "-") for name in _allowed(context)}
    if not flags:
        return None
    effective = kind.effective({}, texts)
    values = effective.values if effective else {}
    named = ", ".join(f"{flag}, now {values[flag]}" if flag in values else flag for flag in sorted(flags)[:4])
    remedy = 'say what was asked for: --context FILE with {"requested": {"FLAG": VALUE}}'
    saw = f"it is up, and it says that it changed a flag: {named}"
    verdict = unknown(saw, "what was asked for, to compare with what is in effect")
    return verdict.model_copy(update={"remedy": remedy}), shows


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
