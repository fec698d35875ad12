# ruff: noqa: E501 - a row is a line
"""Strict YAML: the core schema of YAML 1.2, places of values, and no input that is slow, large or fatal."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core import yaml
from agent.core.wording import field_name, mask, shown
from agent.errors import PlaybookError

from . import HEAD, problems

SCALARS = {
    "": None, "~": None, "null": None, "Null": None, "nULL": "nULL",
    "true": True, "FALSE": False, "True": True, "yes": "yes", "no": "no", "on": "on", "Off": "Off", "y": "y", "tRue": "tRue",
    "0": 0, "-1": -1, "+12": 12, "0o17": 15, "0x1f": 31, "1_000": "1_000", "0b11": "0b11", "-0x1": "-0x1",
    "1.5": 1.5, ".5": 0.5, "1.": 1.0, "1e3": 1000.0, "-2.5E-1": -0.25, "1.10": 1.1, "00.5": 0.5,
    "22:22": "22:22", "1:30:00": "1:30:00", "2026-01-01": "2026-01-01", "1..10": "1..10", "0.1.2": "0.1.2", "-": None,
    "<": "<", "=": "=", "9223372036854775807": 2**63 - 1, "e5": "e5", ".": ".", "+": "+",
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), [pair for pair in SCALARS.items() if pair[0] != "-"])
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    """Plain scalars are what YAML 1.2 says, no more."""
    found = yaml.load(f"a: {text}\n".encode(), "f").data["a"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("text", ["'true'", '"1"', "'~'", "'0755'", '""', "'.inf'"])
def test_quoted_scalars_are_words(text: str) -> None:
    """Quotes make a word."""
    assert yaml.load(f"a: {text}".encode(), "f").data["a"] == text[1:-1]


def test_places_are_those_of_the_text() -> None:
    """Lines and columns count from 1; an empty value stands at its key; what is not there at the nearest key."""
    document = yaml.load("a:\n  b: [é, {c: 1}]\n  d:\ne: &x {f: 2}\ng: *x\n".encode(), "f")
    assert document.data == {"a": {"b": ["é", {"c": 1}], "d": None}, "e": {"f": 2}, "g": {"f": 2}}
    assert document.at(("a", "b", 1, "c")) == (2, 14)
    assert document.key_at(("a", "b", 1, "c")) == (2, 11)
    assert document.at(("a", "d")) == (3, 3)
    assert document.at(("a", "nowhere", "at", "all")) == (1, 1)
    assert document.at(("g", "f")) == (4, 11)
    assert document.at(()) == (1, 1)
    assert document.written(("a", "b", 1, "c")) == "1"


def test_the_pure_parser_gives_the_same() -> None:
    """Without libyaml documents read alike, places included."""
    text = HEAD + "lab: {a: [1, 'x', {b: no}], c: &x {d: 2}, e: *x}\n"
    fast = yaml.load(text.encode(), "f")
    slow = yaml._Composer("", "f")
    slow.parser = yaml._PureParser(text)
    top = slow.compose()
    assert top is not None
    assert top.value == fast.data
    assert yaml.Document("f", top.value, top).at(("lab", "a", 2, "b")) == fast.at(("lab", "a", 2, "b"))


def test_problems_that_leave_the_rest_readable_are_collected() -> None:
    """One reading shows all of them, in order."""
    text = b"a: 1\na: 2\nb: 010\nc: !x y\n1: d\ne: .nan\nf: {<<: {g: 1}}\n"
    with pytest.raises(PlaybookError) as error:
        yaml.load(text, "f")
    codes = [problem.code for problem in error.value.problems]
    assert codes == ["E_YAML_DUPKEY", "E_OCTAL", "E_YAML_TAG", "E_KEY_TYPE", "E_NUMBER", "E_YAML_MERGE"]
    assert [problem.line for problem in error.value.problems] == [2, 3, 4, 5, 6, 7]


def test_wording_is_harmless() -> None:
    """Text of unknown origin is shown on one line, escaped, cut, without secrets."""
    assert shown("a\x1b[31m\nb\u202e") == "a\\u001b[31m\\u000ab\\u202e"
    assert len(shown("x" * 10_000)) == 61
    assert mask("x hf_" + "a" * 30 + " y") == "x [secret, 33 characters] y"
    assert field_name(("search", "stages", 0, "flags")) == "search.stages[0].flags"


def bomb(levels: int) -> str:
    """Return nine aliases of nine aliases, and so on."""
    rows = ["a: &a [" + ", ".join(["x"] * 9) + "]"]
    for index in range(1, levels):
        name, before = chr(97 + index), chr(96 + index)
        rows.append(f"{name}: &{name} [" + ", ".join([f"*{before}"] * 9) + "]")
    return "\n".join(rows)


SIZE = yaml.SIZE_MAX - 64
ADVERSE = {
    "alias bomb": bomb(8),
    "alias bomb of few aliases": "\n".join(
        ["a0: &a0 {" + ", ".join(f"k{n}: {n}" for n in range(100)) + "}"]
        + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 15)]
    ),
    "flow": "[" * SIZE, "braces": "{" * SIZE, "dashes": "- " * (SIZE // 2), "questions": "? " * (SIZE // 2),
    "comment": "#" * SIZE, "scalar": "a" * SIZE, "lines": "\n" * SIZE, "tag": "!" * SIZE, "anchors": "&a " * (SIZE // 3),
    "quote": "'" * SIZE, "escapes": '"' + "\\x41" * (SIZE // 4) + '"', "block": "a: |\n" + " a\n" * (SIZE // 3),
    "list": "a: [" + "b," * (SIZE // 2), "map": "".join(f"k{n}: 1\n" for n in range(90_000)),
    "long keys": "? " + "a" * (SIZE // 2) + "\n: 1\n", "percent": "%" * SIZE, "documents": "---\n" * (SIZE // 4),
    "digits": "a: " + "9" * SIZE, "floats": "a: 1." + "1" * SIZE, "carriage returns": "\r" * SIZE, "tabs": "\t" * SIZE,
    "stars": "*a " * (SIZE // 3), "duplicates": "a: 1\n" * 4000, "unknown keys": "".join(f"k{n}: {{}}\n" for n in range(4000)),
    "unknown flags": HEAD + "  flags: {" + ", ".join(f"-{n}: 1" for n in range(3000)) + "}\n",
    "states": HEAD + "states: {" + ", ".join(f"s{n}: {{after: probe, do: [probe]}}" for n in range(1500)) + "}\n",
    "stages": HEAD + "search: {stages: [" + ", ".join(f"{{name: a{n}, flags: {{a: {n}}}}}" for n in range(1200)) + "]}\n",
    "expressions": HEAD + "  flags: {" + ", ".join(f"a{n}: {{expr: flags.a{n + 1} + 1}}" for n in range(900)) + "}\n",
    "an expression": HEAD + "  flags: {a: {expr: '" + "(" * 400 + "1" + ")" * 400 + "'}}\n",
    "sweeps": HEAD + "search: {stages: [{name: a, flags: {" + ", ".join(f"a{n}: {{sweep: 1..250}}" for n in range(900)) + "}}]}\n",
    "pattern": HEAD + "assumptions: {a: {guard: log_has, pattern: '" + "(a{1000}){1000}" * 9 + "'}}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", ADVERSE)
def test_adverse_input_is_answered_within_a_second(name: str) -> None:
    """Whatever the input, there is a plan or a positioned error, soon."""
    began = time.process_time()
    answered(ADVERSE[name].encode())
    assert time.process_time() - began < 1, name


def test_adverse_input_needs_little_memory() -> None:
    """All of it together, in one process, stays below 200 MB."""
    program = (
        "import re\n"
        "from tests.core.playbook.test_yaml import ADVERSE, answered\n"
        "[answered(text.encode()) for text in ADVERSE.values()]\n"
        # Not getrusage: a child's peak there begins with that of the process it was forked from.
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 200


def answered(text: bytes) -> None:
    """Load ``text``; an error must be a PlaybookError with places."""
    for problem in problems(text):
        assert problem.line >= 1
        assert problem.column >= 1
        assert problem.code.startswith("E_")
        assert problem.code != "E_WITHOUT_PLACE"


WORDS = [
    *"-?:,[]{}#&*!|>'\"%@`\n\t ", "\n  ", "\n- ", ": ", "---\n", "...\n", "!!str ", "&a ", "*a", "<<: ", "\\x00", "é", "\u2028", "\x85",
    "0755", ".inf", "1e999", "~", "true", "playbook: ", "server: ", "flags: ", "search: ", "stages: ", "sweep: ", "expr: ", "states: ",
    "guards: ", "guard: ", "log_has", "pattern: ", "(a+)+$", "1..10", "unset", "hosts: ", "after: ", "do: ", "on: ", "5m", "2%", "probe",
]  # fmt: skip


@settings(max_examples=300, deadline=1000)
@given(st.binary(max_size=400))
def test_any_bytes_are_answered(raw: bytes) -> None:
    """Bytes load, or give a positioned error."""
    answered(raw)


@settings(max_examples=400, deadline=1000)
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=60).map("".join))
def test_any_text_of_the_language_is_answered(text: str) -> None:
    """So does whatever can be made of the language's own words."""
    answered(text.encode("utf-8", "surrogatepass"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
KEYS = (
    "goal", "hosts", "server", "assumptions", "search", "trials", "budget", "benchmark", "profile", "states", "on_fail",
    "hypotheses", "finally", "seed", "lab",
)  # fmt: skip


@settings(max_examples=300, deadline=1000)
@given(st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=3))
def test_any_value_anywhere_is_answered(parts: dict[str, object]) -> None:
    """A value of any shape at any key is a plan or a positioned error, never an exception of our own."""
    import json

    head = "" if "server" in parts or "hosts" in parts else HEAD
    answered((head + "".join(f"{key}: {json.dumps(value)}\n" for key, value in parts.items())).encode())
