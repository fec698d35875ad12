"""Probes: one round trip, every section with its own status, whatever it prints."""

from __future__ import annotations

import subprocess
import time

from agent.core.actions import Probe, Section
from agent.core.observations import Completed, Refused, TimedOut, read_sections

from .world import Way, run, until


def test_each_section_tells_its_own_end(way: Way) -> None:
    """Statuses, standard error, broken syntax, an exit, a kill: none of them touches the next section."""

    async def body() -> None:
        async with way.open(acquire=False) as box:
            sections = (
                Section(name="plain", command="printf 'no line end'"),
                Section(name="err", command="echo oops >&2; exit 3"),
                Section(name="syntax", command="echo $( ("),
                Section(name="killed", command="sh -c 'kill -9 $$'"),
                Section(name="cd", command="cd /; x=1; exec true"),
                Section(name="same", command='echo "${x-unset}"; cat'),
                Section(name="empty", command=""),
            )
            outcome = await box.do(Probe(host="box", sections=sections))
            assert isinstance(outcome, Completed), outcome
            found = read_sections(outcome.out.string())
            assert {name: (result.status, result.out) for name, result in found.items() if name != "syntax"} == {
                "plain": (0, "no line end"),
                "err": (3, "oops\n"),
                "killed": (137, found["killed"].out),
                "cd": (0, ""),
                "same": (0, "unset\n"),
                "empty": (0, ""),
            }
            assert found["syntax"].status not in {0, None}

    run(body())


def test_a_section_that_hangs_is_ended_alone(way: Way) -> None:
    """It is told as 124, its processes are gone, and those before and after it are whole."""

    async def body() -> None:
        async with way.open(acquire=False) as box:
            nap = f"{time.time_ns() % 10**9 + 10**6}"  # nobody else sleeps for as long
            sections = (
                Section(name="a", command="sleep 0.3; echo a"),
                Section(name="hang", command=f"echo begun; sleep {nap}; echo never", timeout_s=0.6),
                Section(name="stubborn", command=f"trap '' TERM; sleep {nap}; sleep {nap}", timeout_s=0.5),
                Section(name="b", command="sleep 0.4; echo b", timeout_s=0.8),
            )
            began = time.monotonic()
            outcome = await box.do(Probe(host="box", sections=sections))
            assert isinstance(outcome, Completed), outcome
            found = read_sections(outcome.out.string())
            assert {name: (result.status, result.out) for name, result in found.items()} == {
                "a": (0, "a\n"),
                "hang": (124, "begun\n"),
                "stubborn": (124, ""),
                "b": (0, "b\n"),
            }
            assert time.monotonic() - began < 6
            await until(lambda: subprocess.run(["pgrep", "-f", f"^sleep {nap}$"], check=False).returncode == 1)

    run(body())


def test_a_probe_out_of_time_knows_nothing(way: Way) -> None:
    """The next one is not disturbed by it."""

    async def body() -> None:
        async with way.open(acquire=False) as box:
            slow = Section(name="slow", command="sleep 3")
            assert isinstance(await box.do(Probe(host="box", sections=(slow,), timeout_s=0.3)), TimedOut)
            outcome = await box.do(Probe(host="box", sections=(Section(name="x", command="echo x"),)))
            assert isinstance(outcome, Completed)
            assert read_sections(outcome.out.string())["x"].out == "x\n"
            odd = await box.do(Probe(host="box", sections=(Section(name="a\\b", command="true"),)))
            assert isinstance(odd, Refused)

    run(body())


def test_any_bytes_come_through(way: Way) -> None:
    """0xFF ends no connection; NUL and control characters are kept."""

    async def body() -> None:
        async with way.open(acquire=False) as box:
            command = r"printf '\377\376\000\033[1m'; head -c 300000 /dev/urandom; printf end"
            outcome = await box.do(Probe(host="box", sections=(Section(name="x", command=command),)))
            assert isinstance(outcome, Completed)
            raw = outcome.out.raw()
            assert b"\xff\xfe\x00\x1b[1m" in raw
            assert len(raw) > 300000
            again = await box.do(Probe(host="box", sections=(Section(name="x", command="echo fine"),)))
            assert isinstance(again, Completed)

    run(body())


def test_a_probe_does_not_see_itself(way: Way) -> None:
    """The commands of a probe stand in no command line, so a search of the process list finds others only."""

    async def body() -> None:
        async with way.open(acquire=False) as box:
            sections = (
                Section(name="other", command="true some-unlikely-word"),
                Section(name="ps", command="ps -ww -e -o args | grep -c '[s]ome-unlikely-word'"),
            )
            outcome = await box.do(Probe(host="box", sections=sections))
            assert isinstance(outcome, Completed)
            assert read_sections(outcome.out.string())["ps"].out == "0\n"

    run(body())


def test_a_flood_is_bounded(way: Way) -> None:
    """A hundred megabytes cost neither the connection nor the memory."""

    async def body() -> None:
        async with way.open(acquire=False) as box:
            flood = Section(name="flood", command="head -c 100000000 /dev/zero")
            outcome = await box.do(Probe(host="box", sections=(flood,), timeout_s=50))
            assert isinstance(outcome, Completed), outcome
            assert outcome.out.dropped > 90_000_000
            assert len(outcome.out.raw()) < 6_000_000

    run(body())
