"""``python -m agent.lab --folder F [--spec JSON]``: a box as a process of its own; one JSON line when it is ready.

It ends on SIGTERM, on ``--stop``, when the folder is removed, or after ``idle_s`` without a connection.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from .box import LabBox
from .info import stop
from .spec import LabSpec


async def serve(spec: LabSpec, folder: Path) -> int:
    """Bring the box up, say so, and keep it until told to stop."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    async with LabBox(spec, folder) as box:
        print(json.dumps(asdict(box.info)), flush=True)  # noqa: T201 - the line its starter waits for
        while not told.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), min(1.0, spec.idle_s))
            idle = loop.time() - box.last_seen
            if not box.folder.info.exists() or (not box.connections and idle > spec.idle_s):
                break
    return 0


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(
        prog="python -m agent.lab", description="a simulated GPU box behind a real SSH server"
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--spec", default="{}", help="a LabSpec as JSON, or @FILE")
    parser.add_argument("--stop", action="store_true", help="end the box of this folder")
    given = parser.parse_args()
    if given.stop:
        return 0 if stop(given.folder) else 1
    text = Path(given.spec[1:]).read_text() if given.spec.startswith("@") else given.spec
    spec = LabSpec.model_validate_json(text)
    with contextlib.suppress(OSError):
        os.setsid()
    return asyncio.run(serve(spec, given.folder))


if __name__ == "__main__":
    sys.exit(main())
