"""What the numbers rest on is looked at when they begin and at each resume; what changed is refused point by point."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.core import actions as act
from agent.core.campaign import Campaign
from agent.core.events import Instructed, Options, Resumed, Stop
from agent.core.observations import SectionResult
from agent.core.plan import Server
from agent.core.probes.inputs import changed_inputs, inputs_sections, read_inputs
from tests.core.test_engine import FastClock, replay, run
from tests.core.test_simulation import small
from tests.support.memory import Crash, MemoryJournal
from tests.support.scripted import Box, plan

BOOT = "11111111-1111-1111-1111-111111111111"


def host(driver: str = "NVIDIA 580.65", boot: str = BOOT) -> str:
    return f"hostname box\nkernel 6.8\nboot {boot}\ndriver {driver}\n=end\n"


@dataclass
class Box2(Box):
    """A box that says what is installed on it; ``says`` can be changed while nobody looks."""

    says: dict[str, str] = field(default_factory=lambda: {"host": host(), "inputs": "path /m folder aa11\n=end\n"})

    def _probe(self, action: act.Probe) -> str:
        mark = "#0123456789abcdef"
        parts = [mark]
        for section in action.sections:
            parts += [
                f"{mark} begin {section.name}",
                self.says.get(section.name, ""),
                f"{mark} end {section.name} rc=0",
            ]
        return "\n".join(parts)


def killed(box: Box2, cut: int = 60) -> tuple[MemoryJournal, FastClock]:
    """Return the journal of a run whose controller died."""
    journal, clock = MemoryJournal(), FastClock()
    journal.crash_after = cut
    with pytest.raises(Crash):
        run(journal, box, small(), clock)
    journal.crash_after = None
    return journal, clock


def stands(campaign: Campaign) -> tuple[str, str]:
    """Return where the campaign stands and how it came there."""
    return campaign.moves[-1].state, campaign.moves[-1].outcome


def test_what_did_not_change_is_gone_on_with() -> None:
    """Another boot is no other input."""
    box = Box2()
    journal, clock = killed(box)
    box.says["host"] = host(boot=BOOT.replace("1", "2"))
    campaign = run(journal, box, Resumed(), clock)
    assert campaign.concluded is not None
    replay(journal)


def test_what_changed_is_refused_until_it_is_allowed() -> None:
    """Nothing is started; each point is named; --rebase goes on with what is there now, also at the next resume."""
    box = Box2()
    journal, clock = killed(box)
    before = sum(box.starts.values())
    box.says = {"host": host("NVIDIA 590.10"), "inputs": "path /m folder bb22\n=end\n"}
    for _ in range(2):
        held = run(journal, box, Resumed(), clock)
        assert stands(held) == ("hold", "changed")
        leases = [action.ttl_s for _, action in box.asked if isinstance(action, act.Acquire)]
        server_lives = box._server() is not None
        assert (leases[-1] > 0) is server_lives, "a hold with nothing of ours up keeps nobody out"
        said = held.moves[-1].because
        assert "GPU driver: NVIDIA 580.65 -> NVIDIA 590.10" in said
        assert "/m: folder aa11 -> folder bb22" in said
        assert sum(box.starts.values()) == before
    journal.crash_after = len(journal.rows) + 30
    with pytest.raises(Crash):
        run(journal, box, Resumed(options=Options(rebase=True)), clock)
    journal.crash_after = None
    campaign = run(journal, box, Resumed(), clock)
    assert campaign.concluded is not None
    replay(journal)


def test_a_stop_asks_for_no_inputs() -> None:
    """Whatever became of them, what was started is ended."""
    box = Box2()
    journal, clock = killed(box)
    box.says["inputs"] = "path /m absent -\n=end\n"
    campaign = run(journal, box, Resumed(), clock, Instructed(order=Stop(), by="test"))
    if stands(campaign) == ("hold", "changed"):  # the look was faster than the order: the order is taken up from there
        campaign = run(journal, box, Resumed(), clock)
    assert stands(campaign)[0] == "done"
    assert box._server() is None


def test_a_look_that_is_lost_is_no_proof() -> None:
    """Unknown is not unchanged."""
    box = Box2()
    journal, clock = killed(box)
    box.lose = lambda request, action: "/inputs-" in request
    assert stands(run(journal, box, Resumed(), clock)) == ("hold", "changed")
    box.lose = lambda request, action: False
    assert run(journal, box, Resumed(), clock).concluded is not None
    replay(journal)


def look(*words: str, **env: str) -> dict[str, str]:
    """Run the real look at what a server's words name."""
    server = Server(kind="command", host="box", port=1, gpus=0, command=("sh", *words))
    (section,) = inputs_sections(plan(server=server))
    done = subprocess.run(
        ["sh", "-c", section.command], capture_output=True, text=True, check=True, env=os.environ | env
    )
    found = read_inputs(
        {"inputs": SectionResult(status=0, out=done.stdout), "host": SectionResult(status=0, out=host())}
    )
    assert found is not None
    return found


def test_a_real_look_at_files_folders_and_models(tmp_path: Path) -> None:
    """A byte in a configuration, a byte at the end of the weights, another commit in the hub's cache: each is seen."""
    model, hub = tmp_path / "model", tmp_path / "hub" / "models--org--name" / "refs"
    model.mkdir()
    hub.mkdir(parents=True)
    (model / "config.json").write_text('{"layers": 3}')
    (model / "weights.safetensors").write_bytes(bytes(6 << 20))
    (hub / "main").write_text("0" * 40)
    data = tmp_path / "it's data.json"
    data.write_text("{}")
    log = tmp_path / "written"

    def seen() -> dict[str, str]:
        written = ("--log-file", str(log), "--slot-save-path", str(log), "--effects", str(log))
        words = ("--model-path", str(model), f"--dataset-path={data}", "org/name", str(tmp_path / "none"), *written)
        return look(*words, HF_HUB_CACHE=str(tmp_path / "hub"))

    before: Any = seen()
    assert before == seen()
    assert before[str(tmp_path / "none")] == "absent"
    assert before["sh"].startswith("file ")
    steps = {
        str(model): lambda: (model / "config.json").write_text('{"layers": 4}'),
        str(data): lambda: data.write_text("[]"),
        "org/name": lambda: (hub / "main").write_text("1" * 40),
    }
    for name, change in steps.items():
        change()
        log.write_text(f"what the server writes is no input: {name}")
        now = seen()
        (line,) = changed_inputs(before, now)
        assert line.startswith(f"{name}: ")
        before = now
    (model / "weights.safetensors").write_bytes(bytes(6 << 20) + b"x")
    assert len(changed_inputs(before, seen())) == 1
    assert changed_inputs(before, seen(), files=False) == []
