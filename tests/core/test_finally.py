"""What is left running at the end, whatever the end was."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core.campaign.choices import choose_finally, concluded
from agent.core.campaign.keep import REPLACED
from agent.core.campaign.parts import Launch, Record
from agent.core.campaign.state import Campaign
from agent.core.events import Concluded, Moved
from agent.core.plan import Trial
from agent.core.search import Finished
from agent.core.statistics import Comparison
from tests.core.test_engine import opened

LEFT = "what was to be left"
ENDS = {
    "success": {"word": "goal met", "winner": "m-4", "exit": 0},
    "no gain": {"word": "not improved", "exit": 1},
    "failure": {"word": "invalid", "exit": 6},
    "budget used up": {"word": "not conclusive", "exit": 5},
}


def at_the_end(end: str, mode: str, **known: Any) -> Campaign:
    """Return a campaign that has come to its last choice."""
    concluded = Concluded(metric="output_tok_s", baseline="baseline", because="x", **ENDS[end])
    return Campaign(opened=opened(finally_=mode), concluded=concluded, **known)


@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_the_replaced_command_comes_back(end: str, stopping: bool) -> None:
    """On success, failure, an exhausted budget, and on the operator's stop; once, and then everything of ours stops."""
    campaign = at_the_end(end, "restore", kept="job", stopping=stopping)
    choice = choose_finally(campaign)
    assert choice.outcome == "launch"
    assert choice.proposal is not None
    assert (choice.proposal.trial.role, choice.proposal.trial.of) == ("final", REPLACED)
    way = Moved(
        lane="main", source="finally", outcome="launch", state="kill", trial="restored", launch="l9", because=""
    )
    campaign.moves.append(way)
    again = choose_finally(campaign)
    assert (again.outcome, again.proposal) == ("stop", None), "it did not come up: it is not tried for ever"


@pytest.mark.parametrize(
    ("stopping", "health_s", "why"),
    [
        (True, 9.0, "the operator's order"),
        (False, 9.0, f"{LEFT} came up and did not hold"),
        (False, None, f"{LEFT} did not come up"),
    ],
)
def test_why_what_was_to_be_left_goes(stopping: bool, health_s: float | None, why: str) -> None:
    """A winner that had come up and is stopped after the end is not said to have failed."""
    record = Record(Trial(id="final", role="final", of="m-4"), "l9")
    launch = Launch("l9", "final", health_s=health_s)
    campaign = at_the_end("success", "winner", stopping=stopping, history=[record], launches={"l9": launch})
    assert choose_finally(campaign).because == f"{why}: nothing of this run is left running"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("mode", "kept"), [("restore", ""), ("stop", "job"), ("winner", "job")])
def test_else_nothing_of_ours_is_left(end: str, mode: str, kept: str) -> None:
    """Nothing was kept to be restored, it was not asked for, or no valid configuration is known that could stay."""
    choice = choose_finally(at_the_end(end, mode, kept=kept))
    assert (choice.outcome, choice.proposal) == ("stop", None)


def test_a_budget_that_ends_in_the_confirmation_leaves_it_open() -> None:
    """What was measured is valid and too little: not conclusive, with the best so far; never invalid."""
    short = Comparison(word="invalid", launches=1)
    campaign = Campaign(opened=opened())
    found = concluded(campaign, Finished("budget", "712 s of 600 s are used", "m-16", "baseline", short))
    assert (found.word, found.exit, found.winner) == ("not conclusive", 5, "m-16")
    assert "no comparison yet; the best that was explored is m-16" in found.because
    failed = concluded(campaign, Finished("confirmation failed", "", "m-16", "baseline", short))
    assert (failed.word, failed.exit) == ("invalid", 6)
