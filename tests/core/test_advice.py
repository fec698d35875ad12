"""Points that an adviser suggests: what it is told, what is made of its answers, and what bounds it."""

from __future__ import annotations

import itertools
import math

import pytest

from agent.core.actions import Advise, Knob, Told
from agent.core.forecast import forecast
from agent.core.plan import Axis, Budget, Stage, Trial
from agent.core.probes.advice import read_advice
from tests.support.searching import Bench, evaluate, plan

STAGE = Stage(
    name="tpe",
    strategy="optuna",
    sample=4,
    axes=(
        Axis(target="flags", key="x", values=(1, 2, 3)),
        Axis(target="env", key="NCCL_PROTO", values=(None, "LL")),
    ),
)


def in_order(action: Advise) -> tuple[int, ...] | None:
    """Suggest the first point that is not known, as Optuna never would."""
    known = {told.at for told in action.told}
    return next(
        (at for at in itertools.product(*(range(knob.values) for knob in action.knobs)) if at not in known), None
    )


def worth(trial: Trial) -> float | None:
    """Three is best, two cannot be launched."""
    return {None: 90.0, 1: 95.0, 2: None, 3: 99.0}[trial.flags.get("x")]  # type: ignore[index]


def test_it_is_told_what_its_suggestions_came_to():
    """Knobs by what can be chosen, ordered where numbers rise; merits as logs, failures as failures."""
    bench = Bench(plan(STAGE, flags={}, confirm=0), worth, adviser=in_order)
    end = bench.run()
    assert [(knob.name, knob.values, knob.ordered) for knob in bench.asked[0].knobs] == [
        ("flags.x", 3, True),
        ("env.NCCL_PROTO", 2, False),
    ]
    last = bench.asked[-1].told
    assert [told.at for told in last] == [(0, 0), (0, 1), (1, 0)]
    assert [told.merit is None for told in last] == [False, False, True]
    assert last[0].merit == pytest.approx(math.log(95), rel=1e-6)
    assert bench.ids == ["baseline", "tpe-1", "tpe-2", "tpe-3", "tpe-4"]
    assert end.winner == "tpe-1"


def test_points_that_cannot_be_tried_are_no_points_and_end_somewhere():
    """Skipped ones are told as failures; questions are bounded; one that has nothing left ends its stage."""
    skipping = STAGE.model_copy(update={"skip_when": "flags['x'] == 1"})
    bench = Bench(plan(skipping, flags={}, confirm=0), worth, adviser=in_order)
    bench.run()
    assert [record.trial.flags["x"] for record in bench.history[1:]] == [2, 2, 3, 3]
    assert bench.asked[-1].told[0] == Told(at=(0, 0), merit=None)
    never = STAGE.model_copy(update={"skip_when": "true", "axes": STAGE.axes[:1]})
    bench = Bench(plan(never, flags={}, confirm=0), worth, adviser=in_order)
    bench.run()
    assert bench.ids == ["baseline"]
    assert bench.advice["tpe"] == [(0,), (1,), (2,), None]


def test_its_launches_are_bounded_beforehand():
    """By the sample and the size of the space; the budget ends it without another question."""
    drawn = plan(STAGE, flags={}, confirm=2)
    found = forecast(drawn, evaluate)
    assert [(one.points, one.least, one.most) for one in found.stages] == [(4, 2, 4)]
    bench = Bench(drawn, worth, adviser=in_order)
    bench.run()
    assert bench.launches <= found.bound
    short = Bench(plan(STAGE, flags={}, confirm=0, budget=Budget(launches=3)), worth, adviser=in_order)
    assert short.run().reason == "budget"
    assert (len(short.history), len(short.asked)) == (3, 2)


ASKED = Advise(stage="s", seed=1, knobs=(Knob(name="a", values=3), Knob(name="b", values=2)), told=(Told(at=(0, 1)),))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"at": [2, 1]}', (2, 1)),
        ('{"exhausted": true}', ()),
        ('{"at": [0, 1]}', None),
        ('{"at": [3, 0]}', None),
        ('{"at": [-1, 0]}', None),
        ('{"at": [1]}', None),
        ('{"at": "11"}', None),
        ('{"at": [1, 0.5]}', None),
        ("{}", None),
        ("[" * 10_000, None),
        ("", None),
    ],
)
def test_what_an_adviser_answers_is_read_with_suspicion(text: str, said: tuple[int, ...] | None) -> None:
    """A point of the space that is new, or that there is none left; nothing else is an answer."""
    assert read_advice(text, ASKED) == said
