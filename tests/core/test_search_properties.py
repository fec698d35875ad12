"""What holds for every search, whatever is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.forecast import forecast
from agent.core.plan import Axis, Budget, Cure, Goal, Plan, Search, Stage, Trial
from agent.core.search import Confirm, Measure, propose
from agent.core.statistics import looks
from agent.core.trials import EXPLORING
from tests.support.searching import Bench, evaluate, plan

VALUE = st.one_of(st.none(), st.integers(1, 6), st.sampled_from(["LL", "Simple"]))
AXIS = st.builds(
    Axis,
    target=st.sampled_from(["flags", "env", "request"]),
    key=st.sampled_from(["x", "y", "z"]),
    values=st.lists(VALUE, min_size=1, max_size=5, unique=True).map(tuple),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a search of up to three stages, with conditions and a budget."""
    stages = []
    for number in range(draw(st.integers(0, 3))):
        strategy = draw(st.sampled_from(["grid", "random", "unimodal"]))
        axes = draw(st.lists(AXIS, min_size=1, max_size=1 if strategy == "unimodal" else 2))
        when = draw(st.sampled_from([None, "profile.share['a'] > 0.5", "best > baseline", "profile.share['b'] > 0.0"]))
        sample = draw(st.integers(1, 6)) if strategy == "random" else None
        stages.append(Stage(name=f"s{number}", when=when, axes=tuple(axes), strategy=strategy, sample=sample))
    flags = draw(st.dictionaries(st.sampled_from(["x", "y"]), st.integers(1, 6)))
    confirm, budget = draw(st.sampled_from([0, 2, 3, 5])), draw(st.one_of(st.none(), st.integers(1, 30)))
    most = draw(st.sampled_from([None, confirm + 2])) if confirm else None
    search = Search(flags=flags, stages=tuple(stages), confirm_launches=confirm, confirm_most=most)
    direction = draw(st.sampled_from(["up", "down"]))
    cure = st.builds(Cure, set=st.just({"z": 9}), attempts=st.integers(1, 2))
    return plan(
        search=search,
        budget=Budget(launches=budget),
        goal=Goal(improve=0.02, direction=direction),
        on_fail=draw(st.dictionaries(st.just("CRASH"), cure)),
    )


def made_up(seed: int) -> Callable[[Trial], float | None]:
    """Return a surface without any shape: one launch in seven fails."""

    def truth(trial: Trial) -> float | None:
        word = hashlib.sha256(f"{seed}/{trial.identity()}".encode()).digest()
        failed = trial.role != "baseline" and word[0] % 7 == 0
        return None if failed else 90.0 + word[1] / 12

    return truth


@settings(max_examples=150, deadline=None)
@given(plans(), st.integers(0, 10**6))
def test_search_properties(drawn, seed):
    """It ends; no configuration is explored twice; the budget holds; every prefix is answered the same again."""
    bench = Bench(drawn, made_up(seed), seed, s_l=0.005, s_w=0.003, profile={"a": 0.4 + seed % 3 / 10})
    end = bench.run()
    explored = [r.trial.identity() for r in bench.history if r.trial.role in EXPLORING and not r.trial.of]
    assert len(explored) == len(set(explored))
    assert len(bench.ids) == len(set(bench.ids))
    if drawn.budget.launches is not None:
        assert bench.launches <= drawn.budget.launches
    assert bench.launches <= forecast(drawn, evaluate).bound
    roles = [record.trial.role == "confirm" for record in bench.history]
    assert roles == sorted(roles), "exploration never goes on after confirmation began"
    if any(roles):
        assert end.winner
    failed = sum(r.score is not None and r.score.value is None for r in bench.history)
    if not failed:
        assert bench.launches <= forecast(drawn, evaluate).most
    for cut, record in enumerate(bench.history):
        again = Bench(drawn, history=list(bench.history[:cut])).next()
        assert isinstance(again, Measure | Confirm)
        assert again.trial == record.trial


@settings(max_examples=60, deadline=None)
@given(plans(), st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_order_of_what_was_explored_is_irrelevant(drawn, seed, shuffler):
    """What comes next depends on what is known, not on the order in which it became known."""
    bench = Bench(drawn, made_up(seed), seed, profile={"a": 0.6})
    bench.run()
    for cut in range(len(bench.history) + 1):
        known = bench.history[:cut]
        turned = list(known)
        shuffler.shuffle(turned)
        assert propose(drawn, known, evaluate) == propose(drawn, turned, evaluate)


@pytest.mark.parametrize("seed", range(12))
def test_the_early_look_is_taken_once_with_its_own_launches(seed: int):
    """Launches after the look are no part of it: nothing ends at its level later on."""
    end = Bench(plan(confirm=5), s_l=0.02, seed=seed).run()
    levels = {2 * look.pairs: look.level for look in looks(5)}
    if end.comparison is not None and end.reason in ("confirmed", "proven early", "goal out of reach"):
        assert end.comparison.launches in levels
        assert end.comparison.level == levels[end.comparison.launches]
