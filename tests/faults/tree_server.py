"""A server with a family: workers in sessions of their own, without environment, forked twice away; then it serves.

``--tree N`` starts that many kinds of workers (0-4), ``--stubborn`` makes one of them mind no TERM. The canary that it
gets as a secret is printed, as real servers do with their arguments. Everything else is the tiny server's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tiny_server  # type: ignore[import-not-found]

NAP = "import time; time.sleep(3600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


def away(*argv: str, env: dict[str, str] | None = None, session: bool = False) -> None:
    """Start a worker that keeps nothing of ours open."""
    null = subprocess.DEVNULL
    subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, env=env, start_new_session=session)


def lost() -> None:
    """Start a worker that session, parents and environment say nothing about."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c", NAP], {})
        os._exit(0)
    os.wait()


def main() -> None:
    """Start the family, then serve."""
    words = sys.argv[1:]
    number = int(words[words.index("--tree") + 1]) if "--tree" in words else 0
    if "--tree" in words:
        del words[words.index("--tree") : words.index("--tree") + 2]
    nap = DEAF if "--stubborn" in words else NAP
    words = [word for word in words if word != "--stubborn"]
    print("starting with", os.environ.get("CANARY", "no canary"), flush=True)
    kinds = [
        lambda: away(sys.executable, "-c", nap),
        lambda: away(sys.executable, "-c", NAP, session=True),
        lambda: away(sys.executable, "-c", NAP, env={}),
        lost,
    ]
    for kind in kinds[:number]:
        kind()
    sys.argv[1:] = words
    Path("/proc/self/comm").write_text("tree_server")
    tiny_server.main()


if __name__ == "__main__":
    main()
