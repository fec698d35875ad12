"""What of a host a run leases, what a refusal says, and what time counts against its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from agent.core import actions as act
from agent.core.campaign.lease import refused, resources_of, things
from agent.core.events import Opened, Resumed
from agent.core.observations import Refused
from agent.core.plan import Axis, Budget, Container, Search, Stage
from agent.core.probes.gpu import Gpu
from agent.core.values import Finding
from tests.core.test_engine import FastClock, run
from tests.core.test_simulation import small
from tests.support.memory import Crash, MemoryJournal
from tests.support.scripted import Box, plan

EIGHT = tuple(f"gpu{index}" for index in range(8))


UUIDS = [f"GPU-{index}c0ffee0-{index}" for index in range(8)]
SEEN = [Gpu(index, uuid) for index, uuid in enumerate(UUIDS)]


def using(gpus: int, env: dict[str, str] | None = None, seen: Any = (), server: Any = None, **more: Any) -> Any:
    """Return what a server with so many GPUs leases."""
    base = plan(**more)
    changes = {"gpus": gpus, "port": 8000, "env": env or {}, **(server or {})}
    return resources_of(base.model_copy(update={"server": base.server.model_copy(update=changes)}), seen)


def test_what_is_used_is_leased_and_no_more() -> None:
    """GPUs by index and the port; what cannot be told apart is the whole host."""
    assert using(8) == (*EIGHT, "port:8000")
    assert using(2, {"CUDA_VISIBLE_DEVICES": "2, 3"}) == ("gpu2", "gpu3", "port:8000")
    assert using(2, {"HIP_VISIBLE_DEVICES": "2, 3"}) == ("gpu2", "gpu3", "port:8000")
    assert using(0) == ("cpu", "port:8000"), "servers without GPUs would measure each other"
    assert using(1, {"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert using(1, {"CUDA_VISIBLE_DEVICES": "MIG-8f3a"}) == ()
    assert using(1, {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}) == ()
    stage = Stage(name="m", axes=(Axis(target="env", key="CUDA_VISIBLE_DEVICES", values=("0", "1")),))
    assert using(1, {"CUDA_VISIBLE_DEVICES": "0"}, search=Search(stages=(stage,))) == ()
    act.Acquire(owner="x", resources=using(8))  # names that hosts take


def test_uuids_are_the_indices_that_the_host_gives_them() -> None:
    """Also the beginning of one, as CUDA takes it; what the host does not have leases nothing less than all of it."""
    both = {"CUDA_VISIBLE_DEVICES": f"{UUIDS[5]},GPU-2c"}
    assert using(2, both, SEEN) == ("gpu5", "gpu2", "port:8000")
    assert using(2, both, [Gpu(7 - gpu.index, gpu.uuid) for gpu in SEEN]) == ("gpu2", "gpu5", "port:8000")
    assert using(2, both) == ()


def boxed(*options: str) -> dict[str, Any]:
    """Return a container with such options."""
    return {"container": Container(image="i", options=options)}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"kind": "sglang", "flags": {"base-gpu-id": 4}}, ("gpu4", "gpu5")),
        ({"kind": "sglang", "flags": {"base_gpu_id": 1, "gpu-id-step": 2}}, ("gpu1", "gpu3")),
        ({"kind": "sglang", "flags": {"base-gpu-id": 1}, "env": {"CUDA_VISIBLE_DEVICES": "6,7,2"}}, ("gpu7", "gpu2")),
        ({"kind": "sglang", "flags": {"base-gpu-id": 2}, "env": {"CUDA_VISIBLE_DEVICES": "6,7,2"}}, None),
        ({"kind": "sglang", "flags": {"base-gpu-id": "x"}}, None),
        (boxed("--gpus=all"), ("gpu0", "gpu1")),
        (boxed("--gpus='\"device=4,6\"'"), ("gpu4", "gpu6")),
        (boxed("--device=nvidia.com/gpu=3", "--device=nvidia.com/gpu=1"), ("gpu3", "gpu1")),
        ({**boxed("--gpus=device=4,6"), "env": {"CUDA_VISIBLE_DEVICES": "0,1"}}, None),
    ],
)
def test_what_chooses_gpus_otherwise(changes: dict[str, Any], wanted: tuple[str, ...] | None) -> None:
    """An engine's own flags, and what a container is given; two of them at once are not guessed at."""
    assert using(2, server=changes) == ((*wanted, "port:8000") if wanted else ())


@dataclass
class GpuBox(Box):
    """A box with GPUs."""

    gpus: Sequence[Gpu] = ()

    def _probe(self, action: act.Probe) -> str:
        rows = "\n".join(f"{gpu.index}, {gpu.uuid}, X, 0, 1000" for gpu in self.gpus)
        table = f"index, uuid, name, memory.used [MiB], memory.total [MiB]\n{rows}"
        return super()._probe(action).replace("begin gpus\n", f"begin gpus\n{table}")

    def leases(self) -> list[tuple[str, ...]]:
        """Return what was asked for, in order."""
        return [action.resources for _, action in self.asked if isinstance(action, act.Acquire)]


def by_uuid(words: str) -> Opened:
    """Return a small campaign whose server is shown the GPUs of such words."""
    server = plan().server.model_copy(update={"gpus": 2, "env": {"CUDA_VISIBLE_DEVICES": words}})
    given = small(server=server)
    assert isinstance(given, Opened)
    return given


def test_the_host_says_which_gpus_uuids_are_before_they_are_leased() -> None:
    """A controller that goes on asks anew: a reboot may have numbered them otherwise. The same is given back."""
    box, journal, clock = GpuBox(gpus=SEEN), MemoryJournal(), FastClock()
    journal.crash_after = 60
    with pytest.raises(Crash):
        run(journal, box, by_uuid(f"{UUIDS[5]},GPU-2c"), clock)
    journal.crash_after = None
    box.gpus = [Gpu(7 - gpu.index, gpu.uuid) for gpu in SEEN]
    campaign = run(journal, box, Resumed(), clock)
    assert campaign.concluded is not None
    assert box.leases() == [("gpu5", "gpu2", "port:1"), *[("gpu2", "gpu5", "port:1")] * 2]


@pytest.mark.parametrize(
    ("gpus", "finding", "words"),
    [
        (SEEN, Finding.CONFIG_INVALID, "GPU-ff, which is no GPU of box: 0 GPU-0c0ffee0-0, 1 "),
        ([*SEEN, Gpu(8, "GPU-ff01"), Gpu(9, "GPU-ff02")], Finding.CONFIG_INVALID, "GPU-ff, which is 2 GPUs of box"),
        (None, Finding.LOST, "which GPUs box has is not known"),
    ],
)
def test_a_uuid_that_is_no_gpu_of_the_host_is_no_lease(gpus: Any, finding: Finding, words: str) -> None:
    """Neither is one that may be several, nor a list that was not seen: the run holds, and has taken nothing."""
    box = GpuBox(gpus=gpus or (), lose=lambda request, action: gpus is None and action.do == "probe")
    campaign = run(MemoryJournal(), box, by_uuid(f"{UUIDS[0]},GPU-ff"))
    assert campaign.visit is not None
    assert campaign.visit.state == "hold"
    assert words in campaign.moves[-1].because
    assert campaign.held is not None
    assert [verdict.finding for verdict in campaign.held.verdicts.values()] == [finding]
    assert box.leases() == []


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
