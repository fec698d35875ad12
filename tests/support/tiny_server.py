"""A tiny real server for tests of what happens around servers: it listens, is healthy after a moment, and answers.

``python tiny_server.py --port N --speed TOK_S --load SECONDS [--effects FILE]``; each start appends a line to FILE.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import socketserver
import sys
import time


def main() -> None:
    """Serve until TERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--speed", type=float, default=400.0)
    parser.add_argument("--load", type=float, default=0.2)
    parser.add_argument("--effects", default="")
    options = parser.parse_args()
    if options.effects:
        with open(options.effects, "a") as file:  # noqa: PTH123 - one write, as a shell would do it
            file.write(f"{os.environ.get('AGENT_RUN_KEY') or os.environ.get('AGENT_CONTAINER', '?')} {os.getpid()}\n")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    began = time.monotonic()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            ready = time.monotonic() - began > options.load
            self.send_response(200 if ready else 503)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            asked = json.loads(self.rfile.read(length))
            tokens = int(asked.get("max_tokens", 8))
            time.sleep(tokens / options.speed)
            body = json.dumps({"choices": [{"text": "x" * tokens}], "usage": {"completion_tokens": tokens}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
        daemon_threads = True
        allow_reuse_address = True

    try:
        Server(("127.0.0.1", options.port), Handler).serve_forever()
    except OSError as error:
        print(f"cannot listen: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
