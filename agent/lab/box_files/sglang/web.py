"""The server's HTTP side: a thread a connection, just enough of HTTP/1.1 for curl, urllib and aiohttp."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import log

REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
BODY_BYTES_MAX = 64 << 20


@dataclass
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; an empty body is an empty one. Raise ValueError for anything else."""
        value = json.loads(self.body or b"{}")
        if not isinstance(value, dict):
            raise ValueError("the body is not a JSON object")
        return value


@dataclass
class Reply:
    """What goes back: a body, or chunks that are written as they come (server-sent events)."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    chunks: Any = field(default=None)

    @classmethod
    def of(cls, value: Any, status: int = 200) -> Reply:
        """Answer with JSON."""
        return cls(status, json.dumps(value).encode())


Handler = Callable[[Request], Reply]


def _read(stream: Any) -> Request | None:
    line = stream.readline(65536)
    words = line.split()
    if len(words) < 2:
        return None
    headers: dict[str, str] = {}
    while (raw := stream.readline(65536)) not in (b"\r\n", b"\n", b""):
        name, _, value = raw.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int(stream.readline(100).split(b";")[0] or b"0", 16):
            body += stream.read(size)
            stream.readline(10)
        stream.readline(10)
    else:
        body = stream.read(min(int(headers.get("content-length") or 0), BODY_BYTES_MAX))
    return Request(words[0].decode(), words[1].decode().partition("?")[0], headers, body)


def _write(peer: socket.socket, reply: Reply, close: bool) -> None:
    head = f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Unknown')}\r\nserver: uvicorn\r\n"
    kind = f"content-type: {reply.kind}\r\n" + ("connection: close\r\n" if close else "")
    if reply.chunks is None:
        peer.sendall(f"{head}{kind}content-length: {len(reply.body)}\r\n\r\n".encode() + reply.body)
        return
    peer.sendall(f"{head}{kind}transfer-encoding: chunked\r\n\r\n".encode())
    for chunk in reply.chunks:
        peer.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
    peer.sendall(b"0\r\n\r\n")


class Web:
    """A listening socket and its threads."""

    def __init__(self, host: str, port: int, handler: Handler) -> None:
        """Bind, or raise OSError; nothing is accepted yet."""
        self.handler = handler
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((host if host != "localhost" else "127.0.0.1", port))
        self.listener.listen(128)

    def start(self) -> None:
        """Accept in a thread."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
        while True:
            try:
                peer, address = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer, address), daemon=True).start()

    def _serve(self, peer: socket.socket, address: tuple[str, int]) -> None:
        with contextlib.suppress(OSError, ValueError), peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with peer.makefile("rb") as stream:
                while (request := _read(stream)) is not None:
                    close = request.headers.get("connection", "").lower() == "close"
                    reply = self._answer(request)
                    log.access(
                        f'{address[0]}:{address[1]} - "{request.method} {request.path} HTTP/1.1" '
                        f"{reply.status} {REASONS.get(reply.status, '')}"
                    )
                    _write(peer, reply, close)
                    if close:
                        return

    def _answer(self, request: Request) -> Reply:
        try:
            return self.handler(request)
        except ValueError as error:
            return Reply.of({"object": "error", "message": str(error), "type": "BadRequestError", "code": 400}, 400)
        except Exception as error:
            log.say(f"Exception in ASGI application: {error!r}")
            return Reply(500, b"Internal Server Error", "text/plain; charset=utf-8")
