"""What earlier runs say: an order, never a number; and only where their inputs were equal."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agent.core.campaign import Campaign
from agent.core.earlier import hints, is_equal
from agent.core.plan import Goal, Search, Server
from tests.cli.runs import entries, folds
from tests.support.searching import SWEEP, Bench, knob, plan


@pytest.fixture(scope="module")
def earlier() -> Campaign:
    """Return a scripted campaign, folded to its end."""
    return [campaign for _, campaign in folds(entries())][-1]


def test_an_earlier_run_says_how_each_configuration_compared(earlier: Campaign) -> None:
    """Ratios to its own baseline, exploration and confirmation together; the baseline itself says nothing."""
    found = hints(earlier.plan, [earlier])
    values: dict[str, list[float]] = {}
    for record in earlier.history:
        if record.scored is not None and record.scored.valid:
            values.setdefault(record.trial.launch_digest(), []).append(math.log(record.scored.values["output_tok_s"]))
    base = earlier.history[0].trial.launch_digest()
    assert set(found) == set(values) - {base}
    for digest, logs in values.items():
        if digest != base:
            wanted = sum(logs) / len(logs) - sum(values[base]) / len(values[base])
            assert found[digest] == pytest.approx(wanted, rel=1e-4)


def test_unequal_inputs_say_nothing(earlier: Campaign) -> None:
    """Another server, another metric, another host; a rehearsal for a real run, and the other way round."""
    plan = earlier.plan
    for changed in (
        plan.model_copy(update={"server": plan.server.model_copy(update={"flags": {"other": 1}})}),
        plan.model_copy(update={"goal": Goal(metric="accept_len")}),
        plan.model_copy(update={"hosts": {}}),
    ):
        assert not is_equal(changed, plan)
        assert hints(changed, [earlier]) == {}
    assert hints(plan, [earlier], rehearsal=True) == {}
    assert hints(plan.model_copy(update={"search": Search()}), [earlier]), "another search may ask the same"


def digests(bench: Bench) -> dict[str, str]:
    return {record.trial.id: record.trial.launch_digest() for record in bench.history}


def with_hints(search: Search, found: dict[str, float], **others: Any) -> Bench:
    bench = Bench(plan(search=search.model_copy(update={"hints": found}), **others))
    bench.truth = lambda trial: 10.0 + trial.flags.get("x", 0)
    return bench


def test_the_good_come_first_and_the_bad_last() -> None:
    """The order of a grid; what is measured is what is compared."""
    search = Search(stages=(knob(1, 2, 3, 4),))
    plain = with_hints(search, {})
    plain.run()
    known = digests(plain)
    bench = with_hints(search, {known["knob-3"]: 0.05, known["knob-1"]: -0.1, known["knob-4"]: 0.01})
    end = bench.run()
    assert [name for name in bench.ids if name.startswith("knob")] == ["knob-3", "knob-4", "knob-2", "knob-1"]
    assert end.winner == plain.run().winner == "knob-4"


def test_an_ordered_knob_begins_at_the_best_known() -> None:
    """One launch where it was best, and its neighbours: five steps less than from nothing."""
    search = plan(SWEEP, flags={"speculative-num-steps": 5}).search
    plain = Bench(plan(search=search))
    plain.run()
    best = digests(plain)["steps-2"]
    bench = Bench(plan(search=search.model_copy(update={"hints": {best: 0.06}})))
    assert bench.run().winner == plain.run().winner
    assert bench.ids[1] == "steps-2"
    assert len(bench.ids) <= len(plain.ids)


def test_hints_may_be_wrong() -> None:
    """They cost launches at most: what wins is what this run measures."""
    server = Server(kind="sglang", host="box", port=8000, gpus=8, command=("serve",))
    search = Search(stages=(knob(1, 2, 3),))
    plain = with_hints(search, {}, server=server)
    plain.run()
    bench = with_hints(search, {digests(plain)["knob-1"]: 0.5}, server=server)
    assert bench.run().winner == "knob-3"
