"""Reading lines of servers' logs: time stamps, ``key: value`` lines, printed configurations, NCCL's own words.

Engines change their formats between versions, so nothing here expects a whole line to look a certain way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import re2

LINE_MAX = 64 * 1024
_STAMP = re.compile(
    r"(?:\((?:APIServer|EngineCore|Worker)\S* pid=\d+\) )?(?:\[?(?:\d{4}-)?\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}[^\]\s]*"
    r"(?P<tags>(?: [A-Z]{2,3}\d{1,4})*)\]?|(?:INFO|WARNING|ERROR|DEBUG) \d{2}-\d{2} \d{2}:\d{2}:\d{2})\s*",
    re.ASCII,
)
_RANK = re.compile(r"^\[[^\]]{0,60}\bTP(\d{1,4})\b[^\]]{0,20}\]|Worker(?:_DP\d+)?_TP(\d{1,4})\b", re.ASCII)
_CLOCK = re.compile(r"(\d{2}-\d{2})[ T](\d{2}):(\d{2}):(\d{2})", re.ASCII)


@lru_cache(maxsize=512)
def compiled(pattern: str) -> Any:
    """Return a pattern of ours, compiled once: re2's own look-up of it costs more than matching a line."""
    return re2.compile(pattern)


def last_segment(line: str) -> str:
    """Return what a terminal would show of a line that overwrites itself."""
    return line.rstrip("\r").rpartition("\r")[2][:LINE_MAX]


def without_stamp(line: str) -> str:
    """Return the line without its leading time and rank, so that repetitions are equal."""
    line = last_segment(line)
    match = _STAMP.match(line)
    return line[match.end() :] if match else line


def rank_of(line: str) -> int | None:
    """Return the tensor-parallel rank that wrote the line, if it says so."""
    match = _RANK.search(line[:200])
    return int(match[1] or match[2]) if match else None


def clock_of(line: str) -> float | None:
    """Return the line's own time in seconds of its year (only differences mean anything)."""
    match = _CLOCK.search(line[:80])
    if match is None:
        return None
    month, day = (int(part) for part in match[1].split("-"))
    days = sum((31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[: max(0, month - 1)]) + day
    return days * 86400.0 + int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4])


def stamp_of(line: str) -> str:
    """Return the line's own time as it is written; '' when it has none."""
    match = re.search(r"(?:\d{4}-)?\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}", line[:80], re.ASCII)
    return match[0] if match else ""


_PAIR = re.compile(r"([#A-Za-z][A-Za-z0-9_#/() .-]{0,40}?)\s*[:=]\s*([^,\s]+)")


def pairs(line: str) -> dict[str, Any]:
    """Return the ``key: value`` pairs of a line such as ``Decode batch, #running-req: 1, accept len: 2.41, …``.

    Keys are kept as written, without a leading ``#``; numbers and True/False become values.
    """
    found: dict[str, Any] = {}
    for part in re.split(r", |\. (?=#)|,$", without_stamp(line)):
        match = _PAIR.search(part.strip())
        if match:
            found[match[1].strip().lstrip("#")] = literal(match[2])
    return found


# ---------------------------------------------------------------- printed values


def literal(text: str) -> Any:
    """Return the value that Python would print like this: a string, number, True, False or None; else the text."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].replace("\\\\", "\\").replace(f"\\{text[0]}", text[0])
    if text in {"True", "False", "None"}:
        return {"True": True, "False": False, "None": None}[text]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?\d{0,18}\.?\d{1,18}(?:[eE][-+]?\d{1,3})?", text):
        return float(text)
    if text[:1] == "[" and text[-1:] == "]":
        return [literal(part) for part in split_top(text[1:-1]) if part.strip()]
    return text


def _outside_quotes(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield each sign that stands in no quotes: its place, the sign, and how many brackets are open after it."""
    depth, quote, skip = 0, "", False
    for place, sign in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = sign == "\\"
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        else:
            depth += (sign in "([{") - (sign in ")]}")
            yield place, sign, depth


def split_top(text: str) -> list[str]:
    """Split at commas that stand in no bracket and no quotes."""
    parts, start = [], 0
    for place, sign, depth in _outside_quotes(text):
        if sign == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def arguments(text: str) -> dict[str, Any]:
    """Read ``a='x', b=1, …`` or ``'a': 'x', 'b': 1, …``, as dataclasses and dicts are printed."""
    found: dict[str, Any] = {}
    for part in split_top(text[:LINE_MAX]):
        match = re.match(r"\s*['\"]?([A-Za-z_][A-Za-z0-9_]*)['\"]?\s*[=:]\s*(.*)", part, re.DOTALL)
        if match:
            found[match[1]] = literal(match[2]) if match[2][:1] != "[" or len(match[2]) < 2000 else match[2]
    return found


def inside(line: str, opening: str) -> str | None:
    """Return what stands between ``opening`` (which ends in a bracket) and its closing bracket, or the line's end."""
    place = line.find(opening)
    if place < 0:
        return None
    text = line[place + len(opening) :][:LINE_MAX]
    for place, _, depth in _outside_quotes(text):
        if depth < 0:
            return text[:place]
    return None  # cut off: whatever stands behind the cut is not known


# ---------------------------------------------------------------- NCCL

_SET = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]+) set by environment to (.*)$", re.ASCII)


def nccl_settings(lines: Iterable[str]) -> dict[str, str]:
    """Return what NCCL says it took from its environment; ranks that differ are joined with ``|``."""
    found: dict[str, list[str]] = {}
    for line in lines:
        match = _SET.search(line.rstrip())
        if match:
            value = match[2].strip().removesuffix(".")
            if value not in found.setdefault(match[1], []):
                found[match[1]].append(value)
    return {name: "|".join(values) for name, values in found.items()}
