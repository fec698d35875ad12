"""Read a Chrome trace (torch's profiler, SGLang, vLLM) piece by piece: only the events that are asked for, in batches.

Runs on the server's own host with nothing but Python 3.8: it must not import from the agent. A trace has hundreds of
megabytes, and most of its events say nothing about where the GPU's time went: the text is cut at the separator between
two events, and an event is parsed only when its category is wanted. What does not look as expected is parsed in full,
event by event, so the shortcut is never a guess. A trace that breaks off or that cannot be read raises
DamagedTraceError: nothing is concluded from a part of one.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

    Event = dict[str, Any]

PIECE = 1 << 22
"""Bytes of text that are looked at together: what bounds the memory, with the kernels that are kept."""
EVENT_MAX = 1 << 24
"""An event longer than this is no event."""
HEADER_MAX = 1 << 24
BATCH = 4000

_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_SEPARATOR = re.compile(rb"\}(\s*,\s*)\{")
# "ph": "X", "cat": "kernel", "name": "…": the order in which torch's exporter writes the fields of an event.
_HEAD = re.compile(rb'\s*"ph":\s*"X",\s*"cat":\s*"([A-Za-z0-9_]+)",\s*"name":\s*"([^"]*)"')
_FLOW = re.compile(rb'\s*"ph":\s*"[sftMiC]"')
_PH = b'"ph"'
_LIST_END = re.compile(rb'[}\]]\s*\]\s*,\s*"')
_BETWEEN = re.compile(r"[\s,]*")
_CALLS = (b"Launch", b"Mem", b"launch")


class DamagedTraceError(ValueError):
    """The trace breaks off, or holds what is no trace. ``truncated`` when it is only cut."""

    def __init__(self, message: str, *, truncated: bool = False) -> None:
        super().__init__(message)
        self.truncated = truncated


class Wanted:
    """Which events are parsed: whole categories, and Python functions by their bare names."""

    def __init__(self, categories: frozenset[str], functions: frozenset[str]) -> None:
        self.categories, self.functions = categories, functions
        self.whole = frozenset(name.encode() for name in categories)
        self.bare = frozenset(name.encode() for name in functions)

    def __call__(self, event: Event) -> bool:
        """Say the same of a parsed event that the shortcut says of its text."""
        if event.get("ph") != "X":
            return False
        category, name = event.get("cat"), str(event.get("name", ""))
        if category == "python_function":
            return name[name.rfind(" ") + 1 :] in self.functions
        if category in ("cuda_runtime", "cuda_driver", "hip_runtime"):
            return category in self.categories and any(call.decode() in name for call in _CALLS)
        return category in self.categories


class Trace:
    """One trace file, read once from front to back: iterate over the batches, then look at what was counted."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self.path, self.wanted = path, wanted
        self.events = 0
        self.counts: Counter[bytes] = Counter()
        """Events of each category, the ones that are not parsed included."""
        self.bytes = 0
        """Bytes of text, unpacked."""
        self.header: dict[str, Any] = {}
        self._listed = self._compact = False

    def batches(self) -> Iterator[list[Event]]:
        """Yield the wanted events; raise DamagedTraceError, OSError."""
        try:
            with opened(self.path) as stream:
                yield from self._read(stream)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            cut = isinstance(error, EOFError)
            raise DamagedTraceError(
                f"the compressed file is {'cut off' if cut else 'damaged'}", truncated=cut
            ) from None

    def _more(self, stream: BinaryIO) -> bytes:
        piece = stream.read(PIECE)
        self.bytes += len(piece)
        return piece

    def _read(self, stream: BinaryIO) -> Iterator[list[Event]]:
        text = self._head(stream)
        cut = Counter(match.group(1) for match in _SEPARATOR.finditer(text[: 1 << 18])).most_common(1)
        if not cut:
            yield from self._slowly(text, stream)
            return
        separator, self._compact = b"}" + cut[0][0] + b"{", b"\n" not in cut[0][0]
        opening = text.find(b"{")
        text = text[opening + 1 :] if opening >= 0 else text
        kept: list[bytes] = []
        while True:
            parts = text.split(separator)
            last = parts.pop()
            for number, part in enumerate(parts):
                found = self._sort(part)
                if found is None:  # not what it looks like: the rest of the trace is read the long way
                    yield from self._parsed(kept)
                    rest = b"{" + separator.join(parts[number:]) + separator + last
                    del parts
                    yield from self._slowly(rest, stream)
                    return
                if found:
                    kept.append(part)
            if len(kept) >= BATCH:
                yield from self._parsed(kept)
                kept = []
            piece = self._more(stream)
            if not piece:
                break
            if len(last) > EVENT_MAX:
                raise DamagedTraceError(f"no event ends within {EVENT_MAX} bytes, before byte {self.bytes}")
            text = last + piece
        yield from self._parsed(kept)
        yield from self._slowly(b"{" + last, stream)

    def _head(self, stream: BinaryIO) -> bytes:
        """Read up to the first event; keep what stands before it."""
        text = self._more(stream)
        lead = text.lstrip()
        if lead.startswith(b"["):
            self._listed = True
            return lead[1:]
        if not lead.startswith(b"{"):
            raise DamagedTraceError("it is no JSON document" if lead else "the file is empty", truncated=not lead)
        while True:
            found = _START.search(text)
            if found is not None:
                break
            piece = self._more(stream)
            if not piece:
                whole = _is_json(text)
                raise DamagedTraceError("it has no traceEvents", truncated=not whole)
            text += piece
            if len(text) > HEADER_MAX:
                raise DamagedTraceError(f"its first {HEADER_MAX} bytes have no traceEvents")
        try:
            self.header = json.loads(text[: found.end()] + b"]}")
        except ValueError:
            self.header = {}  # torch has written headers that are not quite JSON: nothing depends on them
        return text[found.end() :]

    def _sort(self, part: bytes) -> bool | None:
        """Say whether an event is wanted, by its text; None when the text is not one event."""
        if part.count(_PH) != 1 or (self._compact and _LIST_END.search(part) is not None):
            return None
        head = _HEAD.match(part)
        if head is None:
            if _FLOW.match(part) is None:
                return None
            self.events += 1
            return False
        category, name = head.groups()
        self.events += 1
        self.counts[category] += 1
        if category == b"python_function":
            return name[name.rfind(b" ") + 1 :] in self.wanted.bare
        if category not in self.wanted.whole:
            return False
        if category in (b"cuda_runtime", b"cuda_driver", b"hip_runtime"):
            return any(call in name for call in _CALLS)
        return True

    def _parsed(self, parts: list[bytes]) -> Iterator[list[Event]]:
        """Parse the texts of events, all at once where that works."""
        if not parts:
            return
        try:
            yield json.loads(b"[{" + b"},{".join(parts) + b"}]")
        except ValueError:
            for part in parts:
                try:
                    json.loads(b"{" + part + b"}")
                except ValueError:
                    raise DamagedTraceError(f"an event cannot be read: {_shown(part)}") from None
            raise DamagedTraceError("events cannot be read") from None

    def _slowly(self, text: bytes, stream: BinaryIO) -> Iterator[list[Event]]:
        """Read the rest of the trace as JSON, event by event, and make sure that it ends as it should."""
        scan = json.JSONDecoder().raw_decode
        held, batch, at_end = _decoded(text), [], False  # type: tuple[str, bytes], list[Event], bool
        text_, tail = held
        place = 0
        while True:
            between = _BETWEEN.match(text_, place)
            place = between.end() if between is not None else place
            if place < len(text_) and text_[place] == "]":
                break
            event: Any = None
            if place < len(text_):
                try:
                    event, end = scan(text_, place)
                    if end >= len(text_) and not at_end:
                        event = None  # it may go on
                except (ValueError, RecursionError):
                    event = None
                    if len(text_) - place > EVENT_MAX or at_end:
                        self._broken(text_, place, at_end)
            if event is None:
                piece = self._more(stream)
                if not piece and at_end:
                    raise DamagedTraceError("it breaks off before its end", truncated=True)
                at_end = not piece
                fresh, tail = _decoded(tail + piece)
                text_, place = text_[place:] + fresh, 0
                continue
            if not isinstance(event, dict):
                raise DamagedTraceError(f"a {type(event).__name__} stands where an event was expected")
            place = end
            self.events += 1
            if isinstance(event.get("cat"), str) and event.get("ph") == "X":
                self.counts[event["cat"].encode()] += 1
            if self.wanted(event):
                batch.append(event)
                if len(batch) >= BATCH:
                    yield batch
                    batch = []
        if batch:
            yield batch
        self._end(text_[place + 1 :], stream, tail)

    def _broken(self, text: str, place: int, at_end: bool) -> None:
        shown = _shown(text[place : place + 200].encode("utf-8", "replace"))
        if at_end and text.count("{", place) > text.count("}", place):
            raise DamagedTraceError(f"it breaks off within an event: {shown}", truncated=True)
        raise DamagedTraceError(f"an event cannot be read: {shown}")

    def _end(self, rest: str, stream: BinaryIO, tail: bytes) -> None:
        """Make sure that nothing but the end of the document follows the events."""
        while len(rest) < HEADER_MAX:
            piece = self._more(stream)
            if not piece:
                break
            fresh, tail = _decoded(tail + piece)
            rest += fresh
        if self._listed:
            if rest.strip():
                raise DamagedTraceError("something follows the end of its events")
            return
        try:
            json.loads('{"": []' + rest)
        except ValueError:
            if not rest.rstrip().endswith("}"):
                raise DamagedTraceError("it breaks off after its events", truncated=True) from None
            raise DamagedTraceError("what follows its events is not the end of a trace") from None


def opened(path: Path) -> BinaryIO:
    """Open a trace for reading, unpacked: by its first bytes, whatever it is called."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if packed else path.open("rb")  # type: ignore[return-value]


def _decoded(text: bytes) -> tuple[str, bytes]:
    """Decode text that may end within a character; return it and the bytes that are left."""
    for left in range(4):
        try:
            return text[: len(text) - left].decode("utf-8"), text[len(text) - left :]
        except UnicodeDecodeError:
            continue
    return text.decode("utf-8", "replace"), b""


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _shown(text: bytes) -> str:
    return " ".join(text.decode("utf-8", "replace").split())[:120]
