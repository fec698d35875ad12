"""The frames in which the shell on a host answers: finding them in a stream of bytes, within bounds.

A frame begins with a line ``#NONCE`` and ends with a line ``#NONCE done STATUS``. Whatever comes before the one or
lacks the other is noise. No I/O here.
"""

from __future__ import annotations

import re
import secrets

from .base import HEAD_BYTES_MAX, TAIL_BYTES_MAX, Answer

LINE_BYTES_MAX = 16 * 1024
_END_BYTES_MAX = 64
"""No end mark is longer than this, with its status and line ends."""


def fresh_nonce() -> str:
    """Return 128 random bits, in hex: no output can know them beforehand."""
    return secrets.token_hex(16)


def quote(word: str | bytes) -> bytes:
    """Return ``word`` as one literal word of POSIX sh; raise ValueError for a NUL, which no word can hold."""
    raw = word.encode("utf-8", "surrogateescape") if isinstance(word, str) else word
    if b"\0" in raw:
        raise ValueError("a NUL byte cannot be part of a command")
    return b"'" + raw.replace(b"'", b"'\\''") + b"'"


class Frame:
    """One answer while it arrives. Feed it bytes; it is complete when ``answer`` is not None."""

    def __init__(self, nonce: str, head_max: int = HEAD_BYTES_MAX, tail_max: int = TAIL_BYTES_MAX) -> None:
        self.answer: Answer | None = None
        self._begin = f"#{nonce}\n".encode()
        self._end = re.compile(rb"\n#%s done (\d{1,3})\n" % nonce.encode())
        self._begun = False
        self._head_max, self._tail_max = head_max + 1, tail_max  # and the begin mark's own line end
        self._head, self._tail, self._dropped = bytearray(), bytearray(), 0

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; return whether the frame is complete."""
        tail = self._tail
        seen = max(0, len(tail) - _END_BYTES_MAX)
        tail += data
        if not self._begun:
            at = tail.find(self._begin)
            if at < 0:
                del tail[: -len(self._begin)]
                return False
            self._begun, seen = True, 0
            # The line end before the end mark may be that of the begin mark: it stays.
            del tail[: at + len(self._begin) - 1]
        match = self._end.search(tail, seen)
        if match:
            self._finish(bytes(tail[: match.start()]), int(match[1]))
        elif len(tail) > 2 * self._tail_max + self._head_max:
            self._trim()
        return match is not None

    def _trim(self) -> None:
        room = self._head_max - len(self._head)
        self._head += self._tail[:room]
        del self._tail[:room]
        extra = max(0, len(self._tail) - self._tail_max)
        del self._tail[:extra]
        self._dropped += extra

    def _finish(self, rest: bytes, status: int) -> None:
        self._tail = bytearray(rest)
        if self._head or len(rest) > self._head_max + self._tail_max:
            self._trim()
        out = bytes(self._head + self._tail)
        self.answer = Answer(status, out.removeprefix(b"\n"), self._dropped)


class LineFrame:
    """One answer that is read line by line while it arrives."""

    def __init__(self, nonce: str) -> None:
        self.status: int | None = None
        self._begin = f"#{nonce}".encode()
        self._done = f"#{nonce} done ".encode()
        self._begun = False
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; return the whole lines among them, without their ends and without marks."""
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            lines.append(rest)
            rest = bytearray()
        self._rest = rest
        found: list[bytes] = []
        for line in lines:
            if line.startswith(self._done) and line[len(self._done) :].isdigit():
                self.status = int(line[len(self._done) :])
            elif line.endswith(self._begin):  # what came before may have left its line open
                self._begun, found = True, []
            elif self._begun and line:
                found.append(bytes(line[:LINE_BYTES_MAX]))
        return found if self._begun else []
