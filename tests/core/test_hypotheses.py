"""What a debug campaign finds out next, and what it concludes: pure, from plans and verdicts written here."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core.campaign.choices import evaluate
from agent.core.changes import DryRun
from agent.core.hypotheses import Ended, Past, Settled, kept, propose, rank, verdict_of
from agent.core.plan import Plan
from agent.core.resolve import load_plan
from agent.core.search import Measure
from agent.core.values import Finding, Result, Verdict

HEAD = """
playbook: p
aim: debug
hosts: {box: local}
server: {kind: sglang, port: 8000, command: [serve], flags: {a: 1, b: 2}}
"""
THREE = """
debug: {healthy: {metric: accept_len, above: 1.8}}
hypotheses:
  version: {because: x, change: {package: {python: /e/bin/python, name: n, version: "2"}}}
  flag: {because: x, change: {flags: {a: 5}}}
  file: {because: x, change: {json: {path: /c.json, set: {k: 1}}}, rules_out: {refuted: [version]}}
  look: {because: x, predict: {guards: [{guard: expr, expr: "flags['a'] == 1"}]}}
"""


def plan(rest: str, head: str = HEAD) -> Plan:
    """Load a playbook."""
    return load_plan((head + rest).encode(), "p.yaml", lambda name: b"x")


def told(**results: Result) -> dict[str, Verdict]:
    """Return verdicts by name: underscores separate words."""
    return {name.replace("__", " "): Verdict(result=result, saw=f"saw {name}") for name, result in results.items()}


class Walk:
    """A campaign on paper: each trial's outcome is given by its name."""

    def __init__(self, plan_: Plan, dry: dict[str, DryRun] | None = None) -> None:
        self.plan, self.dry, self.past = plan_, dry or {}, list[Past]()

    def next(self, launches: int = 0) -> Any:
        """Return the next step."""
        return propose(self.plan, self.past, evaluate, None, self.dry, launches=launches)

    def go(self, outcomes: dict[str, Any]) -> tuple[list[str], Ended]:
        """Walk to the end; return names in order (``!`` = settled without a launch)."""
        order = []
        while not isinstance(step := self.next(), Ended):
            name = step.trial.id
            if isinstance(step, Settled):
                order.append(f"{name}!{step.word}")
                self.past.append(Past(step.trial, True, step.word, step.because))
                continue
            order.append(name)
            given = outcomes[name]
            words = given if isinstance(given, dict) else {}
            self.past.append(Past(step.trial, True, given if isinstance(given, str) else None, "", words))
            assert len(order) < 60
        return order, step


SICK = told(healthy__metric=Result.FAIL)


def test_the_order_is_by_cost_and_by_what_a_verdict_decides() -> None:
    """Nothing to launch first, then flags and files (the one that decides more first), then packages."""
    debug = plan(THREE).debug
    assert debug is not None
    assert [one.name for one in rank(debug)] == ["look", "file", "flag", "version"]


def test_the_first_supported_one_ends_it() -> None:
    """What is left is named as not tested."""
    order, end = Walk(plan(THREE)).go({"baseline": SICK, "look": "supported", "file": "supported"})
    assert order == ["baseline", "look", "file"]
    assert (end.word, end.winner) == ("found", "file")
    assert end.because == "supported: file; not tested: version, flag"


def test_a_verdict_rules_others_out() -> None:
    """The refuted file spares the package, which would have cost most."""
    order, end = Walk(plan(THREE)).go({"baseline": SICK, "look": "refuted", "file": "refuted", "flag": "refuted"})
    assert order == ["baseline", "look", "file", "flag"]
    assert (end.word, end.winner) == ("not found", "")


def test_until_all_tests_the_rest_on_top() -> None:
    """What was right stays in place under the next one."""
    rest = THREE.replace("debug: {", "debug: {until: all, ")
    walk = Walk(plan(rest))
    order, end = walk.go(
        dict.fromkeys(["look", "flag", "version"], "refuted") | {"baseline": SICK, "file": "supported"}
    )
    assert order == ["baseline", "look", "file", "flag", "version"]
    assert (end.word, end.winner) == ("found", "file")
    flag = next(past.trial for past in walk.past if past.trial.id == "flag")
    assert [change.kind for change in flag.files] == ["json"]
    assert flag.flags["a"] == 5


def test_a_healthy_baseline_leaves_nothing_to_find() -> None:
    """It ends after one launch."""
    order, end = Walk(plan(THREE)).go({"baseline": told(healthy__metric=Result.PASS)})
    assert order == ["baseline"]
    assert end.word == "not conclusive"
    assert "the fault does not show" in end.because


def test_what_is_so_already_is_refuted_without_a_launch() -> None:
    """A flag that has the value, a file that says it."""
    rest = THREE.replace("{flags: {a: 5}}", "{flags: {a: 1}}")
    order, end = Walk(plan(rest), {"file": DryRun(same=True)}).go({"baseline": SICK, "look": "refuted"})
    assert order == ["baseline", "look", "file!refuted", "flag!refuted"]
    assert end.word == "not found"


def test_a_change_that_does_not_fit_is_undecided() -> None:
    """It is said why, and nothing is launched for it; then nothing may be concluded from the rest."""
    walk = Walk(plan(THREE), {"file": DryRun(refused="no such line")})
    order, end = walk.go(dict.fromkeys(["look", "flag", "version"], "refuted") | {"baseline": SICK})
    assert "file!undecided" in order
    assert end.word == "not conclusive"
    assert (
        next(past for past in walk.past if past.trial.id == "file").because == "its change does not fit: no such line"
    )


def test_a_prediction_that_holds_anyway_proves_nothing() -> None:
    """The baseline shows it as well."""
    words = SICK | told(predict__flag__metric=Result.PASS)
    order, _ = Walk(plan(THREE)).go({"baseline": words, "look": "refuted", "file": "refuted"})
    assert order == ["baseline", "look", "file", "flag!undecided"]


def test_the_budget_ends_it() -> None:
    """Before a launch that it does not allow."""
    walk = Walk(plan(THREE + "budget: {launches: 1}\n"))
    step = walk.next()
    assert isinstance(step, Measure)
    walk.past = [Past(step.trial, True, None, "", SICK), Past(walk.next().trial, True, "refuted")]
    end = walk.next(launches=1)
    assert isinstance(end, Ended)
    assert end.budget


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (told(predict__a__metric=Result.PASS), "supported"),
        (told(predict__a__metric=Result.PASS, predict__a__expr=Result.FAIL), "refuted"),
        (told(predict__a__metric=Result.PASS, predict__a__expr=Result.UNKNOWN), "undecided"),
        (told(predict__a__metric=Result.PASS, evidence__a__file_is=Result.UNKNOWN), "undecided"),
        (told(predict__a__metric=Result.FAIL, evidence__a__file_is=Result.FAIL), "undecided"),
        ({}, "undecided"),
    ],
)
def test_the_verdict(words: dict[str, Verdict], word: str) -> None:
    """Supported only when all holds; evidence that is missing makes the test not count, either way."""
    assert verdict_of(words, Finding.CRASH)[0] == word


@pytest.mark.parametrize(
    ("revert", "word", "stays"),
    [
        ("always", "supported", False),
        ("unless-supported", "supported", True),
        ("unless-supported", "undecided", False),
        ("unless-supported", "refuted", False),
        ("never", "refuted", True),
    ],
)
def test_what_stays(revert: str, word: Any, stays: bool) -> None:
    """By the playbook's word and the verdict."""
    made = plan(f"hypotheses: {{a: {{because: x, change: {{json: {{path: /c, set: {{k: 1}}}}}}, revert: {revert}, "
                "predict: {metric: accept_len, above: 1}}}\n")  # fmt: skip
    assert made.debug is not None
    walk = Walk(made)
    walk.past = [Past(walk.next().trial, True, None, "", {})]
    trial = walk.next().trial
    assert bool(kept(made.debug, [*walk.past, Past(trial, True, word)])) is stays


BISECT = """
bisect:
  flag: {name: a, values: [1, 2, 3, 4, 5, 6, 7, 8]}
  bad: {metric: accept_len, below: 1.3}
"""


def test_a_bisection_is_confirmed_both_ways() -> None:
    """The step from 5 to 6; each side is launched once more, under a name of its own."""
    names = [f"point-a-{value}" for value in range(1, 9)]
    bad, good = told(bad__p__metric=Result.PASS), told(bad__p__metric=Result.FAIL)
    outcomes = {name: bad if number >= 5 else good for number, name in enumerate(names)}
    outcomes |= {f"{names[5]}-bad-again": bad, f"{names[4]}-good-again": good}
    walk = Walk(plan(BISECT))
    order, end = walk.go(outcomes)
    assert order[:2] == [names[7], names[0]]
    assert order[-2:] == [f"{names[5]}-bad-again", f"{names[4]}-good-again"]
    assert len(order) == 2 + 3 + 2
    assert end == Ended("found", "it comes with a-6: a-5 is without it; confirmed both ways", names[4])
    outcomes[f"{names[4]}-good-again"] = bad
    _, end = Walk(plan(BISECT)).go(outcomes)
    assert end.word == "not conclusive"
    assert "but launched again" in end.because


def test_a_set_of_changes_is_reduced() -> None:
    """Two of four flags together; the others are let off."""
    parts = ", ".join(f"{{name: {name}, flags: {{{name}: 1}}}}" for name in ("c", "d", "e", "f"))
    rest = f"bisect: {{any_of: [{parts}], bad: {{metric: accept_len, below: 1}}}}\n"
    walk = Walk(plan(rest))
    order: list[str] = []
    while not isinstance(step := walk.next(), Ended):
        order.append(step.trial.id)
        result = Result.PASS if {"d", "f"} <= set(step.trial.flags) else Result.FAIL
        walk.past.append(Past(step.trial, True, None, "", told(bad__p__metric=result)))
        assert len(order) < 40
    assert (step.word, step.because) == ("found", "it takes d, f, and no less; confirmed both ways")
    assert order[-2:] == ["point-d+f-bad-again", "point-none-good-again"]
