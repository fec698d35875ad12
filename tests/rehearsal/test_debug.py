"""Debug campaigns, rehearsed: the right cause is found whichever is planted; the host is as it was but for the cure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.core.campaign import kill as killing
from agent.core.campaign import serve as serving
from agent.core.events import Requested
from agent.core.yaml import compose
from agent.journal.verify import verify
from agent.lab.box import LabBox
from agent.lab.spec import DRAFT
from tests.rehearsal.rehearse import PLAYBOOKS, Told, walk

pytestmark = pytest.mark.real
SOURCE = "/data/src/sglang/python/sglang/srt/models/deepseek_v2.py"
CONFIG = f"{DRAFT}/config.json"
INDEX = f"{DRAFT}/model.safetensors.index.json"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(killing, "GRACE_S", 1.0)
    monkeypatch.setattr(serving, "TICK_S", 1.0)
    return


def rehearsed(name: str, folder: Path, flags: dict[str, Any] | None = None, **lab: Any) -> tuple[Told, dict[str, str]]:
    """Walk a playbook that is shipped, with flags and settings of the lab changed; return also the files at the end."""
    document: Any = compose((PLAYBOOKS / f"{name}.yaml").read_bytes(), name).data
    document["server"]["flags"] |= flags or {}
    document["lab"] |= {"time_scale": 1500, "existing": None, **lab}
    document["server"].pop("replaces", None)
    folder.mkdir(exist_ok=True)
    for file in PLAYBOOKS.iterdir():
        if file.suffix in (".patch", ".py", ".json", ".txt"):
            (folder / file.name).write_bytes(file.read_bytes())
    begun: dict[str, str] = {}

    async def look(box: LabBox) -> dict[str, str]:
        found = {}
        for path in (SOURCE, CONFIG, INDEX):
            found[path] = (await box.run(f"cat {path} 2>/dev/null; stat -c '%a %u %g %Y' {path} 2>/dev/null; true"))[1]
        return found

    told = asyncio.run(walk(folder, json.dumps(document), look))
    return told, begun | told.extra


def verdicts_of(told: Told) -> dict[str, str]:
    """Return the verdict of each hypothesis, in the order of the tests."""
    return {name: score.verdict for name, score in told.scores().items() if score.verdict}


CAUSES = {
    "wrong-algorithm": ({"speculative-algorithm": "EAGLE"}, []),
    "layer-ids-wrong": ({}, ["wrong-layer-ids"]),
    "draft-tokens-overridden": ({"speculative-num-steps": 1, "speculative-num-draft-tokens": 16}, []),
    "draft-head-missing": ({}, ["draft-head-missing"]),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_seeds_story_has_its_end(cause: str, tmp_path: Path) -> None:
    """The planted cause is the supported one, in at most 5 launches; the wrong patch is gone; drafts are accepted."""
    flags, faults = CAUSES[cause]
    told, files = rehearsed("debug-eagle3-accept", tmp_path / "run", flags, faults=faults)
    decision = told.campaign.concluded
    assert decision is not None
    assert (decision.word, decision.winner, told.end) == ("found", cause, "done"), decision.because
    assert len([launch for launch in told.campaign.launches.values() if launch.key]) <= 5
    verdicts = verdicts_of(told)
    assert verdicts[cause] == "supported"
    cures = {name: word for name, word in verdicts.items() if name != "algorithm-is-eagle3"}
    assert [name for name, word in cures.items() if word == "supported"] == [cause]
    assert told.scores()["baseline"].values["accept_len"] < 1.8 < told.scores()[cause].values["accept_len"]
    assert "capture_embedding" not in files[SOURCE], "the wrong patch was taken back"
    assert "[2, 30, 58]" in " ".join(files[CONFIG].split()) or "[ 2, 30, 58 ]" in " ".join(files[CONFIG].split())
    assert "lm_head.weight" in files[INDEX]
    left = [edit.word for edit in told.campaign.edits.made]
    assert left.count("made") == (1 if cause in ("layer-ids-wrong", "draft-head-missing") else 0)
    assert verify(told.journal).ok
    if cause == "layer-ids-wrong":
        said_before_the_test(told)


def said_before_the_test(told: Told) -> None:
    """Check that what is predicted stands in the journal before the change is asked for, which is made by one job."""
    proposed = {entry.event.trial.id: entry for entry in told.entries if entry.event.kind == "proposed"}
    assert proposed["layer-ids-wrong"].event.trial.predicts == "accept_len above 1.8"
    asked = [e for e in told.entries if isinstance(e.event, Requested) and "/layer-ids-wrong/" in e.event.request]
    assert min(entry.seq for entry in asked) > proposed["layer-ids-wrong"].seq
    keys = [e.event.action.key for e in asked if e.event.action.do == "start" and e.event.action.job.role == "change"]
    assert len(keys) == len(set(keys)) == 2, "one job takes back, one makes the change"


def test_a_start_that_hangs_is_looked_at_and_cured(tmp_path: Path) -> None:
    """Questions to the evidence of the launch that hung cost no launch; without graph capture it comes up."""
    told, _ = rehearsed("debug-start-hang", tmp_path / "run", patience=0.001)
    decision = told.campaign.concluded
    assert decision is not None
    assert (decision.word, decision.winner) == ("found", "graph-capture"), decision.because
    launches = {record.trial.id: record.launch for record in told.campaign.history}
    looked = {launches[name] for name in ("a-rank-died", "shared-memory-is-small", "waits-in-communication")}
    assert looked == {launches["baseline"]} == {"l1"}
    assert launches["graph-capture"] == "l2"
    stacks = [entry for entry in told.entries if entry.event.kind == "observed" and "/collect" in entry.event.request]
    text = "".join(entry.event.outcome.out.string() for entry in stacks if "-start" not in entry.event.request)
    assert "sglang::scheduler_TP7" in text, "every rank is in the evidence"
    assert "Capture cuda graph begin" in text
    assert "python3 -m sglang.launch_server" not in told.lab


@pytest.mark.parametrize(("existing", "faults", "who"), [(None, ["wedged-gpu"], "wedged"), ({}, [], "somebody-else")])
def test_who_holds_the_memory(existing: Any, faults: list[str], who: str, tmp_path: Path) -> None:
    """It is said which kind it is; nothing is launched, and nobody is signalled who is not named."""
    told, _ = rehearsed("debug-zombie-memory", tmp_path / "run", existing=existing, faults=faults)
    words = verdicts_of(told)
    assert [name for name, word in words.items() if word == "supported"] == [who], words
    assert set(words.values()) == {"supported", "refuted"}
    assert told.campaign.concluded is not None
    assert told.campaign.concluded.word == "found"
    assert told.signals() == []
    assert not any(launch.key for launch in told.campaign.launches.values())
    assert ("sglang.launch_server" in told.lab) is (existing is not None), "the stranger lives on"
