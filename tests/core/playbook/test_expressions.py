"""Expressions: compiled once, typed at load, without loops, order, clock or I/O."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.expressions import EvaluationError, ExpressionError
from agent.core.expressions import compile as build

TOKENS = ["flags", ".", "[", "]", "(", ")", "'a'", "1", "+", "==", "&&", "?", ":", "x", ",", "in", "has"]
VARIABLES = {"flags": {"steps": 5, "on": True, "name": "x", "ids": (1, 2)}, "profile": {"share": {"verify": 0.9}}}


@pytest.mark.parametrize(
    ("text", "value", "names"),
    [
        ("flags['steps'] + 1", 6, {"flags"}),
        ("flags.steps * 2 - 1", 9, {"flags"}),
        ("profile.share['verify'] > 0.5 && flags.on", True, {"profile", "flags"}),
        ("has(flags.nope) ? 1 : 2", 2, {"flags"}),
        ("'nope' in flags", False, {"flags"}),
        ("flags.ids[1]", 2, {"flags"}),
        ("[flags.steps, 1]", [5, 1], {"flags"}),
        ("flags.ids.exists(i, i > 1)", True, {"flags"}),
        ("'a' + flags.name", "ax", {"flags"}),
        ("double(flags.steps) * 1.5", 7.5, {"flags"}),
        ("flags.name.matches('^(x+)+$')", True, {"flags"}),
        ("'a.map(b) timestamp(c)'", "a.map(b) timestamp(c)", set()),
        ("null", None, set()),
    ],
)
def test_values_and_names(text: str, value: object, names: set[str]) -> None:
    """An expression has a value, and knows what it reads."""
    expression = build(text)
    assert (expression.evaluate(VARIABLES), set(expression.names)) == (value, names)


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("1 +", 1, 4, "Syntax error"),
        ("1 +\n x y", 2, 4, "Syntax error"),
        ("", 1, 1, "Syntax error"),
        ("1 + 'a'", 1, 3, "no matching overload"),
        ("nope(flags.a)", 1, 5, "undeclared reference to 'nope'"),
        ("flags.map(k, k)", 1, 7, "`map` is not available"),
        ("flags .filter (k, k)", 1, 8, "`filter` is not available"),
        ("timestamp('2026-01-01T00:00:00Z')", 1, 1, "`timestamp` is not available"),
        ("a" * 1001, 1, 1, "longer than"),
        ("'a\x00'", 1, 1, "cannot be printed"),
    ],
)
def test_refused_at_compile(text: str, line: int, column: int, said: str) -> None:
    """What is wrong shows when a playbook is loaded, with its place in the text."""
    with pytest.raises(ExpressionError) as error:
        build(text)
    assert (error.value.line, error.value.column) == (line, column)
    assert said in error.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flags.nope", "nope"),
        ("flags.name + 1", "No matching overload"),
        ("1 / 0", "divide by zero"),
        ("9223372036854775807 + flags.steps", "overflow"),
        ("flags", "a number, a word, true or false was wanted"),
        ("b'x'", "was wanted"),
        ("nobody > 1", "no value for nobody"),
    ],
)
def test_no_value(text: str, said: str) -> None:
    """An expression without a value raises, and never passes for something."""
    with pytest.raises(EvaluationError) as error:
        build(text).evaluate(VARIABLES)
    assert said in str(error.value)


def test_work_is_bounded() -> None:
    """Nested loops end in an error, soon."""
    text = "true"
    for name in "abcdefgh":
        text = f"[1,2,3,4,5,6,7,8,9,10].all({name}, {text})"
    with pytest.raises(EvaluationError, match="budget"):
        build(text).evaluate({})


def test_references_are_the_literal_keys() -> None:
    """The order of derived flags follows from what each reads."""
    assert build("flags['a-b'] + flags.c + best.flags['d'] + profile.e").references("flags") == {"a-b", "c"}


def test_the_engine_is_imported_at_the_first_compile() -> None:
    """Commands that read no playbook do not pay for it."""
    program = "import sys, agent.core.expressions; print('cel_expr_python' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@settings(max_examples=300, deadline=1000)
@given(st.text(max_size=40) | st.lists(st.sampled_from(TOKENS), max_size=20).map(" ".join))
def test_any_text_compiles_or_says_why(text: str) -> None:
    """No input raises anything else."""
    with contextlib.suppress(ExpressionError, EvaluationError):
        build(text).evaluate({"flags": {"a": 1}, "x": 1})
