"""Leases: who may do what on a host. One number for the whole host, several leases on different things of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from agent.core.actions import Acquire, Job, Owned, Signal, Start, Target
from agent.core.observations import Completed, Outcome, Refused, read_owned
from tests.support.sshd import start_time

from .world import Campaign, Way, fresh_key, run


async def take(box: Campaign, owner: str, *resources: str, over: int | None = None, ttl_s: int = 1800) -> Outcome:
    """Ask for a lease."""
    action = Acquire(host="box", owner=owner, resources=resources, take_over=over, ttl_s=ttl_s)
    return await box.do(action)


async def works(box: Campaign) -> bool:
    """Whether the host lets this campaign start something."""
    outcome = await box.do(Start(host="box", key=fresh_key(), job=Job(role="script", argv=("true",))))
    if isinstance(outcome, Refused):
        assert outcome.code == "FENCED", outcome
    return isinstance(outcome, Completed)


def said(outcome: Outcome) -> str:
    """Return what the host said, without ages."""
    text = outcome.out.string() if isinstance(outcome, Completed) else getattr(outcome, "text", "")
    return re.sub(r" since \d+ s", "", re.sub(r"age \d+ s", "age A s", text.strip()))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Way:
    """Give this machine as a host with a folder of its own."""
    monkeypatch.setenv("AGENT_HOST_BASE", str(tmp_path / "base"))
    return Way("local", None, tmp_path / "base")


def test_campaigns_on_different_resources_go_on_side_by_side(here: Way) -> None:
    """Each has its own number; what overlaps is refused with owner, number, age and the thing in the way."""

    async def body() -> None:
        async with here.open(acquire=False) as one, here.open(acquire=False) as two, here.open(acquire=False) as three:
            assert said(await take(one, "one", "gpu1", "gpu0", "port:8000")) == "EPOCH 1"
            assert said(await take(two, "two", "gpu2", "port:8001")) == "EPOCH 2"
            assert await works(one)
            assert await works(two)
            assert said(await take(three, "three", "gpu3", "gpu1")) == "BUSY one epoch 1 age A s resource gpu1"
            assert said(await take(three, "three", "gpu10", "port:800")) == "EPOCH 3"
            assert said(await take(three, "three")) == (
                "BUSY two epoch 2 age A s resource gpu2,port:8001\n"
                "BUSY one epoch 1 age A s resource gpu0,gpu1,port:8000"
            )
            assert await works(three), "a refusal takes nothing away"

    run(body())


def test_a_lease_on_the_whole_host_meets_everything(here: Way) -> None:
    """Also the one that an earlier version left, which named no resource."""

    async def body() -> None:
        async with here.open(acquire=False) as one, here.open(acquire=False) as two:
            await take(one, "one")
            lease = here.base / "lease"
            lease.write_text(re.sub(r" host \d+", "", lease.read_text()))
            assert said(await take(two, "two", "gpu7")) == "BUSY one epoch 1 age A s resource host"
            assert await works(one)

    run(body())


def test_a_take_over_names_what_it_was_shown(here: Way) -> None:
    """The newest number shown stands for all that was listed; a number that is out of date takes nothing."""

    async def body() -> None:
        async with here.open(acquire=False) as one, here.open(acquire=False) as two, here.open(acquire=False) as three:
            await take(one, "one", "gpu0", "gpu1")
            await take(two, "two", "gpu2")
            assert said(await take(three, "three", "gpu0", over=2)).startswith("BUSY one epoch 1 ")
            assert said(await take(three, "three", over=1)).startswith("BUSY two epoch 2 ")
            assert await works(one)
            assert await works(two)
            # Of a lease that is taken over in part nothing is left: its owner finds out before it does anything.
            assert said(await take(three, "three", "gpu1", over=1)) == "EPOCH 3"
            assert not await works(one)
            assert await works(two)
            assert said(await take(one, "one", "gpu0")) == "EPOCH 4"
            assert said(await take(three, "three", over=4)) == "EPOCH 3"
            assert not await works(one)
            assert not await works(two)
            assert await works(three)

    run(body())


def test_the_same_owner_renews_changes_and_gives_back(here: Way) -> None:
    """Its number stays; what it no longer names is free; what was given back anybody may have."""

    async def body() -> None:
        async with here.open(acquire=False) as one, here.open(acquire=False) as two:
            assert said(await take(one, "one", "gpu0", "gpu1")) == "EPOCH 1"
            assert said(await take(one, "one", "gpu0")) == "EPOCH 1"
            assert said(await take(two, "two", "gpu1")) == "EPOCH 2"
            assert said(await take(one, "one", "gpu0", "gpu1")) == "BUSY two epoch 2 age A s resource gpu1"
            assert await works(one)
            assert said(await take(one, "one", ttl_s=0, over=2)) == "EPOCH 1"
            assert said(await take(two, "two")) == "EPOCH 3"
            assert not await works(one)

    run(body())


def test_what_another_campaign_works_with_gets_no_signal(here: Way) -> None:
    """However well a playbook's words match it, and whoever said yes; not a part of the list is sent then.

    Told by the job's key in the environment and, of a process without one, by its session. A finished campaign's
    server, which no lease stands for any more, is the operator's to name.
    """

    async def body() -> None:
        async with here.open(acquire=False) as one, here.open(acquire=False) as two:
            await take(one, "aaaa0001:ada", "gpu0")
            await take(two, "bbbb0002:bob", "gpu1")
            key, _ = await two.start("sh", "-c", "sleep 311 & env -i sleep 312 & wait", key="bbbb0002-1", role="server")
            found: dict[str, Target] = {}
            while not {"sleep 311", "sleep 312"} <= set(found):
                outcome = await two.do(Owned(host="box", keys=(key,)))
                assert isinstance(outcome, Completed)
                found = {p.argv: Target(pid=p.pid, start=p.start) for p in read_owned(outcome.out.string())}
            with subprocess.Popen(["sleep", "313"]) as stranger:
                free = Target(pid=stranger.pid, start=start_time(stranger.pid) or 0)
                for argv in ("sleep 311", "sleep 312"):
                    named = Signal(host="box", signal="KILL", targets=(free, found[argv]))
                    outcome = await one.do(named)
                    assert isinstance(outcome, Refused), outcome
                    assert outcome.code == "BUSY"
                    assert said(outcome) == "BUSY bbbb0002:bob epoch 2 age A s resource gpu1"
                    assert start_time(free.pid) == free.start
                    assert start_time(found[argv].pid) == found[argv].start
                await take(two, "bbbb0002:bob", "gpu1", ttl_s=0)
                outcome = await one.do(Signal(host="box", signal="KILL", targets=(free, *found.values())))
                assert isinstance(outcome, Completed), outcome
                assert outcome.out.string().count("SENT") == 1 + len(found)

    run(body())


def test_a_lease_not_renewed_in_time_stays_until_somebody_wants_it(here: Way) -> None:
    """Time alone fences nobody: a laptop that comes back goes on."""

    async def body() -> None:
        async with here.open(acquire=False) as one, here.open(acquire=False) as two:
            await take(one, "one", "gpu0")
            lease = here.base / "lease"
            owner, epoch, boot, _, _, held, _ = lease.read_text().split()
            lease.write_text(f"{owner} {epoch} {boot} 0 1 {held}\n")
            assert said(await take(two, "two", "gpu1")) == "EPOCH 2"
            assert await works(one), "the lease was renewed by this"
            assert said(await take(two, "two", "gpu0")) == "BUSY one epoch 1 age A s resource gpu0"
            lease.write_text(f"{owner} {epoch} {boot} 0 1 {held}\n")
            assert said(await take(two, "two", "gpu0")) == "EPOCH 3"
            assert not await works(one)

    run(body())


def test_what_cannot_be_read_gives_nothing_away(here: Way) -> None:
    """A damaged lease is no free host; a damaged request is refused."""

    async def body() -> None:
        async with here.open(acquire=False) as one, here.open(acquire=False) as two:
            await take(one, "one")
            lease = here.base / "lease"
            whole = lease.read_text()
            for damaged in ("", "\n", "one 1", "one x boot 1 1 host\n", whole + "\xff\n"):
                lease.write_text(damaged)
                assert said(await take(two, "two")) == "ERR lease cannot be read", damaged
            lease.write_text(whole)
            call = two.hosts._host("box").call
            for words in (("a b", "1", "-"), ("a", "x", "-"), ("a", "1", "gpu0,,gpu1"), ("a", "1", "gpu0;x")):
                assert (await call("acquire", *words)).out.startswith(b"ERR "), words
            assert await works(one)

    run(body())


@pytest.mark.parametrize("awk", [["mawk"], ["busybox", "awk"], ["gawk"], ["original-awk"]], ids=lambda awk: awk[0])
def test_every_awk_reads_leases_alike(awk: list[str]) -> None:
    """The rules are one awk program, and hosts differ in theirs."""
    text = (Path(__file__).parents[2] / "agent/hosts/lease.sh").read_text()
    program = text.split("ag_leases='", 1)[1].split("'\n", 1)[0]
    leases = "a 3 B 90 50 gpu0,gpu1 70\nb 4 B 100 9 port:1\nc 5 old 100 50 gpu2\nd 6 B 100 50\n"
    given = {"owner": "x", "ttl": "9", "take": "", "last": "6", "boot": "B", "up": "120", "there": "1"}

    def asked(want: str, **more: str) -> str:
        words = [word for name, value in (given | more | {"want": want}).items() for word in ("-v", f"{name}={value}")]
        try:
            done = subprocess.run([*awk, *words, program], input=leases, capture_output=True, text=True, check=True)
        except FileNotFoundError:
            pytest.skip(f"no {awk[0]} here")
        return done.stdout

    assert asked("gpu9") == "BUSY d epoch 6 age 20 s resource host since 20 s\n"
    assert asked("gpu1,gpu2").splitlines()[-1] == "BUSY a epoch 3 age 30 s resource gpu1 since 50 s"
    took = asked("gpu1,port:1", take="6").splitlines()
    assert took == ["EPOCH 7", "c 5 old 100 50 gpu2", "x 7 B 120 9 gpu1,port:1 120"]
    renewed = asked("gpu0", owner="a").splitlines()
    assert renewed[0] == "BUSY d epoch 6 age 20 s resource host since 20 s"
    assert asked("gpu0", owner="a", take="6").splitlines()[-1] == "a 3 B 120 9 gpu0 70", "it is held since it was taken"
