"""Two runs, and two trials: what differs is named, what does not is not, and noise is called noise."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core.campaign import Campaign, evolve
from agent.core.diff import changes, diff, flat, side
from agent.core.events import Opened
from agent.core.plan import Goal, Search
from agent.core.values import Output
from tests.cli.runs import entries
from tests.support.scripted import Box, plan


def folded(box: Box | None = None, **changed: Any) -> Campaign:
    """Walk a scripted campaign and return its end."""
    campaign = Campaign()
    for entry in entries(box, **changed):
        evolve(campaign, entry)
    return campaign


@pytest.fixture(scope="module")
def one() -> Campaign:
    """Return a run."""
    return folded()


@pytest.fixture(scope="module")
def two() -> Campaign:
    """Return another run of the same playbook, with other noise."""
    return folded(Box(seed=9))


def test_a_run_and_itself(one: Campaign) -> None:
    """Nothing differs, in the result neither."""
    found = diff(side("a", one), side("b", one))
    sections = ("playbook", "plan", "configuration", "effective", "environment", "versions", "host", "result")
    assert {name: found[name] for name in sections if found[name]} == {}
    assert found["same"] == [name for name in sections if name not in found["unknown"]]
    assert "result" in found["same"]
    assert "the same number" in found["verdict"]
    one_side = {"run": "a", "trial": "m-16", "launches": 2, "from": "confirmation", "rehearsal": ""}
    assert found["one"] == one_side


def test_two_runs_of_one_playbook_differ_by_noise_only(one: Campaign, two: Campaign) -> None:
    """The numbers are others, the words are not."""
    found = diff(side("a", one), side("b", two))
    assert found["plan"] == []
    goal = found["metrics"][0]
    assert goal["metric"] == "output_tok_s"
    assert goal["one"] != goal["two"]
    assert goal["low"] < 1 < goal["high"]
    assert found["verdict"].startswith("output_tok_s: no difference beyond noise: ")


def test_two_trials_of_one_run(one: Campaign) -> None:
    """The flag that makes the difference, and that it is one; from confirmation launches where there are any."""
    found = diff(side("a", one, "baseline"), side("a", one, "m-16"))
    assert {"what": "--size-m", "one": None, "two": 16} in found["configuration"]
    assert found["metrics"][0]["word"] == "differs by more than noise"
    assert found["metrics"][0]["ratio"] > 2
    assert [change["what"] for change in found["result"]] == ["output_tok_s, mean"]
    assert "result" not in found["same"]
    assert found["one"]["launches"] == found["two"]["launches"] == 2


def test_one_launch_proves_nothing(one: Campaign) -> None:
    """However large the difference: it says so."""
    found = diff(side("a", one, "m-4"), side("a", one, "baseline"))
    assert found["one"]["from"] == "exploration"
    assert "too few launches" in found["verdict"]
    assert found["metrics"][0]["low"] is None
    assert "result" in found["unknown"]
    assert "result" not in found["same"]


def test_what_was_changed_in_the_plan_and_the_playbook(one: Campaign) -> None:
    """By dotted path, and line by line."""
    other = folded(goal=Goal(improve=0.3), search=Search(stages=plan().search.stages, confirm_launches=2))
    assert other.opened is not None
    text = Output.of("x\ny")
    other.opened = Opened.model_validate({**dict(other.opened), "playbook": text, "versions": {"agent": "9"}})
    found = diff(side("a", one), side("b", other))
    assert {"what": "goal.improve", "one": 0.2, "two": 0.3} in found["plan"]
    assert {"what": "agent", "one": None, "two": "9"} in found["versions"]
    assert "+y" in found["playbook"]


def test_an_unknown_trial_is_named_with_those_there_are(one: Campaign) -> None:
    """LookupError with the list."""
    with pytest.raises(LookupError, match=r"no trial 'm-5'; it has: baseline, m-2, "):
        side("a", one, "m-5")


def test_tables() -> None:
    """Lists stay values; what is missing on a side is None there."""
    assert flat({"a": {"b": 1, "c": [1, {"d": 2}]}, "e": {}}) == {"a.b": 1, "a.c": [1, {"d": 2}], "e": {}}
    found = [(change.what, change.one, change.two) for change in changes({"x": 1, "y": 2}, {"y": 3, "z": 4})]
    assert found == [("x", 1, None), ("y", 2, 3), ("z", None, 4)]
