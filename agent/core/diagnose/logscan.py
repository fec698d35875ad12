"""A server's log of any length, reduced to the lines that the engines' knowledge is about. Memory is bounded.

All patterns of all engines are searched as one automaton over whole chunks. Lines about single batches come by the
hundred thousand and mean the same: of those the first few and the newest are kept, found without matching any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import re2

from ..probes.logs import LINE_MAX, last_segment
from ..servers import kind_of
from .base import Line

ENGINES = ("sglang", "vllm", "llamacpp")
BATCH = ("Decode batch", "Prefill batch", "SpecDecoding metrics", "Avg prompt throughput", "draft acceptance = ")
"""Words of lines that are written again and again while requests are worked on."""
FIRST, NEWEST = 20, 200
"""So many of each are kept."""
SAME = 100
"""So many of the first, and of the newest, lines that differ in numbers only are kept."""
SHAPE = 200
"""So many bytes of a line say whether it is like another one."""
SHAPES = 20_000
"""So many different lines are kept at most."""

_ALSO = ("^Killed|^Aborted|core dumped|oom-kill|NVRM: Xid", "vLLM API server|server_args|size mismatch for ")
_PLENTY = ("|accept len: |Prefill batch", "|SpecDecoding metrics")
Raw = tuple[int, bytes]
_EDGE = 64 * 1024
_BEGINNING = 4 << 20
_DIGITS = b"0123456789abcdef"


@cache
def automaton() -> Any:
    """Return the one pattern that finds every line worth keeping."""
    found = dict.fromkeys(pattern for name in ENGINES for pattern in kind_of(name).watch_patterns())
    found |= dict.fromkeys(
        ("^Killed|^Aborted|core dumped|oom-kill|NVRM: Xid", "vLLM API server|server_args|size mismatch for ")
    )
    text = "|".join(found)
    for part in _PLENTY:
        text = text.replace(part, "")
    options = re2.Options()
    options.max_mem = 64 << 20
    return re2.compile(f"(?m){text}".encode(), options)


class LogScan:
    """Takes a log in pieces; ``lines`` are what is left of it, in their order."""

    def __init__(self) -> None:
        self.size = 0
        self.count = 0
        """Lines seen so far."""
        self._first: dict[bytes, list[Raw]] = {}
        self._newest: dict[bytes, deque[Raw]] = {}
        self._few: dict[str, list[Line]] = {word: [] for word in BATCH}
        self._piece: dict[str, tuple[int, bytes]] = {}
        """The newest piece in whose end each of those words stands, and how many lines came before it."""
        self._edge: list[Line] = []
        self._last = Line(0, "")
        self._rest = b""
        self._looked = 0

    def feed(self, data: bytes) -> None:
        """Take the next piece; it may begin and end anywhere."""
        self.size += len(data)
        cut = data.rfind(b"\n") + 1
        if cut == 0:
            self._rest = self._rest + data if len(self._rest) < LINE_MAX else self._rest[:LINE_MAX] + data[-LINE_MAX:]
            return
        self._scan(self._rest + data[:cut])
        self._rest = data[cut:]

    def lines(self) -> tuple[Line, ...]:
        """Return the lines that were kept; what came after the last line's end counts as a line."""
        if self._rest:
            self._scan(self._rest + b"\n")
            self._rest = b""
        found = {line.number: line for line in (*self._edge, self._last)}
        for few in self._few.values():
            found |= {line.number: line for line in few}
        for kept in (*self._first.values(), *self._newest.values()):
            found |= {number: _line(number, raw) for number, raw in kept}
        for word, (before, data) in self._piece.items():
            found |= {line.number: line for line in _newest(data, word.encode(), before)}
        return tuple(found[number] for number in sorted(found) if number and found[number].text)

    def _scan(self, data: bytes) -> None:
        search, place, at, number = automaton().search, 0, 0, self.count
        while (match := search(data, place)) is not None:
            start = data.rfind(b"\n", 0, match.start()) + 1
            end = data.find(b"\n", max(match.end() - 1, start))
            number += data.count(b"\n", at, start)
            at = start
            self._keep(number + 1, data[start:end])
            place = end + 1
            if place >= len(data):
                break
        self._batches(data)
        if not self._edge:
            self._edge.append(_line(1, data[: data.find(b"\n")]))
        number += data.count(b"\n", at)
        end = len(data)
        while end and data[end - 1] in b" \t\r\n":  # what was said last is no empty line
            end -= 1
        if end:
            start = data.rfind(b"\n", 0, end) + 1
            self._last = _line(number - data.count(b"\n", end) + 1, data[start:end])
        self.count = number

    def _keep(self, number: int, raw: bytes) -> None:
        shape = raw[:SHAPE].translate(None, _DIGITS)
        kept = self._first.get(shape)
        if kept is None:
            if len(self._first) < SHAPES:
                self._first[shape] = [(number, _short(raw))]
        elif len(kept) < SAME:
            kept.append((number, _short(raw)))
        else:
            newest = self._newest.get(shape)
            if newest is None:
                newest = self._newest[shape] = deque(maxlen=SAME)
            newest.append((number, _short(raw)))

    def _batches(self, data: bytes) -> None:
        """Remember where the newest lines about batches are; the first ones are taken from the first pieces."""
        self._looked += len(data)
        for word in BATCH:
            needle = word.encode()
            if data.rfind(needle, max(0, len(data) - _EDGE)) >= 0:
                self._piece[word] = (self.count, data)
            if self._looked > _BEGINNING or len(self._few[word]) >= FIRST:
                continue
            place, at, number = 0, 0, self.count
            while len(self._few[word]) < FIRST and (hit := data.find(needle, place)) >= 0:
                start, end = data.rfind(b"\n", 0, hit) + 1, data.find(b"\n", hit)
                number += data.count(b"\n", at, start)
                at, place = start, end + 1
                self._few[word].append(_line(number + 1, data[start:end]))


def _newest(data: bytes, needle: bytes, before: int) -> Iterator[Line]:
    """Return the newest lines of ``data`` that hold ``needle``; ``before`` lines came before it."""
    found: list[tuple[int, bytes]] = []
    end = len(data)
    while len(found) < NEWEST and (hit := data.rfind(needle, 0, end)) >= 0:
        start = data.rfind(b"\n", 0, hit) + 1
        found.append((start, data[start : data.find(b"\n", hit)]))
        end = start
    at = 0
    for start, raw in reversed(found):
        before += data.count(b"\n", at, start)
        at = start
        yield _line(before + 1, raw)


def _short(raw: bytes) -> bytes:
    """Return a line that is not too long to be kept; of one that overwrites itself its end is what counts."""
    if len(raw) <= LINE_MAX:
        return raw
    return raw[-LINE_MAX:] if b"\r" in raw else raw[:LINE_MAX]


def _line(number: int, raw: bytes) -> Line:
    """Return a line as a terminal would show it, at most so long."""
    text = raw.decode("utf-8", "backslashreplace")
    return Line(number, last_segment(text) if "\r" in text else text[:LINE_MAX])


def scan(chunks: Iterable[bytes]) -> LogScan:
    """Read a whole log."""
    found = LogScan()
    for chunk in chunks:
        found.feed(chunk)
    return found
