"""Jobs on a host, by either transport: started at most once, told truly, ended with their real status."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent.core.actions import Acquire, Job, Start
from agent.core.observations import Completed, Lost, Refused, TimedOut
from tests.support.sshd import start_time

from .world import SECRET, Way, fresh_key, run, state_of, until


def test_a_job_runs_and_its_end_is_told(way: Way) -> None:
    """Status, standard output and the tail of standard error come back."""

    async def body() -> None:
        async with way.open() as box:
            key, _ = await box.start("sh", "-c", "echo out; echo err >&2; exit 7")
            outcome = await box.follow(key)
            assert isinstance(outcome, Completed), outcome
            assert (outcome.status, outcome.out.raw(), outcome.err.raw()) == (7, b"out\n", b"err\n")
            assert (await box.status(key)).rc == 7

    run(body())


def test_a_key_takes_effect_once(way: Way, tmp_path: Path) -> None:
    """The same job again is answered with its state; another one under the key is a conflict."""

    async def body() -> None:
        mark = tmp_path / "mark"
        async with way.open() as box:
            key, first = await box.start("sh", "-c", f"echo ran >>{mark}; sleep 30")
            assert first.word == "LIVE"
            _, second = await box.start("sh", "-c", f"echo ran >>{mark}; sleep 30", key=key)
            assert second == first
            other = await box.do(Start(host="box", key=key, job=Job(role="script", argv=("true",))))
            assert isinstance(other, Refused)
            assert other.code == "CONFLICT"
            await until(mark.exists)
            assert mark.read_text() == "ran\n"
            # Secrets are not part of what a key stands for.
            os.kill(first.pid + 0, signal.SIGTERM)  # the supervisor minds no careless signal
            assert (await box.status(key)).word == "LIVE"

    run(body())


def test_the_words_of_a_state(way: Way) -> None:
    """Each state is told as it is; what cannot be read is unknown, never dead and never absent."""

    async def body() -> None:
        async with way.open() as box:
            assert (await box.status(fresh_key())).word == "ABSENT"
            key, state = await box.start("sleep", "60")
            assert state.word == "LIVE"
            assert start_time(state.pid) == state.start
            main = await box.main(key)
            os.kill(state.pid, signal.SIGKILL)
            await until(lambda: start_time(state.pid) is None)
            assert (await box.status(key)).word == "ORPHANED"
            os.kill(main, signal.SIGKILL)
            await until(lambda: start_time(main) is None)
            assert await box.status(key) == (await box.status(key)).model_copy(update={"word": "LOST", "why": "died"})
            sup = box.folder(key) / "sup"
            words = sup.read_text().split()
            sup.write_text(" ".join((*words[:2], "00000000-0000-0000-0000-000000000000", words[3])) + "\n")
            assert (await box.status(key)).why == "reboot"
            sup.write_bytes(b"\xff\x00garbage")
            assert (await box.status(key)).word == "UNKNOWN"
            sup.unlink()
            assert (await box.status(key)).why == "never-started"
            with subprocess.Popen(["flock", str(box.folder(key) / "alive"), "sleep", "30"]) as holder:
                await until(lambda: Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().strip())
                assert (await box.status(key)).word == "STARTING"
                for child in Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
            (box.folder(key) / "exit").write_text("garb")
            assert (await box.status(key)).word == "UNKNOWN"

    run(body())


def test_a_job_without_an_end_is_lost_and_one_that_goes_on_times_out(way: Way) -> None:
    """Follow claims no status that nobody recorded."""

    async def body() -> None:
        async with way.open() as box:
            key, state = await box.start("sleep", "60")
            assert isinstance(await box.follow(key, 0.7), TimedOut)
            main = await box.main(key)
            for pid in (state.pid, main):
                os.kill(pid, signal.SIGKILL)
            outcome = await box.follow(key)
            assert isinstance(outcome, Lost)
            assert "LOST died" in outcome.why
            absent = await box.follow(fresh_key())
            assert isinstance(absent, Refused)

    run(body())


def test_an_old_epoch_does_nothing(way: Way, tmp_path: Path) -> None:
    """After a take-over the former owner starts nothing; the new one does."""

    async def body() -> None:
        async with way.open(owner="first") as old, way.open(acquire=False) as new:
            busy = await new.do(Acquire(host="box", owner="second"))
            assert isinstance(busy, Refused)
            assert busy.text.startswith(f"BUSY first epoch {old.hosts.epoch('box')} age ")
            taken = await new.do(Acquire(host="box", owner="second", take_over=old.hosts.epoch("box")))
            assert isinstance(taken, Completed)
            assert new.hosts.epoch("box") == old.hosts.epoch("box") + 1
            job = Job(role="script", argv=("touch", str(tmp_path / "mark")))
            fenced = await old.do(Start(host="box", key=fresh_key(), job=job))
            assert isinstance(fenced, Refused)
            assert (fenced.code, fenced.text) == ("FENCED", f"FENCED {new.hosts.epoch('box')}")
            assert not (tmp_path / "mark").exists()
            again = await new.do(Acquire(host="box", owner="second"))
            assert isinstance(again, Completed)
            assert again.out.string() == f"EPOCH {new.hosts.epoch('box')}\n"
        async with way.open(acquire=False) as nobody:
            refused = await nobody.do(Start(host="box", key=fresh_key(), job=job))
            assert isinstance(refused, Refused)

    run(body())


def test_a_secret_goes_only_into_the_job(way: Way) -> None:
    """It is in the job's environment; not in a command line, not in a file that stays, not in what comes back."""

    async def body() -> None:
        async with way.open() as box:
            job: dict[str, Any] = {"secrets": {"TOKEN": "token"}, "env": {"PLAIN": "x"}}
            key, _ = await box.start("sh", "-c", 'echo "$TOKEN"; sleep 0.3; exit ${#TOKEN}', **job)
            shown = subprocess.run(["ps", "-ww", "-e", "-o", "args"], capture_output=True, check=True).stdout
            assert SECRET.encode() not in shown
            outcome = await box.follow(key)
            assert isinstance(outcome, Completed)
            assert outcome.status == len(SECRET)
            assert outcome.out.string().startswith("«redacted:token:")
            kept = [path for path in box.base.rglob("*") if path.is_file() and path.name != "out"]
            assert all(SECRET.encode() not in path.read_bytes() for path in kept)
            assert not (box.folder(key) / "env").exists()

    run(body())


def test_a_job_gets_the_logins_surroundings(way: Way) -> None:
    """Our own umask, PATH and locale stay with us; interrupts work; what a job needs to be found by is there."""
    script = (
        'umask; echo "${LC_ALL-unset}"; echo "$PATH"; echo "$SPT_NOENV $AGENT_RUN_KEY"; '
        'echo "${AGENT_HOST_BASE-none}"; '
        "pwd; grep SigIgn /proc/self/status; ulimit -c; cat hello.txt"
    )

    async def body() -> None:
        async with way.open() as box:
            key, _ = await box.start(
                *("sh", "-c", script + ' "$1"; echo "$E"', "x", "@job/b.bin"),
                files={"hello.txt": "hello", "b.bin": "binary"},
                env={"E": "@job/z"},
            )
            outcome = await box.follow(key)
            assert isinstance(outcome, Completed), outcome
            lines = outcome.out.raw().split(b"\n")
            assert lines[0] == b"0022"
            assert lines[1] == os.environ.get("LC_ALL", "unset").encode()
            assert lines[2] == os.environ["PATH"].encode()
            assert lines[3] == f"1 {key}".encode()
            assert lines[4:6] == [b"none", str(box.folder(key)).encode()]
            assert int(lines[6].split()[1], 16) & (1 << (signal.SIGINT - 1)) == 0
            assert lines[7:9] == [b"0", b"hello"]
            assert bytes(range(256)) in outcome.out.raw()
            assert outcome.out.raw().endswith(f"{box.folder(key)}/z\n".encode())

    run(body())


def test_long_output_is_cut_in_the_middle_and_counted(way: Way) -> None:
    """Head and tail are kept, the rest is a number, and a digest says what the whole was."""

    async def body() -> None:
        async with way.open() as box:
            key, _ = await box.start("sh", "-c", "echo first; head -c 9000000 /dev/zero; echo; echo last")
            outcome = await box.follow(key)
            assert isinstance(outcome, Completed), outcome
            raw = outcome.out.raw()
            assert raw.startswith(b"first\n")
            assert raw.endswith(b"\nlast\n")
            assert len(raw) + outcome.out.dropped == 9000000 + 12
            assert outcome.out.whole == hashlib.sha256(b"first\n" + bytes(9000000) + b"\nlast\n").hexdigest()
            assert outcome.err.whole == ""
            assert outcome.out.spilled()[0].whole == outcome.out.whole

    run(body())


def test_bad_jobs_are_refused_before_anything_runs(way: Way) -> None:
    """What no process can be given, and names that would leave the folder."""

    async def body() -> None:
        async with way.open() as box:
            for job in (
                Job(role="script", argv=("echo", "a\0b")),
                Job(role="script", argv=("-x",)),
                Job(role="script", argv=("true",), env={"A=B": "1"}),
                Job(role="script", argv=("true",), files={"../x": "hello"}),
                Job(role="script", argv=("true",), files={"cmd": "hello"}),
                Job(role="script", argv=("true",), files={"x": "not there"}),
            ):
                outcome = await box.do(Start(host="box", key=fresh_key(), job=job))
                assert isinstance(outcome, Refused), job
                assert outcome.code == "ERR"
            bad_key = await box.do(Start(host="box", key="../x", job=Job(role="script", argv=("true",))))
            assert isinstance(bad_key, Refused)

    run(body())


def test_a_job_outlives_its_controller_and_cancelling_leaves_it_alone(way: Way) -> None:
    """Closing every connection, or giving up a request, ends nothing on the host."""

    async def body() -> None:
        async with way.open() as box:
            key, state = await box.start("sleep", "60")
            waiting = asyncio.create_task(box.follow(key))
            await asyncio.sleep(0.2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await box.status(key)) == state
        async with way.open() as box:
            assert (await box.status(key)) == state
            os.kill(await box.main(key), signal.SIGTERM)
            outcome = await box.follow(key)
            assert isinstance(outcome, Completed)
            assert outcome.status == 143

    run(body())


def test_the_answer_to_a_start_is_a_state(way: Way) -> None:
    """A job that is over at once is told as over."""

    async def body() -> None:
        async with way.open() as box:
            outcome = await box.do(Start(host="box", key=fresh_key(), job=Job(role="script", argv=("false",))))
            assert state_of(outcome).word in {"LIVE", "EXITED"}
            missing, _ = await box.start("/no/such/program")
            ended = await box.follow(missing)
            assert isinstance(ended, Completed)
            assert ended.status == 127

    run(body())


def test_a_start_that_is_cut_short_leaves_no_secret(way: Way) -> None:
    """What was on its way in is taken away by the next verb when the shell that brought it is killed; not before."""

    async def body() -> None:
        async with way.open() as box:
            left = box.base / "in.0123456789abcdef"
            for name in (left, Path(f"{left}.env"), box.base / "in.fedcba9876543210.env"):
                name.write_text(SECRET)
            with subprocess.Popen(["flock", str(left), "sleep", "20"]) as holder:
                await until(lambda: Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().strip())
                await box.start("true")
                assert [path.name for path in sorted(box.base.glob("in.*"))] == [left.name, f"{left.name}.env"]
                for child in Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
            await box.take()
            assert list(box.base.glob("in.*")) == []

    run(body())
