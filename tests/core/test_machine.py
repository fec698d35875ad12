"""The table and its condition: a gate opens on PASS alone, and a refusal is an answer."""

from __future__ import annotations

import pytest

from agent.core.machine import ENDS, Machine
from agent.core.observations import read_job_state
from agent.core.values import Result, Verdict, worst
from tests.support.scripted import plan

MACHINE = Machine(plan())


def verdict(result: Result) -> Verdict:
    return Verdict(result=result)


@pytest.mark.parametrize("result", [Result.WAIT, Result.UNKNOWN, Result.FAIL])
def test_pass_is_refused_while_any_guard_has_not_passed(result: Result) -> None:
    """P7: UNKNOWN is never a pass, whoever asks for the move."""
    verdicts = {"a": verdict(Result.PASS), "b": verdict(result)}
    assert MACHINE.step("verify-clean", "pass", verdicts) is None
    assert MACHINE.step("verify-clean", "pass", {"a": verdict(Result.PASS)}) == "launch"


def test_an_outcome_that_a_state_does_not_have_is_refused() -> None:
    """None, never an exception and never silence."""
    assert MACHINE.step("probe", "settled", {}) is None
    assert MACHINE.step("decide", "pass", {}) is None
    assert MACHINE.step("probe", "no-such-word", {}) is None


def test_retry_needs_an_attempt() -> None:
    """Bounded by the plan."""
    assert MACHINE.step("launch", "retry", {}, attempts_left=1) == "launch"
    assert MACHINE.step("launch", "retry", {}, attempts_left=0) is None


def test_every_state_can_be_stopped_and_every_edge_leads_somewhere() -> None:
    """`stop` leads to finally from everywhere else; all targets are states or ends."""
    names = {state.name for state in plan().states}
    for name in names - {"finally"}:
        assert MACHINE.step(name, "stop", {"a": verdict(Result.FAIL)}) == "finally"
    assert {target for _, _, target in MACHINE.edges} <= names | set(ENDS)


def test_the_table_is_the_plan() -> None:
    """Each edge that a plan spells out is taken as written."""
    for state in plan().states:
        for outcome, target in state.on.items():
            assert MACHINE.step(state.name, outcome, {}) == target


def test_the_worst_verdict_wins_and_none_is_unknown() -> None:
    """PASS < WAIT < UNKNOWN < FAIL."""
    assert worst([]) is Result.UNKNOWN
    assert worst([Result.PASS, Result.WAIT]) is Result.WAIT
    assert worst([Result.UNKNOWN, Result.WAIT, Result.PASS]) is Result.UNKNOWN
    assert worst([Result.FAIL, Result.UNKNOWN]) is Result.FAIL


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("LIVE 12 34 56", "LIVE"),
        ("ORPHANED 12 34 56", "ORPHANED"),
        ("EXITED 137 99", "EXITED"),
        ("LOST reboot", "LOST"),
        ("ABSENT", "ABSENT"),
        ("ABSENT but", "UNKNOWN"),
        ("LIVE twelve 34 56", "UNKNOWN"),
        ("LIVE 12 34", "UNKNOWN"),
        ("", "UNKNOWN"),
        ("EXITED", "UNKNOWN"),
        ("live 1 2 3", "UNKNOWN"),
        ("\x1b[31mLIVE 1 2 3", "UNKNOWN"),
    ],
)
def test_reading_the_state_of_a_job(text: str, word: str) -> None:
    """Whatever is odd is UNKNOWN, never dead and never alive."""
    assert read_job_state(text).word == word
