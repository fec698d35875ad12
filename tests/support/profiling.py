"""A server that speaks the profiler protocols of SGLang and vLLM, written from their sources; it serves nothing else.

SGLang (``srt/entrypoints/http_server.py``, ``srt/managers/scheduler_profiler_mixin.py`` of 0.5.3 and 0.5.9,
``scheduler_components/profiler_manager.py`` of 0.5.23): a second start is a RuntimeError and so HTTP 500, as is a stop
without a profile; after ``num_steps`` batches each rank packs its trace straight into its final file, while no request
is answered. vLLM (``entrypoints/serve/profile``): the routes are there only with a profiler; the stop answers last.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support import traces


@dataclass
class Script:
    """What the server is like."""

    api: str = "sglang"
    version: str = "0.5.9"
    tp: int = 2
    info: dict[str, Any] = field(default_factory=dict)
    new_path: bool = False
    """/get_server_info is gone."""
    batches: int = 3
    """Requests after which the steps are done; 0 = never by itself."""
    missing: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    pause_s: float = 0.6
    """Between the two halves of a rank's file."""
    busy: bool = False
    """Somebody else's profile is under way."""
    drops: bool = False
    """The answer to the start is lost."""
    folder: Path | None = None
    """Where a vLLM writes to."""
    suffix: str = ""
    phases: bool = True


class Server(ThreadingHTTPServer):
    """Counts what it was asked."""

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.asked, self.lock = script, list[tuple[str, Any]](), threading.Lock()
        self.running: dict[str, Any] | None = {} if script.busy else None
        self.seen = 0
        self.port = self.server_address[1]

    def count(self, path: str) -> int:
        """Return how often a path was asked for."""
        return sum(1 for asked, _ in self.asked if asked == path)

    def write(self, ordered: dict[str, Any]) -> None:
        """Write the trace of every rank, in two halves."""
        script = self.script
        folder = script.folder or Path(ordered["output_dir"])
        stamp, halves = time.time(), []
        for rank in range(script.tp):
            if rank in script.missing:
                continue
            how = (traces.STACKS if ordered.get("with_stack", True) else traces.SPANS) if script.phases else ""
            text = traces.made(12, how).text(rank, script.tp).encode()
            data = gzip.compress(text)
            data = data[: len(data) // 2] if rank in script.cut else data
            name = f"{stamp}-TP-{rank}{script.suffix}.trace.json.gz"
            if script.api == "vllm":
                name = f"dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}.{time.time_ns()}.pt.trace.json.gz"
            path = folder / name
            path.write_bytes(data[: len(data) // 3])
            halves.append((path, data))
        time.sleep(script.pause_s)
        for path, data in halves:
            path.write_bytes(data)
        if script.api == "vllm":
            (folder / f"host_1.async_llm.{time.time_ns()}.pt.trace.json.gz").write_bytes(gzip.compress(b"{}"))


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Say what it is."""
        server, script = self.server, self.server.script
        server.asked.append((self.path, None))
        if self.path == ("/server_info" if script.new_path else "/get_server_info") and script.api == "sglang":
            inner = {"tp_size": script.tp, "dp_size": 1, "pp_size": 1, **script.info}
            body = {"tp_size": 1, "internal_states": [inner], "version": script.version, "status": "ready"}
            return self._send(200, json.dumps(body).encode())
        if self.path == "/v1/models":
            return self._send(200, b'{"data": [{"id": "toy"}]}')
        return self._send(404, b"{}")

    def do_POST(self) -> None:
        """Take an order, or a request of the load."""
        server, script = self.server, self.server.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        server.asked.append((self.path, body))
        if self.path == "/start_profile":
            if script.api == "vllm" and script.folder is None:
                return self._send(404, b'{"detail":"Not Found"}')
            if server.running is not None:
                return self._send(500, b"Internal Server Error")
            server.running = body
            if script.drops:
                self.close_connection = True
                return self.connection.close()
            return self._send(200, b"Start profiling.\n")
        if self.path == "/stop_profile":
            with server.lock:
                ordered, server.running = server.running, None
            if ordered is None:
                return self._send(500, b"Internal Server Error")
            if script.api == "vllm":
                server.write(ordered)
            else:
                threading.Thread(target=server.write, args=(ordered,), daemon=True).start()
            return self._send(200, b"Stop profiling. This will take some time.\n")
        with server.lock:  # one scheduler: while it packs, nobody is served
            server.seen += 1
            if server.running and script.api == "sglang" and script.batches and server.seen >= script.batches:
                ordered, server.running = server.running, None
                server.write(ordered)
        time.sleep(0.02)
        return self._send(200, b'{"choices": [{"text": "x"}]}')
