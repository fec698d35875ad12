"""Numbers and JSON of unknown origin: read with suspicion, turned into sane values or into None."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

DOCUMENT_CHARS_MAX = 16 * 1024 * 1024
METRICS_MAX = 200


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(f"not a number: {text}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"not a finite number: {text[:40]}")
    return number


def load_json(text: str) -> Any:
    """Return the JSON value, or None for anything that is not strict JSON of a sane size.

    NaN, Infinity, 1e999, duplicate keys, and nesting or integers without end are refused.
    """
    if len(text) > DOCUMENT_CHARS_MAX:
        return None
    try:
        return json.loads(text, object_pairs_hook=_pairs, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def load_lenient(text: str) -> Any:
    """Return the JSON value as tools write it: ``Infinity`` and ``NaN`` are read as words; None when it is none.

    A number that cannot be one becomes a word too, so that nothing but finite numbers is ever taken for a number.
    """
    if len(text) > DOCUMENT_CHARS_MAX:
        return None
    words = {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}
    try:
        return json.loads(text, parse_constant=lambda name: words[name], parse_float=_word_unless_finite)
    except (ValueError, RecursionError):
        return None


def _word_unless_finite(text: str) -> Any:
    number = float(text)
    return number if math.isfinite(number) else text[:40]


def load_document(text: str) -> dict[str, Any] | None:
    """Return the one JSON object in this output: the whole of it, or its last line when others stand before."""
    stripped = text.strip()
    lines = stripped.rsplit("\n", 1)
    for candidate in dict.fromkeys((stripped, lines[-1].strip())):
        value = load_json(candidate) if candidate.startswith("{") else None
        if isinstance(value, dict):
            return value
    return None


def count(value: Any) -> int | None:
    """Return a count (a whole number from 0 to 2**53), or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 2**53:
        return None
    return int(value) if value == int(value) else None


def measure(value: Any) -> float | None:
    """Return a finite number that is not negative, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e15:
        return None
    return float(value)


def word(value: Any) -> str:
    """Return a short text that can be written as UTF-8, or ''."""
    return value[:500].encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else ""


def mapping(value: Any) -> dict[str, Any]:
    """Return the value when it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def numbers(table: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return every finite number of the table by its own name, a bounded number of them."""
    found: dict[str, float] = {}
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e15:
            continue
        if len(name) <= 100 and len(found) < METRICS_MAX:
            found[word(prefix + name)] = float(value)
    return found


def percentile(values: list[float], share: float) -> float:
    """Return the percentile by linear interpolation between the two nearest of the sorted values."""
    place = (len(values) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def summary(values: list[float]) -> dict[str, float]:
    """Return mean, median, 95th and 99th percentile of the values; {} of none."""
    if not values:
        return {}
    ordered = sorted(values)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    found = {name: percentile(ordered, share) for name, share in shares.items()}
    return {"mean": math.fsum(ordered) / len(ordered), **found}
