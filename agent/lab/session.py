"""One SSH channel: a shell or a command in the box, with its streams joined the way sshd joins them.

A dropped connection closes the pipes and kills nothing: what writes on gets SIGPIPE, what was put in the background
with its streams redirected lives on. With a terminal, closing it sends SIGHUP. As in sshd for root, signals asked for
by the client are not passed on. The channel stays open while any process still holds the output.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
from typing import Any

import asyncssh

from .keeper import Child, Keeper

CHUNK_BYTES = 64 * 1024
SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")


class _Pump(asyncio.Protocol):
    """Carry what a process writes to the channel; tell when nobody holds the pipe any more."""

    def __init__(self, session: Session, kind: int | None) -> None:
        self.session, self.kind = session, kind
        self.transport: asyncio.ReadTransport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.session.output(data, self.kind)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Session(asyncssh.SSHServerSession[bytes]):
    """A channel's server side."""

    def __init__(self, keeper: Keeper, environment: dict[str, str], released: Any) -> None:
        """``released`` is called once, when the channel is closed."""
        self.keeper, self.environment, self.released = keeper, environment, released
        self.channel: asyncssh.SSHServerChannel[bytes] | None = None
        self.argv: list[bytes] = []
        self.terminal: tuple[str, tuple[int, int, int, int]] | None = None
        self.pumps: list[_Pump] = []
        self.input: int | None = None
        self.pending: list[bytes] = []
        self.eof = False
        self.writing: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.master: int | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """Keep the channel."""
        self.channel = chan

    def pty_requested(self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Any) -> bool:
        """Remember the terminal."""
        self.terminal = (term_type, term_size)
        return True

    def shell_requested(self) -> bool:
        """Run a login shell."""
        self.argv = [b"/bin/sh", b"-l"]
        return True

    def exec_requested(self, command: str | bytes) -> bool:
        """Run a command through the shell, as sshd does."""
        self.argv = [
            b"/bin/sh",
            b"-c",
            command if isinstance(command, bytes) else command.encode("utf-8", "surrogateescape"),
        ]
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """Run the machine's sftp-server inside the box, where there is one."""
        found = next((path for path in SFTP_SERVERS if os.access(path, os.X_OK)), None)
        if subsystem != "sftp" or found is None:
            return False
        self.argv = [found.encode()]
        return True

    def session_started(self) -> None:
        """Start the process; what the client sends meanwhile is kept."""
        self.task = asyncio.get_running_loop().create_task(self._run())

    def data_received(self, data: bytes, datatype: Any) -> None:
        """Pass input on, and stop reading from the client while the process does not read."""
        self.pending.append(data)
        self._feed()

    def eof_received(self) -> bool:
        """Close the process's input once everything is written; keep the channel open for its output."""
        self.eof = True
        self._feed()
        return True

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Resize the terminal."""
        if self.master is not None:
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, pixwidth, pixheight))

    def pause_writing(self) -> None:
        """Stop reading the process's output while the client does not take it."""
        for pump in self.pumps:
            if pump.transport is not None and not pump.transport.is_closing():
                pump.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        for pump in self.pumps:
            if pump.transport is not None and not pump.transport.is_closing():
                pump.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close our ends of the pipes and nothing else."""
        self.channel = None
        self._close_input()
        for pump in self.pumps:
            if pump.transport is not None:
                pump.transport.close()
        self.released()

    def output(self, data: bytes, kind: int | None) -> None:
        """Send what the process wrote."""
        if self.channel is not None:
            self.channel.write(data, kind)

    async def _run(self) -> None:
        try:
            child = await (self._start_terminal() if self.terminal else self._start_pipes())
        except (OSError, ConnectionError) as error:
            if self.channel is not None:
                self.channel.write_stderr(f"lab: {error}\n".encode())
                self.channel.exit(255)
            return
        self._feed()
        try:
            status = await child.ended
        except ConnectionError:
            if self.channel is not None:
                self.channel.abort()
            return
        await asyncio.gather(*(pump.done for pump in self.pumps))
        self._close_input()
        self._report(status)

    def _report(self, status: int) -> None:
        if self.channel is None:
            return
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            self.channel.exit(code)
        else:
            self.channel.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))

    async def _start_pipes(self) -> Child:
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        self.input = pipes[0][1]
        os.set_blocking(self.input, False)
        try:
            child = await self.keeper.spawn(self.argv, self.environment, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
            for kind, (reading, _) in ((None, pipes[1]), (asyncssh.EXTENDED_DATA_STDERR, pipes[2])):
                await self._pump(reading, kind)
        return child

    async def _start_terminal(self) -> Child:
        assert self.terminal is not None
        kind, (width, height, pixwidth, pixheight) = self.terminal
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, pixwidth, pixheight))
        self.master, self.input = master, os.dup(master)
        os.set_blocking(self.input, False)
        try:
            child = await self.keeper.spawn(
                self.argv, {**self.environment, "TERM": kind or "dumb"}, [slave] * 3, pty=True
            )
        finally:
            os.close(slave)
            await self._pump(master, None)
        return child

    async def _pump(self, descriptor: int, kind: int | None) -> None:
        pump = _Pump(self, kind)
        self.pumps.append(pump)
        await asyncio.get_running_loop().connect_read_pipe(lambda: pump, os.fdopen(descriptor, "rb", buffering=0))
        if self.channel is None and pump.transport is not None:
            pump.transport.close()

    def _feed(self) -> None:
        """Write pending input without blocking; wait for room when the pipe is full."""
        if self.input is None:
            return
        while self.pending:
            try:
                written = os.write(self.input, self.pending[0][:CHUNK_BYTES])
            except BlockingIOError:
                if self.channel is not None:
                    self.channel.pause_reading()
                asyncio.get_running_loop().add_writer(self.input, self._feed_again)
                return
            except OSError:
                self.pending.clear()
                break
            rest = self.pending[0][written:]
            self.pending[:1] = [rest] if rest else []
        if self.eof:
            if self.master is not None:
                with contextlib.suppress(OSError):
                    os.write(self.input, b"\x04")
            else:
                self._close_input()

    def _feed_again(self) -> None:
        if self.input is None:
            return
        asyncio.get_running_loop().remove_writer(self.input)
        if self.channel is not None:
            self.channel.resume_reading()
        self._feed()

    def _close_input(self) -> None:
        if self.input is not None:
            asyncio.get_running_loop().remove_writer(self.input)
            os.close(self.input)
            self.input = None
