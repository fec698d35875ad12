"""Guards on what a debug campaign gathers: values of the log, checks, how far a launch came."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agent.core.evidence import Answer, Evidence
from agent.core.guards import Check, LogValue, Reached, judge
from agent.core.ladder import read_guard
from agent.core.observations import Completed, Lost
from agent.core.values import Finding, Output, Result

SHAPES = (
    "[2026-01-02 TP0] EAGLE3_DEBUG draft hidden_states shape=(7, 21504) dtype=torch.bfloat16",
    "[2026-01-02 TP1] EAGLE3_DEBUG draft hidden_states shape=(7, 21504) dtype=torch.bfloat16",
)
SHAPE = r"draft hidden_states shape=\(\d+, (\d+)\)"


def evidence(**parts: Any) -> Evidence:
    """Return evidence with these parts."""
    answers = parts.pop("answers", [])
    return Evidence(None, None, None, None, 1.0, 0.0, answers, **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "bounds", "result"),
    [
        (SHAPES, {"is": 21504}, Result.PASS),
        (SHAPES, {"above": 7168}, Result.PASS),
        (tuple(line.replace("21504", "7168") for line in SHAPES), {"is": 21504}, Result.FAIL),
        ((SHAPES[0], SHAPES[1].replace("21504", "7168")), {"is": 21504}, Result.FAIL),
        ((), {"is": 21504}, Result.UNKNOWN),
        (("EAGLE3_DEBUG draft hidden_states shape=(7,)",), {"is": 21504}, Result.UNKNOWN),
    ],
)
def test_a_shape_in_the_log(lines: tuple[str, ...], bounds: dict[str, Any], result: Result) -> None:
    """Every line counts, one rank that differs is enough; no line says nothing."""
    guard = read_guard({"guard": "log_value", "pattern": SHAPE, **bounds})
    assert isinstance(guard, LogValue)
    assert judge(guard, evidence(launch_log=lines)).result is result


def test_a_word_in_the_log() -> None:
    """Words are compared as words, a number with bounds has to be one."""
    line = ("EAGLE3_DEBUG capture=True wiring=embed",)
    word = read_guard({"guard": "log_value", "pattern": "wiring=([a-z]+)", "is": "embed"})
    assert judge(word, evidence(launch_log=line)).result is Result.PASS
    number = read_guard({"guard": "log_value", "pattern": "wiring=([a-z]+)", "above": 1})
    assert judge(number, evidence(launch_log=line)).result is Result.UNKNOWN


@pytest.mark.parametrize(
    "spec",
    [
        {"guard": "log_value", "pattern": "no group", "is": 1},
        {"guard": "log_value", "pattern": "(a)"},
        {"guard": "log_value", "pattern": "(a", "is": 1},
        {"guard": "check", "name": "a", "metric": "m"},
        {"guard": "collected", "pattern": "("},
        {"guard": "reached", "state": ""},
    ],
)
def test_what_cannot_be_judged_is_refused(spec: dict[str, Any]) -> None:
    """When the playbook is read."""
    with pytest.raises(ValidationError):
        read_guard(spec)


def answer(text: str, status: int = 0) -> Answer:
    """Return what a check printed."""
    outcome = Completed(status=status, out=Output.of(text))
    return Answer("main/a/l1/test/1/check-wiring", None, "check-wiring", 0.0, outcome)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (answer('samples 200\n{"accuracy": 0.769, "samples": 200}\n'), Result.PASS),
        (answer('{"accuracy": 0.341}\n'), Result.FAIL),
        (answer('{"accuracy": 0.769}\n{"accuracy": 0.341}\n'), Result.FAIL),
        (answer('{"accuracy": "high"}'), Result.UNKNOWN),
        (answer('{"accuracy": NaN}'), Result.UNKNOWN),
        (answer('{"other": 1}'), Result.UNKNOWN),
        (answer("no object"), Result.UNKNOWN),
        (answer('{"accuracy": 0.769}', status=1), Result.UNKNOWN),
        (answer(""), Result.UNKNOWN),
    ],
)
def test_a_check_of_ones_own(given: Answer, result: Result) -> None:
    """The last object counts; a script that failed, or said no number, has said nothing."""
    guard = Check(guard="check", name="wiring", metric="accuracy", above=0.7)
    assert judge(guard, evidence(answers=[given])).result is result


def test_a_check_that_was_lost_or_never_ran() -> None:
    """Neither is a number."""
    guard = Check(guard="check", name="wiring", metric="accuracy", above=0.7)
    lost = Answer("main/a/l1/test/1/check-wiring", None, "check-wiring", 0.0, Lost(why="x"))  # type: ignore[arg-type]
    assert judge(guard, evidence(answers=[lost])).result is Result.UNKNOWN
    assert judge(guard, evidence()).result is Result.UNKNOWN


def test_how_far_a_launch_came() -> None:
    """And the class of what ended it, if it did not get there."""
    guard = Reached(guard="reached", state="health-wait")
    assert judge(guard, evidence(passed=frozenset({"launch", "health-wait"}))).result is Result.PASS
    verdict = judge(guard, evidence(passed=frozenset({"launch"}), finding=Finding.HANG))
    assert verdict.result is Result.FAIL
    assert "HANG" in verdict.saw


def test_a_guard_that_fails_as_was_thought() -> None:
    """The class decides: it is this one, another one, or nothing is known."""
    thought = read_guard({"guard": "fails", "of": "expr_of_no_name", "finding": "WEDGED"})
    assert judge(thought, evidence()).result is Result.UNKNOWN, "a guard that is not there is no verdict"
    nothing = read_guard({"guard": "fails", "of": "gpus_clean", "finding": "WEDGED"})
    assert judge(nothing, evidence()).result is Result.UNKNOWN
