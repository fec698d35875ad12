"""Small frozen values that everything else is made of: text of unknown origin, identities, digests, units.

Nothing here knows a playbook, a host or a journal.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

INLINE_BYTES_MAX = 48 * 1024
"""Outputs up to this size stand in the entry itself; larger ones go to a blob."""


class Value(BaseModel):
    """A frozen record that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class MissingBlobError(LookupError):
    """The bytes behind an output are not at hand: whatever would be read from them is unknown."""


class Output(Value):
    """Bytes that came from outside, kept exactly.

    UTF-8 is kept as text, anything else as base64, and what is too large for an entry as the
    SHA-256 of a blob. ``size`` is the length in bytes of what is kept; ``dropped`` counts bytes
    that were cut from the middle at the source (head and tail are kept), where ``whole`` is then the
    SHA-256 of all of it, if the source told.
    """

    text: str | None = None
    b64: str | None = None
    blob: str | None = None
    size: int = 0
    dropped: int = 0
    whole: str = ""

    @classmethod
    def of(cls, data: bytes | str, dropped: int = 0, whole: str = "") -> Output:
        """Keep ``data`` exactly."""
        raw = data.encode() if isinstance(data, str) else data
        try:
            return cls(text=raw.decode(), size=len(raw), dropped=dropped, whole=whole)
        except UnicodeDecodeError:
            return cls(b64=base64.b64encode(raw).decode(), size=len(raw), dropped=dropped, whole=whole)

    def raw(self) -> bytes:
        """Return the bytes; raise MissingBlobError when they lie in a blob that was not loaded."""
        if self.text is not None:
            return self.text.encode()
        if self.b64 is not None:
            return base64.b64decode(self.b64)
        if self.blob is None and self.size == 0:
            return b""
        raise MissingBlobError(self.blob or "no content")

    def string(self) -> str:
        r"""Return the content as text; bytes that are not UTF-8 are shown as ``\xNN``."""
        return self.text if self.text is not None else self.raw().decode("utf-8", "backslashreplace")

    def spilled(self) -> tuple[Output, bytes]:
        """Return the same output as a reference to a blob, and the blob's bytes."""
        raw = self.raw()
        kept = Output(blob=hashlib.sha256(raw).hexdigest(), size=self.size, dropped=self.dropped, whole=self.whole)
        return kept, raw


class Result(StrEnum):
    """What a guard found. Only PASS opens a gate."""

    PASS = "PASS"
    WAIT = "WAIT"
    UNKNOWN = "UNKNOWN"
    FAIL = "FAIL"


SEVERITY = {Result.PASS: 0, Result.WAIT: 1, Result.UNKNOWN: 2, Result.FAIL: 3}


def worst(results: list[Result]) -> Result:
    """Return the worst of ``results``; nothing at all is UNKNOWN, never a pass."""
    return max(results, key=lambda result: SEVERITY[result], default=Result.UNKNOWN)


_TIME = re.compile(r"(?:^|_)ms(?:_|$)|(?<!tok)(?<!req)_s$|^(?:latency|ttft|tpot|itl|e2e)(?:_|$)", re.ASCII)
_RATE = re.compile(r"(?:^|_)(?:tok|req|tokens|requests|per)_s(?:_|$)", re.ASCII)


def lower_is_better(metric: str) -> bool:
    """Whether a metric of that name is a time: ``ttft_ms_p99``, ``duration_s``, of one workload ``e2e_ms_mean_c8``.

    Anything else, and every rate (``output_tok_s``, ``goodput_req_s``), is better when there is more of it.
    """
    return _TIME.search(metric) is not None and _RATE.search(metric) is None


class Finding(StrEnum):
    """The closed list of classes that guards, ``on_fail`` and reports use."""

    OURS = "OURS"
    FOREIGN = "FOREIGN"
    FOREIGN_SERVER = "FOREIGN_SERVER"
    NAMESPACE = "NAMESPACE"
    WEDGED = "WEDGED"
    DSTATE = "DSTATE"
    GPU_LOST = "GPU_LOST"
    DIRTY_GPU = "DIRTY_GPU"
    PORT_IN_USE = "PORT_IN_USE"
    CONFIG_INVALID = "CONFIG_INVALID"
    CONFIG_OVERRIDDEN = "CONFIG_OVERRIDDEN"
    ENV_NOT_APPLIED = "ENV_NOT_APPLIED"
    UNSUPPORTED = "UNSUPPORTED"
    WEIGHTS_MISMATCH = "WEIGHTS_MISMATCH"
    DRAFT_USELESS = "DRAFT_USELESS"
    SPEC_OFF = "SPEC_OFF"
    MEMORY_IMBALANCE = "MEMORY_IMBALANCE"
    GPU_OOM = "GPU_OOM"
    HOST_OOM = "HOST_OOM"
    DEAD_RANK = "DEAD_RANK"
    HANG = "HANG"
    WARMUP_TIMEOUT = "WARMUP_TIMEOUT"
    CRASH = "CRASH"
    SERVER_NOT_READY = "SERVER_NOT_READY"
    BUSY_PREFILL = "BUSY_PREFILL"
    BAD_OUTPUT = "BAD_OUTPUT"
    INCOMPLETE_RUN = "INCOMPLETE_RUN"
    IMPLAUSIBLE = "IMPLAUSIBLE"
    CACHE_WARM = "CACHE_WARM"
    NOISY = "NOISY"
    THROTTLED = "THROTTLED"
    LOST = "LOST"


class Verdict(Value):
    """What a guard concluded, from which observations.

    ``saw`` and ``wanted`` are prose for people and are not compared in replay; ``read`` names the
    requests whose observations were used; ``also`` lists further classes that hold beside the cause.
    """

    result: Result
    finding: Finding | None = None
    saw: str = ""
    wanted: str = ""
    remedy: str = ""
    also: tuple[Finding, ...] = ()
    read: tuple[str, ...] = ()


def canonical(value: Any) -> bytes:
    """Return ``value`` as JSON that is the same for equal values: sorted keys, no spaces, no NaN."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest(value: Any) -> str:
    """Return the SHA-256 (hex) of bytes, or of the canonical JSON of anything else."""
    return hashlib.sha256(value if isinstance(value, bytes) else canonical(value)).hexdigest()


def job_key(campaign: str, request: str) -> str:
    """Return the name of a request on its host: unique per campaign and request, safe as a file name."""
    return f"{campaign[:8]}-{hashlib.sha256(f'{campaign}{request}'.encode()).hexdigest()[:12]}"


def rounded(value: float) -> float:
    """Round to 6 significant digits, the precision in which derived numbers are kept and compared."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, 5 - math.floor(math.log10(abs(value))))


_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s?(B|KiB|MiB|GiB|KB|MB|GB)", re.ASCII)


def parse_duration(text: str) -> float:
    """Return the seconds that ``15m``, ``1h30m`` or ``250ms`` say; raise ValueError otherwise."""
    if not isinstance(text, str) or not _DURATION.fullmatch(text):
        raise ValueError("a duration has a unit: 250ms, 5s, 15m, 8h, 1h30m")
    return sum(float(number) * _UNIT_S[unit] for number, unit in _DURATION_PART.findall(text))


def parse_size(text: str) -> int:
    """Return the bytes that ``512MiB`` says; raise ValueError otherwise."""
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError("a size has a unit: 512MiB, 2GiB")
    return int(float(match[1]) * _UNIT_BYTES[match[2]])


def parse_percent(text: str) -> float:
    """Return the fraction that ``2%`` says; raise ValueError otherwise."""
    if not isinstance(text, str) or not re.fullmatch(r"\d+(?:\.\d+)?%", text, re.ASCII):
        raise ValueError("a share has a percent sign: 2%")
    return float(text[:-1]) / 100


def is_count(text: str) -> bool:
    """Whether ``text`` is a whole number that ``int`` takes and a column can hold: ASCII digits, 18 at most."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


def duration_text(seconds: float) -> str:
    """Write seconds the way playbooks do, to the two largest units."""
    if seconds < 60:
        return f"{seconds:.3g}s"
    parts = [(86400, "d"), (3600, "h"), (60, "m"), (1, "s")]
    left, words = round(seconds), []
    for unit, name in parts:
        if left >= unit:
            words.append(f"{left // unit}{name}")
            left %= unit
    return "".join(words[:2])
