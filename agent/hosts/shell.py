"""A host behind long-lived shells: the host script is sent once per shell, calls go through as framed text.

The transports differ only in how they open a shell, so everything else is here. Text is sent as one compound
command for each call: a shell that sees only part of it finds a syntax error and runs nothing.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import importlib.resources
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

from agent.core.actions import Section

from .base import HEAD_BYTES_MAX, TAIL_BYTES_MAX, Answer, CarrierLostError
from .frames import Frame, LineFrame, fresh_nonce, quote

if TYPE_CHECKING:
    from .sudo import Sudo

_SECTION = re.compile(r"[^\\\x00-\x1f\x7f]{1,200}")
_PLAIN = re.compile(r"[\w./:%+,-][\w./:%+,=@ -]*(?:\|[\w./:%+,= -]*[\w./:%+,-][\w./:%+,=@ -]*)*", re.ASCII)
_SHELL_WORDS = frozenset(
    [
        ".",
        ":",
        "[",
        "[[",
        "alias",
        "bg",
        "break",
        "builtin",
        "case",
        "cd",
        "chdir",
        "command",
        "continue",
        "coproc",
        "declare",
        "do",
        "done",
        "echo",
        "elif",
        "else",
        "enable",
        "esac",
        "eval",
        "exec",
        "exit",
        "export",
        "false",
        "fc",
        "fg",
        "fi",
        "for",
        "function",
        "getopts",
        "hash",
        "help",
        "history",
        "if",
        "in",
        "jobs",
        "kill",
        "let",
        "local",
        "printf",
        "pwd",
        "read",
        "readonly",
        "return",
        "select",
        "set",
        "shift",
        "shopt",
        "source",
        "test",
        "then",
        "time",
        "times",
        "trap",
        "true",
        "type",
        "typeset",
        "ulimit",
        "umask",
        "unalias",
        "unset",
        "until",
        "wait",
        "while",
    ]
)
SHELLS_MAX = 24
"""Shells to one host at the same time; a connection of its own carries at most 8 of them."""
IDLE_SHELLS_MAX = 3
ROOM_PAUSE_S = 0.02
GREETING_BYTES_MAX = 1 << 20
"""What the start-up files of a login may print before our shell begins."""


_SCRIPT_PARTS = (("probe.sh",), ("lease.sh", "job.sh", "box.sh", "follow.sh", "heads.sh"))


class Pipe(Protocol):
    """The two ends of a shell. ``read`` returns b'' when there will be no more."""

    def write(self, data: bytes) -> None:
        """Send bytes; never blocks."""

    async def read(self) -> bytes:
        """Return what has come, at least one byte, or b'' at the end."""

    def close(self) -> None:
        """Let go of the shell at once; safe to call twice."""

    def complaint(self) -> str:
        """Return the tail of what came on standard error."""


@cache
def script_parts() -> tuple[bytes, ...]:
    """Return the host script's two parts: what a probe needs, and the jobs."""
    folder = importlib.resources.files(__package__)
    return tuple(
        b"\n".join(folder.joinpath(name).read_bytes().rstrip(b"\n") for name in names) for names in _SCRIPT_PARTS
    )


@cache
def _loading(part: bytes) -> bytes:
    """Return the text that brings a part into the shell, after its length and its digest were found right."""
    mark = fresh_nonce().encode()
    check = (
        b'{ ag_text=$(cat); if [ ${#ag_text} -eq %d ] && [ "$(printf %%s "$ag_text" | sha256sum | cut -c1-64)" = %s ]; '
        b"then eval \"$ag_text\"; else printf '\\nthe host script arrived damaged, or sha256sum is missing\\n'; "
        b"exit 66; fi; } <<'%s'\n%s\n%s\n"
    )
    return check % (len(part), hashlib.sha256(part).hexdigest().encode(), mark, part, mark)


def greeting(mark: str) -> str:
    """Return the command that every login shell understands and that turns it into ours."""
    return f"printf '\\n%s\\n' {mark}; exec /bin/sh"


class Shell:
    """One shell on the host, used by one call at a time."""

    def __init__(self, pipe: Pipe, let_go: Callable[[Pipe], None]) -> None:
        self.pipe = pipe
        self.usable = True
        self._let_go = let_go
        self._loaded = 0

    async def greet(self, mark: str) -> None:
        """Wait until the login's start-up files are through; what they printed is skipped."""
        seen = bytearray()
        wanted = f"\n{mark}\n".encode()
        while wanted not in seen:
            data = await self.pipe.read()
            seen += data
            if not data or len(seen) > GREETING_BYTES_MAX:
                self.drop()
                shown = (bytes(seen[-200:]).decode("utf-8", "backslashreplace") + self.pipe.complaint()).strip()
                raise CarrierLostError(f"the login gave no shell: {shown or 'it closed at once'}")

    def send(self, body: bytes, *, jobs: bool) -> None:
        """Send one call, and before it whatever part of the script the shell still lacks."""
        text = bytearray()
        for part in script_parts()[self._loaded : 2 if jobs else 1]:
            text += _loading(part)
            self._loaded += 1
        text += b"{ " + body + b"\n}\n"
        self.pipe.write(bytes(text))

    async def receive(self, frame: Frame) -> Answer:
        """Read until the frame is complete."""
        while frame.answer is None:
            frame.feed(await self._data())
        return frame.answer

    async def lines(self, frame: LineFrame) -> AsyncIterator[list[bytes]]:
        """Yield the lines of a frame as they come."""
        while frame.status is None:
            found = frame.feed(await self._data())
            if found:
                yield found

    async def _data(self) -> bytes:
        data = await self.pipe.read()
        if not data:
            self.drop()
            raise CarrierLostError(self.pipe.complaint() or "the connection ended before the answer did")
        return data

    def drop(self) -> None:
        """Close the shell for good."""
        self.usable = False
        self._let_go(self.pipe)


def call_text(verb: str, args: Sequence[str], payload: bytes, nonce: str, *, attended: bool) -> bytes:
    """Return the compound command that runs a verb with literal arguments and its payload in base64."""
    words = b" ".join([b"ag_attend"] * attended + [b"ag_" + verb.encode()] + [quote(arg) for arg in args])
    begin = b"ag_rest; printf '#%s\\n'\n( PATH=$ag_own ag_nonce=%s; %s )" % (nonce.encode(), nonce.encode(), words)
    # The reader of an attended call has the shell's own input, to see when we let go.
    begin += b" 3<&0" if attended else b""
    given = b" </dev/null"
    if payload:
        given = b" <<'%s'\n%s%s" % (nonce.encode(), base64.encodebytes(payload), nonce.encode())
    return begin + given + b"\nprintf '\\n%%s done %%s\\n' '#%s' $?" % nonce.encode()


def _is_plain(command: str) -> bool:
    """Whether a command can be given to the shell as it is: words and pipes only, and no word of the shell's own.

    Such a command cannot change the shell nor break its syntax, and needs no shell of its own.
    """
    return bool(_PLAIN.fullmatch(command)) and not any(
        (word := part.split()[0]) in _SHELL_WORDS or "=" in word or word.startswith(("_", "ag_"))
        for part in command.split("|")
    )


def probe_text(sections: Sequence[Section], nonce: str) -> bytes:
    """Return the commands that run the sections of a probe; raise ValueError for a name that no mark can hold."""
    lines = [b"ag_begin %s" % nonce.encode()]
    for section in sections:
        if not _SECTION.fullmatch(section.name):
            raise ValueError(f"{section.name!r} cannot name a section")
        name, limit = quote(section.name), max(5, round(section.timeout_s * 100))
        body = b"{ %s; }" % section.command.encode() if _is_plain(section.command) else _own_shell(section.command)
        lines.append(b"_b %d %s; %s </dev/null 2>&1; _e %s $?" % (limit, name, body, name))
    return b"\n".join((*lines, b"ag_end"))


def _own_shell(command: str) -> bytes:
    """Return a command in a shell of its own, a fork of ours; wrong syntax in it is its own affair."""
    return b"( eval %s )" % quote(command)


class ShellHost:
    """Everything of a Host but opening a pipe. See ``base.Host`` for what the methods promise."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._idle: list[Shell] = []
        self._busy: set[Shell] = set()
        self._slots = asyncio.Semaphore(SHELLS_MAX)
        self.sudo: Sudo | None = None
        """How every shell becomes root's; None: it stays the login's."""

    async def open_pipe(self, mark: str) -> Pipe | None:
        """Open a pipe to a login that runs ``greeting(mark)``; None when the host has no room for another now."""
        raise NotImplementedError

    def let_go(self, pipe: Pipe) -> None:
        """Close a pipe; called more than once for some."""
        pipe.close()

    async def open(self) -> None:
        """Connect and have one shell ready."""
        async with self._shell():
            pass

    async def close(self) -> None:
        """Close every shell."""
        for shell in [*self._idle, *self._busy]:
            shell.drop()
        self._idle.clear()
        self._busy.clear()

    @contextlib.asynccontextmanager
    async def _shell(self) -> AsyncIterator[Shell]:
        """Lend a shell. One whose call did not end in order is closed: what it would say next is not ours."""
        async with self._slots:
            shell = await self._ready_shell()
            self._busy.add(shell)
            try:
                yield shell
            except BaseException:
                shell.drop()
                raise
            finally:
                self._busy.discard(shell)
            if shell.usable and len(self._idle) < IDLE_SHELLS_MAX:
                self._idle.append(shell)
            else:
                shell.drop()

    async def _ready_shell(self) -> Shell:
        mark, pipe = fresh_nonce(), None
        while pipe is None:
            while self._idle:
                shell = self._idle.pop()
                if shell.usable:
                    return shell
            pipe = await self.open_pipe(mark)
            if pipe is None:
                await asyncio.sleep(ROOM_PAUSE_S)
        shell = Shell(pipe, self.let_go)
        try:
            await shell.greet(mark)
            if self.sudo is not None:
                await self.sudo.become_root(shell)
        except BaseException:
            shell.drop()
            raise
        return shell

    async def call(
        self,
        verb: str,
        *args: str,
        payload: bytes = b"",
        timeout_s: float = 60.0,
        attended: bool = False,
        tail_max: int = TAIL_BYTES_MAX,
    ) -> Answer:
        """Run one verb and return its answer."""
        nonce = fresh_nonce()
        body = call_text(verb, args, payload, nonce, attended=attended)
        async with asyncio.timeout(timeout_s), self._shell() as shell:
            shell.send(body, jobs=True)
            return await shell.receive(Frame(nonce, HEAD_BYTES_MAX, tail_max))

    async def stream(self, verb: str, *args: str, payload: bytes = b"") -> AsyncGenerator[list[bytes], None]:
        """Run one verb and yield its lines; always attended."""
        nonce = fresh_nonce()
        body = call_text(verb, args, payload, nonce, attended=True)
        frame = LineFrame(nonce)
        async with self._shell() as shell:
            shell.send(body, jobs=True)
            async for lines in shell.lines(frame):
                yield lines

    async def probe(self, sections: Sequence[Section], *, timeout_s: float) -> Answer:
        """Run the sections; the answer's first line is the mark that frames them."""
        nonce = fresh_nonce()
        body = probe_text(sections, nonce)
        async with asyncio.timeout(timeout_s), self._shell() as shell:
            shell.send(body, jobs=False)
            answer = await shell.receive(Frame(nonce))
        return Answer(answer.status, f"#{nonce}\n".encode() + answer.out, answer.dropped)
