"""What of a host a run leases, what a refusal says, and what time counts against its budget."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core import actions as act
from agent.core.campaign.lease import refused, resources_of, things
from agent.core.events import Resumed
from agent.core.observations import Refused
from agent.core.plan import Axis, Budget, Search, Stage
from tests.core.test_engine import FastClock, run
from tests.core.test_simulation import small
from tests.support.memory import Crash, MemoryJournal
from tests.support.scripted import Box, plan

EIGHT = tuple(f"gpu{index}" for index in range(8))


def using(gpus: int, env: dict[str, str] | None = None, **more: Any) -> tuple[str, ...]:
    """Return what a server with so many GPUs leases."""
    base = plan(**more)
    server = base.server.model_copy(update={"gpus": gpus, "port": 8000, "env": env or {}})
    return resources_of(base.model_copy(update={"server": server}))


def test_what_is_used_is_leased_and_no_more() -> None:
    """GPUs by index and the port; what cannot be told apart is the whole host."""
    assert using(8) == (*EIGHT, "port:8000")
    assert using(2, {"CUDA_VISIBLE_DEVICES": "2, 3"}) == ("gpu2", "gpu3", "port:8000")
    assert using(0) == ("cpu", "port:8000"), "servers without GPUs would measure each other"
    assert using(1, {"CUDA_VISIBLE_DEVICES": "GPU-8f3a"}) == ()
    assert using(1, {"CUDA_VISIBLE_DEVICES": ""}) == ()
    stage = Stage(name="m", axes=(Axis(target="env", key="CUDA_VISIBLE_DEVICES", values=("0", "1")),))
    assert using(1, {"CUDA_VISIBLE_DEVICES": "0"}, search=Search(stages=(stage,))) == ()
    act.Acquire(owner="x", resources=using(8))  # names that hosts take


def test_what_is_taken_is_given_back() -> None:
    """The same things under the same name: a lease on other things of the host is not in the way of that."""
    box = Box()
    run(MemoryJournal(), box, small().model_copy(update={"controller": "ada@laptop pid 7"}))
    asked = [action for _, action in box.asked if isinstance(action, act.Acquire)]
    assert [action.ttl_s for action in asked] == [1800, 0]
    assert {(action.owner, action.resources) for action in asked} == {(asked[0].owner, ("cpu", "port:1"))}
    assert asked[0].owner.endswith(":ada@laptop")


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ("host", "all"),
        ("gpu0,gpu1,gpu10,port:8000", "GPU 0, 1 and 10, port 8000"),
        ("cpu,port:1", "the processors, port 1"),
        ("gpu3", "GPU 3"),
    ],
)
def test_things_for_people(resources: str, words: str) -> None:
    """Not as the host writes them."""
    assert things(resources) == words


def test_a_refusal_says_who_since_when_what_and_how_to_go_on() -> None:
    """Each lease in the way, and the one number that stands for them."""
    one = f"BUSY {'ab' * 16}:ada@laptop epoch 7 age 20 s resource gpu0,port:8000 since 4000 s"
    verdict = refused(f"{one}\nBUSY {'cd' * 16} epoch 5 age 9 s resource gpu1", "box")
    assert verdict.saw == (
        "the host is leased, GPU 0, port 8000 of box: campaign abababab of ada@laptop, since 1h6m (last at work 20s "
        "ago); GPU 1 of box: campaign cdcdcdcd (last at work 9s ago); epoch 7"
    )
    assert "--take-over 7" in verdict.remedy
    assert "BUSY odd" in refused("BUSY odd", "box").saw, "what cannot be read is shown as it is"


def test_a_busy_host_is_said_in_the_move() -> None:
    """The hold that a person reads has the words, not the protocol's."""
    text = f"BUSY {'ab' * 16}:ada@laptop epoch 3 age 5 s resource gpu0 since 60 s"
    box = Box(refuse=lambda r, a: Refused(code="BUSY", text=text) if a.do == "acquire" else None)
    campaign = run(MemoryJournal(), box)
    assert "campaign abababab of ada@laptop, since 1m" in campaign.moves[-1].because


@pytest.mark.parametrize("away", [True, False])
def test_time_without_a_controller_is_not_the_campaigns(away: bool) -> None:
    """A night between two controllers moves deadlines on, an hour at most, and uses up nothing of the budget."""
    journal, clock, late = MemoryJournal(), FastClock(), 3000.0

    def slow(request: str, action: Any) -> bool:
        if action.do == "follow" and not away and clock.at < late * 1e9:
            clock.at += int(late * 1e9)  # at work all the while
        return False

    box = Box(lose=slow)
    journal.crash_after = 60
    with pytest.raises(Crash):
        run(journal, box, small(budget=Budget(time_s=2000)), clock)
    journal.crash_after = None
    campaign = run(journal, box, Resumed(gap_s=late if away else 0.0), clock)
    assert campaign.now >= late
    assert campaign.concluded is not None
    assert ("2000 s are used" in campaign.concluded.because) is not away, campaign.concluded.because
