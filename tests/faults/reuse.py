"""Run in a pid namespace of its own: jobs end, and every number they had is given to strangers.

Three numbers of each job are forced onto strangers: that of the server, that of the supervisor, and that of the
session, by a stranger that leads a session of its own on the old number with a child in it. Then the job's processes
are listed and the old identities get a signal. Prints how many strangers were listed or hit.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.hosts.test_processes import owned, send
from tests.hosts.world import Way
from tests.support.sshd import start_time


def on_number(pid: int) -> subprocess.Popen[bytes]:
    """Start a stranger that leads a session on exactly this number, with a child in it."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    words = ["sh", "-c", "sleep 61 & exec sleep 60"]
    stranger = subprocess.Popen(words, start_new_session=True)
    assert stranger.pid == pid, "the number was not reused"
    return stranger


async def main(rounds: int) -> None:
    """Force the reuse ``rounds`` times."""
    listed = hit = refused = 0
    async with Way("local", None, Path(os.environ["AGENT_HOST_BASE"])).open() as box:
        for _ in range(rounds):
            key, state = await box.start("sleep", "60")
            main_pid = await box.main(key)
            main_start = start_time(main_pid)
            assert main_start is not None
            for pid in (state.pid, main_pid):
                os.kill(pid, signal.SIGKILL)
            while start_time(state.pid) is not None or start_time(main_pid) is not None:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            strangers = []
            for pid in (state.pid, main_pid):
                with_zombie = Path(f"/proc/{pid}").exists()
                assert not with_zombie, "pid 1 here must reap"
                strangers.append(on_number(pid))
            listed += len(await owned(box, key))
            told = await send(box, "KILL", [(state.pid, state.start), (main_pid, main_start)], key)
            bare = await send(box, "KILL", [(state.pid, state.start), (main_pid, main_start)])
            refused += set(told.values()) | set(bare.values()) == {"REFUSED"}
            hit += sum(stranger.poll() is not None for stranger in strangers)
            for stranger in strangers:
                os.killpg(stranger.pid, signal.SIGKILL)
                stranger.wait()
    print(f"{rounds} rounds: {listed} listed, {hit} hit, {refused} refused")


def reap() -> None:
    """Be a pid 1 that takes in what is orphaned."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(main(int(sys.argv[1])))
            sys.stdout.flush()
            code = 0
        finally:
            os._exit(code)
    while True:
        pid, status = os.wait()
        if pid == child:
            sys.stdout.flush()
            os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    reap()
