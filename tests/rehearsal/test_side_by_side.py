"""Campaigns on one host at the same time, on GPUs and ports of their own: what each takes, sees, ends and is told."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.cli import rehearsal
from agent.cli.loading import load
from agent.core.actions import Signal
from agent.core.campaign import Campaign
from agent.core.campaign import kill as killing
from agent.core.campaign import serve as serving
from agent.core.events import Entry, Judged, Opened, Options, Requested
from agent.core.values import Output, Result
from agent.engine import Clock, Ledger, World, drive
from agent.hosts.perform import Hosts
from agent.journal.store import Journal
from agent.lab.box import LabBox
from tests.rehearsal.rehearse import LIMIT_S, hosts_of

pytestmark = pytest.mark.real
PLAYBOOK = """
playbook: {name}
hosts: {{box: root@kimi-box}}
server:
  kind: sglang
  port: {port}
  tensor_parallel: {many}
  command: [python3, -m, sglang.launch_server]
  flags: {{model-path: /data/models/kimi-k2.5-int4, mem-fraction-static: 0.88, watchdog-timeout: 9000000}}
  env: {{CUDA_VISIBLE_DEVICES: "{gpus}"}}
{replaces}
search:
  base: {{flags: {{disable-cuda-graph: true}}}}
  confirm: {{launches: 0}}
benchmark: {{output_tokens: 128, requests: 1, repeats: 2}}
profile: {{method: "off"}}
finally: stop
lab: {{existing: null, time_scale: 1500, gpus: 10}}
"""


@dataclass
class Run:
    """One campaign, and how far it is let go."""

    name: str
    gpus: str
    port: int
    replaces: str = ""
    options: Options = field(default_factory=lambda: Options(yes=True))
    many: int = 4
    at_work: asyncio.Event = field(default_factory=asyncio.Event)
    """It is about to measure: its server is up."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    entries: list[Entry] = field(default_factory=list)
    hosts: Hosts | None = None

    @property
    def id(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()[:32]

    def epoch(self, host: str) -> int:
        assert self.hosts is not None
        return self.hosts.epoch(host)

    async def perform(self, request: str, action: Any, note: Any) -> Any:
        """Carry out an action; the first measurement waits until it is let go."""
        assert self.hosts is not None
        if "/bench-start" in request:
            self.at_work.set()
            await self.go.wait()
        return await self.hosts.perform(request, action, note)

    async def walk(self, box: LabBox, folder: Path) -> Campaign:
        """Walk its playbook in a box that others may be using."""
        folder = folder / self.name
        folder.mkdir()
        playbook = folder / "playbook.yaml"
        words = {"name": self.name, "port": self.port, "many": self.many, "gpus": self.gpus, "replaces": self.replaces}
        playbook.write_text(PLAYBOOK.format(**words))
        read, plan, files = load(playbook)
        plan = rehearsal.hurried(plan)
        opened = Opened(
            campaign=self.id,
            plan=plan,
            playbook=Output.of(read),
            options=self.options,
            controller=f"{self.name}@laptop pid 1",
            rehearsal="a test's lab",
        )
        async with hosts_of(plan, box, files) as self.hosts:
            with Journal.create(folder / "journal.db", self.id, {"agent": "test"}) as journal:
                clock = Clock()
                ledger = Ledger(iter(()), store=journal, clock=clock, hydrate=journal.hydrate, epoch=self.epoch)
                world = World(opened, self, clock)
                try:
                    async with asyncio.timeout(LIMIT_S):
                        return await drive(ledger, world, watch=lambda entry, _: self.entries.append(entry))
                finally:
                    await world.close()

    def failures(self) -> list[str]:
        """Return what was judged FAIL."""
        events = [entry.event for entry in self.entries if isinstance(entry.event, Judged)]
        return [f"{e.guard}: {e.verdict.saw}" for e in events if e.verdict.result is Result.FAIL]

    def signalled(self) -> set[tuple[int, int]]:
        """Return the identity of each process that got a signal, or was to get one."""
        events = [entry.event for entry in self.entries if isinstance(entry.event, Requested)]
        signals = [event.action for event in events if isinstance(event.action, Signal)]
        return {(target.pid, target.start) for signal in signals for target in signal.targets}


def lab(folder: Path) -> LabBox:
    """Return a box of ten GPUs on which nothing runs."""
    text = PLAYBOOK.format(name="x", port=1, many=4, gpus="0,1,2,3", replaces="")
    (folder / "x.yaml").write_text(text)
    return LabBox(rehearsal.spec_of(load(folder / "x.yaml")[1], []), folder / "lab")


def uuids(box: LabBox) -> list[str]:
    """Return the UUIDs of its GPUs."""
    found: list[str] = json.loads((box.folder.path / "lab.json").read_text())["uuids"]
    return found


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killing, "GRACE_S", 1.0)
    monkeypatch.setattr(serving, "TICK_S", 1.0)


async def both_at_work(
    box: LabBox, group: asyncio.TaskGroup, folder: Path
) -> tuple[tuple[Run, Run], list[asyncio.Task[Campaign]]]:
    """Begin two campaigns on GPUs of their own; return them and their tasks once both servers are under load."""
    one, two = Run("one", "0,1,2,3", 8000), Run("two", "4,5,6,7", 8001)
    tasks = [group.create_task(run.walk(box, folder)) for run in (one, two)]
    await asyncio.wait_for(asyncio.gather(one.at_work.wait(), two.at_work.wait()), LIMIT_S)
    return (one, two), tasks


def test_two_campaigns_on_different_gpus_of_one_host(tmp_path: Path) -> None:
    """Both measure while the other's server is up, and come to the end that each alone comes to; one goes by UUIDs."""

    async def body() -> None:
        async with lab(tmp_path) as box, asyncio.TaskGroup() as group:
            one = Run("one", "0,1,2,3", 8000)
            two = Run("two", ",".join(uuids(box)[4:8]), 8001)
            tasks = [group.create_task(run.walk(box, tmp_path)) for run in (one, two)]
            await asyncio.wait_for(asyncio.gather(one.at_work.wait(), two.at_work.wait()), LIMIT_S)
            _, seen = await box.run(
                "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits; cat $AGENT_HOST_BASE/lease"
            )
            *used, first, second = seen.strip().splitlines()
            assert [int(mib) > 80000 for mib in used] == [True] * 8 + [False] * 2
            assert {line.split()[5] for line in (first, second)} == {
                "gpu0,gpu1,gpu2,gpu3,port:8000",
                "gpu4,gpu5,gpu6,gpu7,port:8001",
            }
            for run in (one, two):
                run.go.set()
            for run, campaign in zip((one, two), [await task for task in tasks], strict=True):
                assert campaign.visit is not None
                assert campaign.visit.state == "done", campaign.moves[-1]
                assert run.failures() == []
                assert len(campaign.launches) == 2
                assert all(record.accepted for record in campaign.history)
            assert one.signalled()
            assert two.signalled()
            assert not one.signalled() & two.signalled()
            assert len((box.folder.path / "launches").read_text()) == 4
            _, left = await box.run("ps -eo args; cat $AGENT_HOST_BASE/lease")
            assert "launch_server" not in left
            assert "gpu" not in left or all(line.split()[4] == "0" for line in left.splitlines() if "gpu" in line)

    asyncio.run(body())


def test_what_others_work_with_is_neither_taken_nor_ended(tmp_path: Path) -> None:
    """A third campaign is told who has the GPU it wants; one whose words match both servers ends neither.

    Take-over of the one lease that is in the way stops that campaign, before it does anything more, and no other.
    """

    async def body() -> None:
        async with lab(tmp_path) as box, asyncio.TaskGroup() as group:
            (one, two), tasks = await both_at_work(box, group, tmp_path)
            _, before = await box.run("pgrep -f sglang[.]launch_server")

            words = "  replaces: {argv: [sglang.launch_server], user: root, expect: 2}"
            broad = Run("broad", "8,9", 8002, replaces=words, many=2)
            campaign = await broad.walk(box, tmp_path)
            assert campaign.visit is not None
            assert campaign.visit.state == "hold"
            assert "matches what another campaign works with" in campaign.moves[-1].because
            assert broad.signalled(), "it was the host that refused"

            third = Run("third", "3,8", 8002, many=2)
            campaign = await third.walk(box, tmp_path)
            said = campaign.moves[-1].because
            assert f"GPU 3 of box: campaign {one.id[:8]} of one@laptop" in said
            assert two.id[:8] not in said
            taking = Run("taking", "3,8", 8002, many=2, options=Options(yes=True, take_over=one.epoch("box")))
            campaign = await taking.walk(box, tmp_path)
            assert campaign.visit is not None
            assert campaign.visit.state == "hold"
            assert "verify-clean" in {move.state for move in campaign.moves}
            assert any("GPU 3" in failure for failure in taking.failures()), "what is left on it is not ours to end"
            assert not taking.signalled()

            _, after = await box.run("pgrep -f sglang[.]launch_server")
            assert after == before
            for run in (one, two):
                run.go.set()
            first, second = [await task for task in tasks]
            assert first.visit is not None
            assert (first.visit.state, first.moves[-1].outcome) == ("hold", "fenced")
            assert second.visit is not None
            assert second.visit.state == "done"
            assert two.failures() == []
            assert not one.signalled()

    asyncio.run(body())


def test_a_rank_that_dies_under_load_is_found_by_its_absence(tmp_path: Path) -> None:
    """Its server goes on and says nothing, the load waits; seconds later the trial ends as DEAD_RANK, by name.

    A neighbour's ranks have the same names, and stand for nothing.
    """

    async def body() -> None:
        async with lab(tmp_path) as box, asyncio.TaskGroup() as group:
            (one, two), tasks = await both_at_work(box, group, tmp_path)
            _, rows = await box.run("nvidia-smi --query-compute-apps=pid,gpu_uuid --format=csv,noheader")
            pids = {uuid: pid for pid, uuid in (row.split(", ") for row in rows.splitlines())}
            await box.run(f"kill -KILL {pids[uuids(box)[2]]}")
            one.go.set()
            campaign = await tasks[0]
            record = campaign.history[0]
            assert record.scored is not None
            assert (record.scored.valid, record.scored.finding) == (False, "DEAD_RANK")
            (move,) = [move for move in campaign.moves if move.source == "benchmark" and move.trial == record.trial.id]
            assert "scheduler_TP2 is gone while others live" in move.because
            two.go.set()
            other = await tasks[1]
            assert other.visit is not None
            assert other.visit.state == "done"
            assert two.failures() == []

    asyncio.run(body())
