"""Pasted HTTP exchanges with a server: health, configuration, answers, counts of drafted tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import re2 as re

from ..actions import Watch
from ..evidence import Answer
from ..guards import failed, judge, passed, unknown, waiting
from ..guards.lifecycle import REMEDY, Ready
from ..guards.load import Drafting
from ..guards.output import degenerate
from ..probes.pasted import Block, blocks
from ..servers import kind_of
from ..values import Finding, Result, Verdict, duration_text
from . import logs, measured
from .base import Diagnosis, evidence_of, mapping
from .logs import MIN_ACCEPT_LEN, engine_of

_HEAD = re.compile(r"^(GET|POST|PUT|HEAD) +(\S+)")
_CODE = re.compile(r"-> *(\d{3})\b")
_NONE = re.compile(r"(?i)-> *(?:000|timeout|timed out|no answer|hang|refused|connection refused|error|\(?none)")
_HEALTH = re.compile(r"/(?:health|health_generate|v1/health|healthz|ready|ping)\b")
_ANSWERS = re.compile(r"/(?:generate|completion|completions|chat/completions)\b")
_FLUSH = re.compile(r"/(?:flush_cache|reset_prefix_cache)\b")
_TAILS = ("log_tail", "log", "server_log")
_INFO = re.compile(r"/(?:get_)?(?:server_info|model_info)\b|/props\b|/v1/models\b")


@dataclass(frozen=True)
class Exchange:
    """A request and what came of it. ``code`` 0: no answer; None: the text does not say."""

    path: str
    code: int | None
    at: float | None
    body: str
    head: str

    @property
    def document(self) -> dict[str, Any]:
        """The body as a JSON object; {} when it is none."""
        start = self.body.find("{")
        try:
            return mapping(json.JSONDecoder().raw_decode(self.body[start:])[0]) if start >= 0 else {}
        except (ValueError, RecursionError):
            return {}


def exchanges(parts: Sequence[Block]) -> list[Exchange]:
    """Return the requests, in their order; also the answers that ``curl -i`` prints."""
    found = []
    for block in parts:
        match = _HEAD.search(block.head)
        if match is None:
            plain = re.search(r"(?m)^HTTP/[\d.]+ (\d{3})", block.text)
            if plain is not None:
                found.append(Exchange("/health", int(plain[1]), block.seconds("t"), block.text, block.head))
            continue
        code = _CODE.search(block.head)
        value = int(code[1]) if code else 0 if _NONE.search(block.head) else None
        found.append(Exchange(match[2], value, block.seconds("t"), block.text, block.head))
    return found


def read(text: str, context: dict[str, Any]) -> Diagnosis:
    """Judge the exchanges: whose server answers, whether it serves, what it says, whether it drafts."""
    parts = blocks(text)
    asked = exchanges(parts)
    argv = next((block.head for block in parts if block.name == "argv"), "")
    name = "llamacpp" if "llama" in argv or '"timings"' in text else engine_of(text)
    checks = (
        _identity(asked, context),
        _logged(parts, context),
        _healthy(name, parts, asked, context),
        _served(asked),
        _awake(asked),
        _flushed(asked),
        _text(asked),
    )
    for found in checks:
        if found is not None and found[0].result is Result.FAIL:
            return Diagnosis(found[0], _parsed(name, asked), shows=found[1])
    drafting = _drafting(name, asked, argv)
    if drafting is not None:
        return drafting
    waiting = next((found for found in checks if found is not None and found[0].result is not Result.PASS), None)
    chosen = waiting or next((found for found in reversed(checks) if found is not None), None)
    if chosen is None:
        chosen = unknown("there is no exchange that can be judged", "health, or an answer"), ()
    return Diagnosis(chosen[0], _parsed(name, asked), shows=chosen[1])


def _parsed(name: str, asked: Sequence[Exchange]) -> dict[str, Any]:
    return {
        "engine": "llama.cpp" if name == "llamacpp" else name,
        "health": [exchange.code for exchange in asked if _HEALTH.search(exchange.path)],
        "codes": {exchange.path: exchange.code for exchange in asked},
    }


Found = tuple[Verdict, tuple[str, ...]]


def _identity(asked: Sequence[Exchange], context: Mapping[str, Any]) -> Found | None:
    """Compare what the server says of itself with what was launched."""
    wanted = mapping(context.get("requested"))
    model = next((str(wanted[key]) for key in ("model_path", "model-path", "model") if wanted.get(key)), "")
    port = wanted.get("port")
    for exchange in asked:
        if exchange.code != 200 or not _INFO.search(exchange.path):
            continue
        document = exchange.document
        says = document.get("model_path") or document.get("model")
        if model and isinstance(says, str) and says != model:
            remedy = "another server, or another model, answers under our port: whatever it says is about that one"
            saw = f"the server says it serves {says}"
            return failed(Finding.FOREIGN_SERVER, saw, model, remedy, (Finding.PORT_IN_USE,)), (says,)
        if isinstance(port, int) and isinstance(document.get("port"), int) and document["port"] != port:
            saw = f"the server says it listens on {document['port']}"
            return failed(Finding.FOREIGN_SERVER, saw, f"port {port}"), ('"port"',)
    return None


def _logged(parts: Sequence[Block], context: Mapping[str, Any]) -> Found | None:
    """Take what the log beside it says ended the server; anything else is judged together with the health checks."""
    for block in parts:
        if block.name in _TAILS and block.text.strip():
            found = logs.read(block.text, {"engine_version": context.get("engine_version")})
            if found.verdict.result is Result.FAIL:
                return found.verdict, tuple(line.text for line in found.evidence)
    return None


def _healthy(name: str, parts: Sequence[Block], asked: Sequence[Exchange], context: Mapping[str, Any]) -> Found | None:
    """Judge the health checks together with the log that was taken at the same time."""
    checks = [exchange for exchange in asked if _HEALTH.search(exchange.path)]
    tail = [block for block in parts if block.name in _TAILS]
    if not checks:
        return None
    if name == "llamacpp" and not tail:
        code = checks[-1].code
        if code == 200:
            return passed("health 200"), ()
        if code == 503 and "Loading model" in checks[-1].body:
            limit, at = kind_of(name).phase_limits["LOAD"], checks[-1].at or 0.0  # type: ignore[attr-defined]
            if at > limit:
                saw = f"health says that it is loading, {duration_text(at)} after the start"
                return failed(Finding.HANG, saw, f"at most {duration_text(limit)}", REMEDY[Finding.HANG]), (
                    checks[-1].head,
                )
            return waiting("health says 503: it is loading", "200"), (checks[-1].head,)
        return unknown(f"health says {code or 'nothing'}", "200"), (checks[-1].head,)
    watch: list[tuple[float, str]] = [(-1.0, "state LIVE 2 0 0")]
    now, stages = 0.0, str(context.get("state_before", ""))
    if stages == "READY":
        watch += [(0.0, "log 0 The server is fired up and ready to roll!"), (0.0, "health 200")]
        if name == "vllm":
            watch.insert(1, (0.0, "log 0 INFO: Application startup complete."))
    for block in parts:
        now = max(now, block.seconds("t") or block.seconds("age_s") or now)
        if block in tail:
            watch += [(now, f"log {len(watch) + n} {line}") for n, line in enumerate(block.text.splitlines())]
            continue
        match = _HEAD.search(block.head)
        if match is None or not _HEALTH.search(match[2]):
            continue
        code = _CODE.search(block.head)
        if code or _NONE.search(block.head):
            watch.append((now, f"health {int(code[1]) if code else 0}"))
    answers = [Answer("watch", Watch(key="run", url=""), "watch", 0.0, None, None, watch)]
    verdict = judge(Ready(grace=0.0), evidence_of(name, now=now, answers=answers))
    early = verdict.finding is Finding.FOREIGN_SERVER
    if early and (not tail or stages == "READY"):  # without the log nothing speaks against this server
        return passed("health 200"), (checks[-1].head,)
    return verdict, (checks[-1].head,)


def _served(asked: Sequence[Exchange]) -> Found | None:
    """Judge whether requests are answered where health says that all is well."""
    healthy = any(exchange.code == 200 for exchange in asked if _HEALTH.search(exchange.path))
    for exchange in sorted(asked, key=lambda exchange: exchange.code != 0):  # silence says more than a refusal
        plain = exchange.path.split("?")[0]
        if _HEALTH.search(plain) and not plain.endswith("_generate"):
            continue
        if not _ANSWERS.search(plain) and not _INFO.search(plain) and not re.search(r"/slots|_generate$", plain):
            continue
        if exchange.code == 0 and healthy:
            saw = f"health says 200, and {plain} does not answer"
            return failed(Finding.HANG, saw, "an answer", REMEDY[Finding.HANG]), (exchange.head,)
        if exchange.code is not None and exchange.code >= 500 and exchange.code != 501:
            saw = f"{plain} got HTTP {exchange.code}"
            remedy = "healthy or not, it does not serve: look at its log, and ask again before anything is measured"
            return failed(Finding.SERVER_NOT_READY, saw, "an answer", remedy), (exchange.head,)
    return None


def _awake(asked: Sequence[Exchange]) -> Found | None:
    """Judge what the server says of its sleep: one that sleeps has given its memory away, and is healthy."""
    for exchange in asked:
        if exchange.code == 200 and exchange.document.get("is_sleeping") is True:
            remedy = "wake it up (POST /wake_up), or launch anew, before anything is asked or measured"
            return failed(Finding.SERVER_NOT_READY, "the server sleeps", "a server that is awake", remedy), (
                '"is_sleeping"',
            )
    return None


def _flushed(asked: Sequence[Exchange]) -> Found | None:
    """Judge the newest flush of the cache by its status: the words are the same whether it was done or not."""
    flushes = [exchange for exchange in asked if _FLUSH.search(exchange.path) and exchange.code is not None]
    if not flushes:
        return None
    last = flushes[-1]
    if last.code == 200:
        return passed("the cache was flushed (HTTP 200)"), (last.head,)
    if last.code == 0:
        return unknown("the flush of the cache was not answered", "200"), (last.head,)
    remedy = "wait until no request runs or waits, flush again, and measure only after a 200"
    saw = f"the cache was not flushed (HTTP {last.code}), whatever the text says"
    return failed(Finding.CACHE_WARM, saw, "200", remedy), (last.head,)


def _text(asked: Sequence[Exchange]) -> Found | None:
    """Judge the text of answers."""
    for exchange in asked:
        if exchange.code != 200 or not _ANSWERS.search(exchange.path):
            continue
        text = _answer(exchange.document)
        if text is None:
            continue
        fault = degenerate(text)
        if fault:
            saw = f"{fault}: {text.strip()[:60]!r}"
            return failed(Finding.BAD_OUTPUT, saw, "sensible text", "check weights and the draft's wiring"), (
                exchange.head,
                text[:40],
            )
        return passed(f"it answered {text.strip()[:60]!r}"), (exchange.head,)
    return None


def _answer(document: Mapping[str, Any]) -> str | None:
    for key in ("text", "content", "response"):
        if isinstance(document.get(key), str):
            return str(document[key])
    choices = document.get("choices")
    first = mapping(choices[0]) if isinstance(choices, list) and choices else {}
    text = first.get("text", mapping(first.get("message")).get("content"))
    return text if isinstance(text, str) else None


def _drafting(name: str, asked: Sequence[Exchange], argv: str) -> Diagnosis | None:
    """Judge speculation by the requests' own counts."""
    guard = Drafting(min_accept_len=MIN_ACCEPT_LEN)
    tokens = steps = 0
    for exchange in asked:
        if "/metrics" in exchange.path and exchange.code == 200 and "spec_" in exchange.body:
            found = measured.metrics(exchange.body, {})
            if found.verdict.result is not Result.UNKNOWN:
                return found
        meta = mapping(exchange.document.get("meta_info"))
        one, many = meta.get("spec_verify_ct"), meta.get("completion_tokens")
        if isinstance(one, int) and isinstance(many, int) and one > 0:
            tokens, steps = tokens + many, steps + one
    if steps:
        verdict = guard.check(tokens / steps, (None, None))
        parsed = {**_parsed(name, asked), "accept_len": tokens / steps, "spec_verify_ct": steps}
        return Diagnosis(verdict or unknown("no counts"), parsed, shows=('"spec_verify_ct"',))
    if name == "llamacpp":
        return _llama(asked, argv)
    return None


def _llama(asked: Sequence[Exchange], argv: str) -> Diagnosis | None:
    """Tell from a completion's timings whether llama.cpp drafted: the counts are there only if it did."""
    timings: dict[str, Any] = {}
    slots: list[bool] = []
    for exchange in asked:
        timings |= mapping(exchange.document.get("timings"))
        if "/slots" in exchange.path and exchange.code == 200:
            slots += [value == "true" for value in re.findall(r'"speculative": ?(true|false)', exchange.body)]
    numbers = {key: value for key, value in timings.items() if isinstance(value, (int, float))}
    drafted, accepted = numbers.get("draft_n"), numbers.get("draft_n_accepted")
    parsed = {**_parsed("llamacpp", asked), **numbers, "draft_n": drafted, "draft_n_accepted": accepted}
    wanted = re.search(r" (?:-md|--model-draft|--spec-draft-model|--spec-type)[ =]", argv) is not None
    if not wanted or not (numbers or slots):
        return None
    shows = ("draft_n", '"timings"', '"speculative"', "argv:")
    if not numbers:
        verdict = Drafting().check(None, (0, None)) if not any(slots) else None
        return Diagnosis(verdict or unknown("no request was counted", "timings"), parsed, shows=shows)
    share = accepted / drafted if drafted and accepted is not None else None
    found = Drafting().check(None if share is None else 1.0 + share, (drafted, None))
    return Diagnosis(found or unknown("the timings do not tell whether it drafted"), parsed, shows=shows)
