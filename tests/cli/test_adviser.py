"""The real Optuna as an adviser: alike for alike questions, never a point twice, and a run that replays without it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli import adviser
from agent.core.actions import Advise, Knob, Told
from agent.core.observations import Completed, Refused
from agent.core.probes.advice import read_advice
from tests.support.tiny import make

pytestmark = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="the extra `optuna` is not here")


def test_a_space_is_gone_through_once() -> None:
    """8 ordered values by 3 words, told as they come, a third of them as failures; each question is asked twice."""
    told: list[Told] = []
    asked = Advise(
        stage="s", seed=3, knobs=(Knob(name="a", values=8, ordered=True), Knob(name="b", values=3)), startup=5
    )
    while True:
        question = asked.model_copy(update={"told": tuple(told)})
        one, other = adviser.advise(question), adviser.advise(question)
        assert isinstance(one, Completed)
        assert one == other
        at = read_advice(one.out.string(), question)
        assert at is not None
        if not at:
            break
        failed = at[1] == 2
        told.append(Told(at=at, merit=None if failed else -abs(at[0] - 5) - at[1]))
    assert len({item.at for item in told}) == len(told) == 24


@pytest.mark.real
def test_a_run_is_advised_and_replays_without_optuna(tmp_path: Path) -> None:
    """Its answers stand in the journal with its version; the replay has no Optuna to ask."""
    tiny = make(tmp_path, sweep="[200, 250, 300, 400]")
    text = tiny.playbook.read_text()
    tiny.playbook.write_text(
        text.replace("    - name: speed\n", "    - name: speed\n      strategy: optuna\n      sample: 3\n")
    )
    done = tiny.agent("run", str(tiny.playbook), "--plain")
    assert "decision:" in done.stdout, done.stdout + done.stderr
    rows = json.loads(tiny.agent("show", "last", "--json").stdout)["trials"]
    assert [row["trial"] for row in rows if row["role"] == "candidate"] == ["speed-1", "speed-2", "speed-3"]
    barred = tmp_path / "barred"
    barred.mkdir()
    (barred / "optuna.py").write_text("raise ImportError('barred')")
    replayed = subprocess.run(
        tiny.command("replay", "last"),
        env=tiny.env | {"PYTHONPATH": str(barred)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_an_optuna_that_cannot_be_imported_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign holds on it, and says what to install."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = adviser.advise(Advise(stage="s", seed=3, knobs=(Knob(name="a", values=8),)))
    assert isinstance(said, Refused)
    assert "pip install 'campaign-agent[optuna]'" in said.text
