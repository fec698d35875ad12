"""A rehearsal inside the test's own process: the real agent, over real SSH, against a lab box with faults.

Short campaigns: a baseline and one candidate, no confirmation, a tiny benchmark. What takes seconds of wall time for
the sake of real hosts (a grace after TERM, the ticks of a long start) is shortened in the playbook or by the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.cli import rehearsal
from agent.cli.loading import load
from agent.core.campaign import Campaign
from agent.core.campaign import kill as killing
from agent.core.campaign import serve as serving
from agent.core.events import Entry, Judged, Moved, Opened, Options, Requested, Scored
from agent.core.redact import Redactor
from agent.core.values import Output, Result, Verdict
from agent.engine import Clock, Ledger, World, drive
from agent.hosts.perform import Hosts
from agent.journal.store import Journal
from agent.lab.box import LabBox

CAMPAIGN = hashlib.sha256(b"rehearsal").hexdigest()[:32]
LIMIT_S = 60.0
PLAYBOOKS = Path(__file__).parents[2] / "playbooks"

PLAYBOOK = """
playbook: faults
hosts: {{box: root@kimi-box}}
server:
  kind: sglang
  port: 8000
  tensor_parallel: 8
  command: [python3, -m, sglang.launch_server]
  flags: {{model-path: /data/models/kimi-k2.5-int4, mem-fraction-static: 0.88, trust-remote-code: true}}
  env: {{NCCL_DEBUG: INFO, NCCL_DEBUG_SUBSYS: "INIT,ENV,TUNING"}}
  secrets: {{HF_TOKEN: {{env: HF_TOKEN}}}}
  replaces: {{argv: [sglang.launch_server], port: 8000, expect: 1}}
search:
  base:
    flags:
      speculative-algorithm: EAGLE3
      speculative-draft-model-path: /data/eagle3/output_100k_sglang/4
      speculative-eagle-topk: 1
      speculative-num-steps: 2
      speculative-num-draft-tokens: 3
    env: {{NCCL_PROTO: LL}}
  confirm: {{launches: 0}}
benchmark: {{output_tokens: 128, requests: 1, repeats: {repeats}}}
profile: {{method: "off"}}
states:
  verify-clean: {{guards: [{{guard: gpus_clean, settle: {settle}}}, no_process, {{guard: port_free, settle: 1s}}]}}
  health-wait: {{guards: [{health}]}}
{states}
finally: stop
lab: {lab}
"""
HEALTH = "alive, progressing, ready, server_is_ours, effective_config, answers, workers, gpus_balanced, env_applied"


@dataclass
class Told:
    """What a rehearsal came to."""

    campaign: Campaign
    entries: list[Entry]
    journal: Path
    seconds: float
    lab: str
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def end(self) -> str:
        """The state in which it rests."""
        assert self.campaign.visit is not None
        return self.campaign.visit.state

    def verdicts(self, guard: str, trial: str = "") -> list[Verdict]:
        """Return every verdict of a guard (or of a step, by its word), oldest first, on one trial or on all."""
        events = [entry.event for entry in self.entries if isinstance(entry.event, Judged)]
        return [e.verdict for e in events if e.guard == guard and (not trial or f"/{trial}/" in e.at)]

    def failures(self, trial: str = "") -> list[str]:
        """Return ``guard: CLASS`` of every FAIL, in order, each once."""
        events = [entry.event for entry in self.entries if isinstance(entry.event, Judged)]
        failed = [e for e in events if e.verdict.result is Result.FAIL and (not trial or f"/{trial}/" in e.at)]
        return list(dict.fromkeys(f"{e.guard}: {e.verdict.finding}" for e in failed))

    def ways(self) -> list[str]:
        """Return every move as ``state-outcome``."""
        moves = [entry.event for entry in self.entries if isinstance(entry.event, Moved)]
        return [f"{move.source}-{move.outcome}" for move in moves if move.source]

    def scores(self) -> dict[str, Scored]:
        """Return what each trial was worth."""
        return {entry.event.trial: entry.event for entry in self.entries if isinstance(entry.event, Scored)}

    def signals(self) -> list[str]:
        """Return the signals that were ordered."""
        events = [entry.event for entry in self.entries if isinstance(entry.event, Requested)]
        return [event.action.signal for event in events if event.action.do == "signal"]


@contextlib.asynccontextmanager
async def hosts_of(plan: Any, box: LabBox, files: dict[str, bytes]) -> AsyncIterator[Hosts]:
    """Give the way to the box, with secrets of the rehearsal and redaction as in a run."""
    found = rehearsal.secrets_of(plan)
    hosts = Hosts(
        plan.hosts,
        campaign=CAMPAIGN,
        files=files.__getitem__,
        secrets=found.__getitem__,
        redactor=Redactor(b"k" * 32, found),
        ssh_config=box.ssh_config,
    )
    try:
        yield hosts
    finally:
        await hosts.close()


async def walk(
    folder: Path, text: str, look: Callable[[LabBox], Any] | None = None, faults: list[str] | None = None
) -> Told:
    """Walk a playbook in a lab of its own; ``look`` may look into the box at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    playbook = folder / "playbook.yaml"
    playbook.write_text(text)
    shutil.copy(PLAYBOOKS / "soak.py", folder)
    read, plan, files = load(playbook)
    plan = rehearsal.hurried(plan)
    spec = rehearsal.spec_of(plan, faults or [])
    began, entries = time.monotonic(), list[Entry]()
    opened = Opened(
        campaign=CAMPAIGN, plan=plan, playbook=Output.of(read), options=Options(yes=True), rehearsal="a test's lab"
    )
    async with LabBox(spec, folder / "lab") as box, hosts_of(plan, box, files) as hosts:
        with Journal.create(folder / "journal.db", CAMPAIGN, {"agent": "test"}) as journal:
            clock = Clock()
            ledger = Ledger(iter(()), store=journal, clock=clock, hydrate=journal.hydrate, epoch=hosts.epoch)
            world = World(opened, hosts, clock)
            try:
                async with asyncio.timeout(LIMIT_S):
                    campaign = await drive(ledger, world, watch=lambda entry, _: entries.append(entry))
            finally:
                await world.close()
        status, shown = await box.run("ps -eo args; nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits")
        assert status in (0, 15), shown
        told = Told(campaign, entries, folder / "journal.db", time.monotonic() - began, shown)
        if look is not None:
            told.extra = await look(box)
    return told


@pytest.fixture
def rehearse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    """Give the way to rehearse with faults: ``rehearse("zombie-workers", health=…)``."""
    monkeypatch.setattr(killing, "GRACE_S", 1.0)
    monkeypatch.setattr(serving, "TICK_S", 1.0)

    def run(*faults: str | dict[str, Any], look: Any = None, **changes: Any) -> Told:
        lab = {"faults": list(faults), "existing": None, "time_scale": 1500, **changes.pop("lab", {})}
        words = {"repeats": "2", "settle": "1s", "health": HEALTH, "states": "", **changes}
        return asyncio.run(walk(tmp_path / "run", PLAYBOOK.format(lab=json.dumps(lab), **words), look))

    return run
