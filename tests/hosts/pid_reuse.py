"""Run in a pid namespace of its own: kill a process, give its number to a stranger, aim a signal at the old one.

Prints how often the signal was refused and how often the stranger was hit.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.hosts.test_processes import send
from tests.hosts.world import Way
from tests.support.sshd import start_time


async def main(rounds: int) -> None:
    """Force the reuse ``rounds`` times."""
    refused = hit = 0
    async with Way("local", None, Path(os.environ["AGENT_HOST_BASE"])).open() as box:
        for _ in range(rounds):
            victim = subprocess.Popen(["sleep", "60"])
            start = start_time(victim.pid)
            assert start is not None
            victim.kill()
            victim.wait()
            await asyncio.sleep(0.02)  # another tick of the clock, or nobody could tell the two apart
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(victim.pid - 1))
            stranger = subprocess.Popen(["sleep", "60"])
            assert stranger.pid == victim.pid, "the number was not reused"
            told = await send(box, "KILL", [(victim.pid, start)])
            refused += told == {victim.pid: "REFUSED"}
            hit += stranger.poll() is not None
            stranger.kill()
            stranger.wait()
    print(f"{refused} refused, {hit} hit")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
