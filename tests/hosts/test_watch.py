"""Watching a server from its host: changes only, deaths at once."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.core.actions import Watch
from agent.core.evidence import read_watch
from agent.core.observations import Completed, Outcome

from .world import Campaign, Way, fresh_key, run, until

SERVER = """
import http.server, os, sys, threading, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/slow":
            time.sleep(20)
        self.send_response(200 if os.path.exists("ready") else 503)
        self.end_headers()
    def log_message(self, *a): pass
os.chdir(os.environ["AGENT_JOB"])
print("loading weights", flush=True)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("port", server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
while not os.path.exists("die"):
    time.sleep(0.01)
print("Exception: boom\\nlast words", end="", flush=True)
os._exit(3)
"""


def soon_s() -> float:
    """Return the second within which a death is told; more where others keep the processors busy."""
    return 1.0 if os.getloadavg()[0] < (os.cpu_count() or 1) else 4.0


def patterns(folder: Path) -> str:
    """Return what a watch looks for, by its folder on the host; '' when it is gone. Others may be watching here too."""
    try:
        return (folder / "patterns").read_text()
    except OSError:
        return ""


@asynccontextmanager
async def watching(box: Campaign, key: str, url: str, *patterns: str) -> AsyncIterator[asyncio.Task[Outcome]]:
    """Watch a job while the block runs."""
    action = Watch(host="box", key=key, url=url, patterns=patterns or ("[Ee]xception", "port", "load"), interval_s=0.1)
    task = asyncio.create_task(box.do(action))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def serve(box: Campaign) -> tuple[str, str]:
    """Start the little server; return its key and its address."""
    key, _ = await box.start(sys.executable, "-c", SERVER, role="server")
    out = box.folder(key) / "out"
    await until(lambda: "port" in out.read_text())
    return key, f"http://127.0.0.1:{out.read_text().split()[3]}"


def test_what_changes_is_told_and_nothing_else(way: Way) -> None:
    """State, health, workers and matched lines come once each; an end comes with the last words before it."""

    async def body() -> None:
        async with way.open() as box:
            key, url = await serve(box)
            async with watching(box, key, f"{url}/health") as task:
                await until(lambda: box.lines("health") == ["503"])
                (box.folder(key) / "ready").touch()
                await until(lambda: box.lines("health") == ["503", "200"])
                quiet = len(box.notes)
                await asyncio.sleep(1.0)
                assert len(box.notes) == quiet
                died = time.monotonic()
                (box.folder(key) / "die").touch()
                outcome = await task
            assert isinstance(outcome, Completed)
            assert outcome.out.string().startswith("EXITED 3 ")
            assert box.when("state EXITED 3") - died < soon_s()
            assert box.lines("workers") == ["1", "0"]
            assert box.lines("log")[0].split(" ", 1)[1] == "loading weights"
            assert box.lines("log")[-1].endswith("Exception: boom")
            assert len(box.lines("log")) == 3
            assert box.lines("said")[-2:] == ["Exception: boom", "last words"], "also what no pattern knows"
            facts = read_watch((at, line) for at, line in box.notes)
            assert facts.state is not None
            assert facts.state.rc == 3
            assert facts.said[-1] == "last words"

    run(body())


def test_what_a_watch_had_not_come_to_is_read_at_once(way: Way) -> None:
    """``once``: what is in the log by now, past the line that was seen, and the state; dead or alive."""

    async def body() -> None:
        async with way.open() as box:
            key, _ = await serve(box)
            action = Watch(host="box", key=key, url="", patterns=("port", "load", "last"), once=True)
            alive = await box.do(action)
            assert isinstance(alive, Completed)
            assert alive.out.string().startswith("LIVE ")
            lines = box.lines("log")
            assert [line.split()[1] for line in lines] == ["loading", "port"]
            box.notes.clear()
            seen = action.model_copy(update={"offset": int(lines[-1].split()[0])})
            await box.do(seen)
            assert box.lines("log") == []
            (box.folder(key) / "die").touch()
            await until(lambda: (box.folder(key) / "exit").exists())
            box.notes.clear()
            dead = await box.do(seen)
            assert isinstance(dead, Completed)
            assert dead.out.string().startswith("EXITED 3 ")
            assert [line.split(" ", 1)[1] for line in box.lines("log")] == ["last words"]

    run(body())


def test_a_slow_health_check_does_not_hide_a_death(way: Way) -> None:
    """The server hangs in its answer; its end is told within a second all the same."""

    async def body() -> None:
        async with way.open() as box:
            key, url = await serve(box)
            async with watching(box, key, f"{url}/slow") as task:
                await until(lambda: box.lines("workers"))
                await asyncio.sleep(0.5)
                died = time.monotonic()
                (box.folder(key) / "die").touch()
                await task
            assert box.when("state EXITED 3") - died < soon_s()

    run(body())


def test_a_killed_server_and_one_that_never_was(way: Way) -> None:
    """A signal's end is a status too; an absent key ends the watch at once."""

    async def body() -> None:
        async with way.open() as box:
            key, _ = await box.start("sleep", "60", role="server")
            async with watching(box, key, "http://127.0.0.1:9/health") as task:
                await until(lambda: box.lines("health") == ["000"])
                died = time.monotonic()
                os.kill(await box.main(key), 9)
                await task
            assert box.when("state EXITED 137") - died < soon_s()
            async with watching(box, fresh_key(), "") as task:
                outcome = await task
            assert isinstance(outcome, Completed)
            assert outcome.out.string() == "ABSENT"

    run(body())


def test_the_last_words_are_few_and_short(way: Way) -> None:
    """Whatever a program prints last, no more than five lines of it are passed on, and none that is empty."""
    script = "import os; [print(i) for i in range(9)]; print('x' * 9000); print('\\n \\n'); os.write(2, b'\\xff end')"

    async def body() -> None:
        async with way.open() as box:
            key, _ = await box.start(sys.executable, "-u", "-c", script, role="server")
            async with watching(box, key, "") as task:
                await task
            said = box.lines("said")
            assert len(said) <= 5
            assert said[-1].endswith(" end")
            assert all(line.strip() and len(line) <= 400 for line in said)

    run(body())


def test_lines_are_whole_bounded_and_at_their_offsets(way: Way) -> None:
    """A line counts when it is complete; a flood is thinned; offsets are those of the file."""
    script = (
        "import sys, time; w = sys.stdout; w.write('Exception in two '); w.flush(); time.sleep(0.5); "
        "w.write('halves\\n'); w.write('10%| load\\r20%| load\\r'); w.flush(); time.sleep(0.4); "
        "[w.write(f'Exception {i}\\n') for i in range(5000)]; w.write('load ' + 'x' * 300000 + '\\n'); "
        "w.flush(); time.sleep(0.5); w.write('\\xff Exception last\\n'); w.flush(); time.sleep(0.5)"
    )

    async def body() -> None:
        async with way.open() as box:
            key, _ = await box.start(sys.executable, "-c", script, role="server")
            async with watching(box, key, "") as task:
                await task
            lines = [line.split(" ", 1) for line in box.lines("log")]
            assert [text for _, text in lines][:3] == ["Exception in two halves", "10%| load", "20%| load"]
            assert "Exception last" in lines[-1][1]
            assert len(lines) < 400
            assert box.lines("left-out")
            assert max(len(text) for _, text in lines) == 4096
            raw = (box.folder(key) / "out").read_bytes()
            for at, text in lines:
                if "last" not in text:
                    assert raw[int(at) :].startswith(text.encode()[:4096])

    run(body())


def test_giving_up_a_watch_ends_it_on_the_host(way: Way) -> None:
    """Nothing of ours stays behind; the server does."""

    async def body() -> None:
        async with way.open() as box:
            key, url = await serve(box)
            async with watching(box, key, f"{url}/health", f"only of {key}"):
                await until(lambda: box.lines("health"))
                folder = next(path for path in Path("/dev/shm").glob("agent.*") if patterns(path) == f"only of {key}\n")
            await until(lambda: not folder.exists())
            assert (await box.status(key)).word == "LIVE"
            (box.folder(key) / "die").touch()

    run(body())


def test_a_server_without_http_is_up_when_a_command_says_so(way: Way) -> None:
    """Status 0 of the command counts as 200, anything else as 503; words are taken literally."""

    async def body() -> None:
        async with way.open() as box:
            key, _ = await serve(box)
            flag = box.folder(key) / "it's up"
            async with watching(box, key, "run:" + shlex.join(("test", "-e", str(flag)))):
                await until(lambda: box.lines("health") == ["503"])
                flag.touch()
                await until(lambda: box.lines("health") == ["503", "200"])

    run(body())
