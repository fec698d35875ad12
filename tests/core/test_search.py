"""What the search promises: the order, launches never wasted, a decision that only fresh launches support."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest

from agent.core.explored import Explored
from agent.core.plan import Axis, Budget, Cure, Expr, Goal, Noise, Search, Server, Stage, Trial
from agent.core.search import Score
from tests.support.searching import DRAFT, STEPS, Bench, knob, plan, surface


def test_seed_campaign_step_by_step():
    """Without noise: the order of the seed, the shared launches, and the decision."""
    bench = Bench(plan())
    end = bench.run()
    assert bench.ids == [
        "baseline",
        "base",  # it counts as the point `unset` and, once NCCL is chosen, nccl-ll counts as step 5
        *("nccl-ll", "nccl-ll128", "nccl-simple"),
        *("steps-3", "steps-2", "steps-1"),
        *("confirm-1-baseline", "confirm-1-winner", "confirm-2-winner", "confirm-2-baseline"),
    ]
    assert (end.reason, end.winner, end.baseline) == ("confirmed", "steps-2", "baseline")
    assert end.comparison is not None
    assert (end.comparison.word, end.comparison.launches) == ("goal met", 4)
    winner = bench.history[6].trial
    assert (winner.env, winner.flags[STEPS], winner.flags[DRAFT]) == ({"NCCL_PROTO": "LL"}, 2, 3)
    last = bench.history[-2].trial
    assert (last.role, last.of, last.launch_digest()) == ("confirm", "steps-2", winner.launch_digest())


@pytest.mark.parametrize(("pairs", "seed"), [(2, 0), (2, 1), (3, 0), (5, 4)])
def test_sides_take_turns_and_the_winner_is_last_where_it_stays(pairs, seed):
    """ABBA, so that an even drift falls on both sides alike; who begins is drawn, unless it would cost a launch."""
    for left in ("stop", "winner"):
        bench = Bench(plan(confirm=pairs, seed=seed, **{"finally": left}))
        bench.run()
        sides = [name.split("-")[2] for name in bench.ids if name.startswith("confirm")]
        order = [sides[at : at + 2] for at in range(0, len(sides), 2)]
        assert all(one == other[::-1] for one, other in itertools.pairwise(order))
        assert left == "stop" or sides[-1] == "winner"


@pytest.mark.parametrize("tuned", ["LL", "LL128", "Simple"])
def test_seed_campaign_over_200_seeds(tuned):
    """With the seed's noise: always 2 steps under the right NCCL value, within 18 launches, 13 on average."""
    launches, words = [], Counter()
    for seed in range(200):
        bench = Bench(plan(budget=Budget(launches=18)), lambda trial: surface(trial, tuned), seed, s_l=0.005, s_w=0.003)
        end = bench.run()
        found = next(record.trial for record in bench.history if record.trial.id == end.winner)
        assert (found.flags[STEPS], found.env) == (2, {"NCCL_PROTO": tuned})
        assert end.comparison is not None
        launches.append(len(bench.history))
        words[end.comparison.word] += 1
    print(f"{tuned}: launches mean {sum(launches) / 200:.2f}, most {max(launches)}; {dict(words)}")
    assert max(launches) <= 18
    assert sum(launches) / 200 <= 13
    assert words["goal met"] >= 195
    assert set(words) <= {"goal met", "not conclusive"}


def test_untuned_nothing_beats_the_baseline():
    """Where no NCCL value helps, no step count wins, and no launch is spent on confirming that."""
    bench = Bench(plan(), lambda trial: surface(trial, "none"), s_l=0.005, s_w=0.003)
    end = bench.run()
    assert end.reason == "no candidate beats the baseline in exploration"
    assert (end.winner, end.comparison) == ("", None)
    assert not any(name.startswith("confirm") for name in bench.ids)


def test_profile_says_otherwise():
    """The condition is false: the stage is skipped with a reason and its base is carried on."""
    bench = Bench(plan(), lambda trial: surface(trial, "unset"), profile={"target_verify": 0.2})
    end = bench.run()
    assert bench.ids[:2] == ["baseline", "base"]
    assert not any(name.startswith("nccl") for name in bench.ids)
    assert end.winner == "steps-2"
    assert any("nccl is skipped" in note for note in end.notes)


def test_condition_that_cannot_be_judged_opens_no_gate():
    """No profile is not a profile that says yes."""
    bench = Bench(plan(), profile={})
    end = bench.run()
    assert not any(name.startswith("nccl") for name in bench.ids)
    assert any("there is no profile of its base" in note for note in end.notes)


@pytest.mark.parametrize(("bound", "stages"), [("best > baseline", 0), ("best < baseline", 1)])
def test_condition_reads_best_and_baseline(bound, stages):
    """`best` is the value of the stage's base."""
    bench = Bench(plan(knob(1, 2, when=bound), flags={"x": 1}), lambda trial: 90.0 - trial.flags.get("x", 0))
    bench.run()
    assert ("knob-2" in bench.ids) == bool(stages)


# ---------------------------------------------------------------- what can go wrong


def test_all_candidates_invalid():
    """Failures are never chosen, and nothing is confirmed."""
    bench = Bench(plan(), lambda trial: 88.8 if STEPS not in trial.flags else None)
    end = bench.run()
    assert (end.reason, end.winner, end.comparison) == ("no valid candidate", "", None)


def test_baseline_invalid():
    """Without a baseline nothing can be compared: one launch, not twenty."""
    bench = Bench(plan(), lambda trial: None)
    assert (bench.run().reason, bench.ids) == ("baseline invalid", ["baseline"])


def test_invalid_winner_is_never_chosen():
    """The best number is worthless when a guard has refused it."""
    bench = Bench(plan(knob(1, 2, 3), flags={}), lambda trial: {None: 10, 1: 11, 2: None, 3: 12}[trial.flags.get("x")])
    assert bench.run().winner == "knob-3"


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_impossible_values_are_invalid(value):
    """A throughput of 0, or a latency of 0 with `direction: down`, is not a win."""
    truth = {None: 10.0, 1: value, 2: 9.0}
    bench = Bench(plan(knob(1, 2), flags={}, goal=Goal(direction="down")), lambda trial: truth[trial.flags.get("x")])
    assert bench.run().winner == "knob-2"


def test_direction_down():
    """A latency: smaller is better, in exploration and in the decision."""
    bench = Bench(plan(goal=Goal(metric="ms", improve=0.02, direction="down")), lambda trial: 1000 / surface(trial))
    end = bench.run()
    assert (end.winner, end.comparison and end.comparison.word) == ("steps-2", "goal met")


def test_one_crash_beside_the_winner_is_not_a_wall():
    """A failed point of an ordered knob does not hide the peak behind it."""
    bench = Bench(plan(), lambda trial: None if trial.flags.get(STEPS) == 3 else surface(trial))
    assert bench.run().winner == "steps-2"


def test_failed_confirmation_launch_is_made_again_once():
    """One failed launch a side is replaced; the interval rests on the valid ones."""
    bench = Bench(plan(), lambda trial: None if trial.id == "confirm-1-winner" else surface(trial))
    end = bench.run()
    assert bench.ids[-4:] == ["confirm-1-winner", "confirm-1-winner-again", "confirm-2-winner", "confirm-2-baseline"]
    assert end.comparison is not None
    assert (end.reason, end.comparison.launches) == ("confirmed", 4)


def test_winner_that_cannot_be_reproduced():
    """A side with too few valid launches ends the confirmation at once, and the decision is invalid."""
    bench = Bench(plan(), lambda trial: None if trial.of == "steps-2" else surface(trial))
    end = bench.run()
    assert bench.ids[-3:] == ["confirm-1-baseline", "confirm-1-winner", "confirm-1-winner-again"]
    assert end.comparison is not None
    assert (end.reason, end.comparison.word) == ("confirmation failed", "invalid")


def test_trials_known_to_fail_are_not_launched():
    """What a rule refuses counts as failed, without a launch, and is named."""
    bench = Bench(
        plan(knob(1, 2, 3), flags={}),
        lambda trial: 10.0 + trial.flags.get("x", 0),
        rejects=lambda trial: "3 is too many" if trial.flags.get("x") == 3 else "",
    )
    end = bench.run()
    assert (end.winner, "knob-3" in bench.ids) == ("knob-2", False)
    assert "knob-3 is not launched: 3 is too many" in end.notes


def test_point_that_cannot_be_derived_is_passed_over():
    """An expression without a value costs its point, not the campaign."""
    flags = {"x": 1, "y": Expr(expr="6 / flags['x']")}
    bench = Bench(plan(knob(0, 1, 2), flags=flags), lambda trial: 10.0 + trial.flags.get("x", 0))
    end = bench.run()
    assert end.winner == "knob-2"
    assert any("knob-0 is not launched" in note for note in end.notes)


def test_exploration_never_enters_the_interval():
    """A lucky exploration is exposed by fresh launches."""
    bench = Bench(
        plan(knob(1, 2), flags={}), lambda trial: 100.0 if trial.id != "knob-2" else 120.0, s_l=0.002, s_w=0.001
    )
    end = bench.run()
    assert end.comparison is not None
    assert (end.winner, end.comparison.word) == ("knob-2", "not improved")


def test_baseline_configuration_cannot_win():
    """A point that equals the server as it is shares the baseline's launch and is no candidate."""
    server = Server(kind="sglang", host="box", port=1, gpus=1, command=("serve",), flags={"x": 1})
    bench = Bench(plan(knob(1, 2), flags={}, server=server), lambda trial: 10.0 - trial.flags["x"])
    end = bench.run()
    assert (bench.ids, end.reason) == (["baseline", "knob-2"], "no candidate beats the baseline in exploration")


# ---------------------------------------------------------------- cures, conditions, replicates


def test_a_failure_with_a_cure_is_tried_again_changed():
    """Twice by an amount, then the failure stands; what is cured competes as the point it stands for."""

    def truth(trial: Trial) -> float | None:
        if trial.flags.get("mem", 0) > {2: 0.83, 3: 0.5}.get(trial.flags.get("x"), 1):
            return None
        return 10.0 + trial.flags.get("x", 0)

    server = Server(kind="sglang", host="box", port=1, gpus=1, command=("serve",), flags={"mem": 0.88})
    cures = {"CRASH": Cure(add={"mem": -0.03}, attempts=2)}
    bench = Bench(plan(knob(1, 2, 3), flags={}, server=server, on_fail=cures), truth)
    end = bench.run()
    assert bench.ids[:7] == [
        *("baseline", "knob-1", "knob-2"),
        *("knob-2-cured", "knob-2-cured-2"),
        *("knob-3", "knob-3-cured"),
    ]
    assert (end.winner, bench.history[4].trial.flags["mem"]) == ("knob-2-cured-2", 0.82)
    again = Bench(plan(knob(1, 2), flags={}, server=server, on_fail={"GPU_OOM": cures["CRASH"]}), truth)
    again.run()
    assert "knob-2-cured" not in again.ids, "the cure is for another class"


def test_a_cure_that_cannot_be_applied_is_said():
    """A flag that is not there has no number to change."""
    bench = Bench(
        plan(knob(1, 2), flags={}, on_fail={"CRASH": Cure(add={"mem": -0.03})}),
        lambda trial: None if trial.flags.get("x") == 2 else 10.0 + trial.flags.get("x", 0),
    )
    assert "knob-2 failed with CRASH and cannot be cured (mem has no number to change)" in bench.run().notes


def test_what_is_cured_is_carried_into_the_next_stage():
    """The next stage starts from the configuration that ran, not from the one that failed."""
    server = Server(kind="sglang", host="box", port=1, gpus=1, command=("serve",), flags={"mem": 4})
    other = Stage(name="other", axes=(Axis(target="flags", key="z", values=(5,)),))
    bench = Bench(
        plan(knob(1, 2), other, flags={}, server=server, on_fail={"CRASH": Cure(add={"mem": -1})}),
        lambda trial: (
            None if trial.flags.get("x") == 2 and trial.flags.get("mem") == 4 else 10.0 + trial.flags.get("x", 0)
        ),
    )
    bench.run()
    last = next(record.trial for record in bench.history if record.trial.stage == "other")
    assert last.flags["mem"] == 3


def test_points_are_skipped_by_a_condition():
    """It sees derived flags; one that cannot be judged skips nothing, and says so."""
    flags = {"x": 1, "y": Expr(expr="flags['x'] * 2")}
    bench = Bench(plan(knob(1, 2, 3, skip_when="flags['y'] > 4"), flags=flags), lambda trial: 10.0)
    assert "knob-3 is not launched: skip_when holds" in bench.run().notes
    assert "knob-3" not in bench.ids
    odd = Bench(plan(knob(1, 2, skip_when="flags['none'] > 4"), flags={}), lambda trial: 10.0)
    assert any("knob-2 is tried: its skip_when cannot be judged" in note for note in odd.run().notes)


def test_halving_launches_the_better_half_again():
    """Fresh launches of what is left, named after the point."""
    bench = Bench(plan(knob(1, 2, 3, 4, strategy="halving"), flags={}), lambda trial: 10.0 + trial.flags.get("x", 0))
    end = bench.run()
    explored = [name for name in bench.ids if name.startswith("knob")]
    assert explored == ["knob-1", "knob-2", "knob-3", "knob-4", "knob-3-again", "knob-4-again", "knob-4-again-2"]
    assert end.winner == "knob-4"


def test_rivals_are_launched_again_before_one_is_confirmed():
    """Two configurations within the noise: fresh launches tell which is better, where the playbook lets it adapt."""
    adaptive = Search(stages=(knob(1, 2),), confirm_most=6, noise=Noise(launches=0.01))
    bench = Bench(plan(search=adaptive), lambda trial: 100.0 + 5 * (trial.flags.get("x") is not None), s_l=0.01, seed=3)
    bench.run()
    assert {"knob-1-again", "knob-2-again"} & set(bench.ids)
    assert sum("again" in name for name in bench.ids) <= 4
    fixed = Bench(plan(knob(1, 2), flags={}), bench.truth, s_l=0.01, seed=3)
    fixed.run()
    assert not any("again" in name for name in fixed.ids)


def test_points_of_a_grid_are_launched_in_a_drawn_order_where_the_search_adapts():
    """By the seed, so that a drift favours no end of a sweep; a list keeps the order in which it is written."""
    values = tuple(range(1, 9))
    truth = lambda trial: 10.0 + trial.flags.get("x", 0)  # noqa: E731

    def order(seed: int, strategy: str = "grid") -> list[int]:
        rows = tuple({"flags.x": value} for value in values) if strategy == "list" else ()
        stage = knob(*values, strategy=strategy, points=rows)
        bench = Bench(plan(search=Search(stages=(stage,), confirm_most=4), seed=seed), truth)
        bench.run()
        return [r.trial.flags["x"] for r in bench.history if r.trial.role == "candidate" and not r.trial.of]

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == order(1, "list") == list(values)


def test_equal_effective_configurations_are_one():
    """Asked for differently, in effect the same: their launches are replicates, and none is the other's rival."""

    class Same(Bench):
        def score(self, trial: Trial) -> Score:
            effective = "one" if trial.flags.get("x") in (2, 3) else trial.launch_digest()
            return replace(super().score(trial), effective=effective)

    values = {None: 100.0, 1: 101.0, 2: 104.0, 3: 108.0}
    bench = Same(plan(knob(1, 2, 3), flags={}), lambda trial: values[trial.flags.get("x")])
    end = bench.run()
    known = Explored(bench.plan, bench.history)
    two, three = (record.trial for record in bench.history if record.trial.id in ("knob-2", "knob-3"))
    assert known.merit(two.launch_digest()) == known.merit(three.launch_digest())
    assert math.exp(known.merit(two.launch_digest())) == pytest.approx(math.sqrt(104 * 108))
    assert end.winner == "knob-2"


def test_limits_bar_a_candidate_and_end_a_confirmation():
    """The fastest breaks a limit and is not chosen; a winner that breaks one on a fresh launch is not confirmed."""

    class Limited(Bench):
        def score(self, trial: Trial) -> Score:
            late = trial.flags.get("x") == 3 or (trial.role == "confirm" and trial.of == self.late)
            return replace(super().score(trial), broken="ttft_ms_p99 is 600, more than 500" if late else "")

        late = ""

    bench = Limited(plan(knob(1, 2, 3), flags={}), lambda trial: 10.0 + trial.flags.get("x", 0))
    assert (bench.run().winner, bench.run().reason) == ("knob-2", "confirmed")
    breaks = Limited(plan(knob(1, 2, 3), flags={}), bench.truth)
    breaks.late = "knob-2"
    end = breaks.run()
    assert (end.reason, end.because) == ("limit broken", "ttft_ms_p99 is 600, more than 500")


def test_a_baseline_that_breaks_a_limit_is_still_the_baseline():
    """That is often why somebody tunes."""

    class Late(Bench):
        def score(self, trial: Trial) -> Score:
            return replace(
                super().score(trial), broken="" if "x" in trial.flags else "ttft_ms_p99 is 600, more than 500"
            )

    bench = Late(plan(knob(1, 2), flags={}), lambda trial: 10.0 + trial.flags.get("x", 0))
    assert (bench.run().reason, bench.run().winner) == ("confirmed", "knob-2")
