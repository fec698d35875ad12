"""CEL expressions of playbooks and rules: compiled when a playbook is loaded, evaluated when a trial is made.

An expression sees the variables it is given and nothing else. It cannot loop without bound, read a clock or do
I/O, and the same variables give the same value. The engine is imported at the first compile, not before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

LENGTH_MAX = 1000
_UNDECLARED = re.compile(r"undeclared reference to '([^']+)'")
_PLACE = re.compile(r"<input>:(-?\d+):(-?\d+): (.*)")
_STRING = re.compile(r"""r?("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')""", re.DOTALL)
_ORDERED = re.compile(r"\.\s*(map|filter|transformList|transformMap)\s*\(")
_CLOCK = re.compile(r"\b(timestamp|duration)\s*\(")


class ExpressionError(ValueError):
    """The text is not an expression that can be used. ``line`` and ``column`` count from 1 within the text."""

    def __init__(self, message: str, line: int = 1, column: int = 1, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message, self.line, self.column, self.names = message, line, column, names


class EvaluationError(ValueError):
    """The expression has no value for these variables."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression: ``names`` are the variables it reads, ``kind`` the type of its value (``dyn`` = open)."""

    text: str
    names: frozenset[str]
    kind: str
    _run: Callable[[Mapping[str, Any]], Any]

    def evaluate(self, variables: Mapping[str, Any]) -> Any:
        """Return its value: None, a bool, a number, a string or a list of these; EvaluationError if it has none."""
        missing = sorted(self.names - variables.keys())
        if missing:
            raise EvaluationError(f"no value for {', '.join(missing)}")
        return self._run({name: _plain(variables[name]) for name in self.names})

    def references(self, name: str) -> frozenset[str]:
        """Return the keys of ``name`` that it reads by a literal: ``flags['a']`` or ``flags.a``."""
        pattern = re.compile(
            rf"(?<![.\w]){re.escape(name)}\s*(?:\[\s*(?:'([^']*)'|\"([^\"]*)\")\s*\]|\.\s*([A-Za-z_]\w*))"
        )
        return frozenset(next(group for group in match if group) for match in pattern.findall(self.text) if any(match))


def _plain(value: Any) -> Any:
    """Return ``value`` with tuples as lists, the way CEL takes them."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _engine() -> Any:
    from cel_expr_python import cel  # type: ignore[import-untyped]

    return cel


@lru_cache(maxsize=64)
def _environment(names: frozenset[str]) -> Any:
    cel = _engine()
    return cel.NewEnv(variables=dict.fromkeys(sorted(names), cel.Type.DYN))


def _explain(error: Exception) -> ExpressionError:
    """Make an error of the engine's message, which holds one or more ``<input>:LINE:COLUMN: TEXT``."""
    text = str(error)
    found = _PLACE.search(text)
    names = tuple(_UNDECLARED.findall(text))
    if found is None:
        return ExpressionError(text.partition("\n")[0][:200])
    message = re.sub(r" \(in container ''\)| expecting .*", "", found[3]).strip()
    return ExpressionError(message, max(1, int(found[1])), max(1, int(found[2])), names)


def _check_text(text: str) -> None:
    if len(text) > LENGTH_MAX:
        raise ExpressionError(f"longer than {LENGTH_MAX} characters")
    if not text.isprintable() and not text.replace("\n", "").replace("\t", "").isprintable():
        raise ExpressionError("a character that cannot be printed")
    bare = _STRING.sub(lambda match: "'" + " " * (len(match[0]) - 2) + "'", text)
    if match := _ORDERED.search(bare):
        # Maps have no order: a list made of one would differ from process to process.
        raise ExpressionError(f"`{match[1]}` is not available", column=match.start() + 2)
    if match := _CLOCK.search(bare):
        raise ExpressionError(f"`{match[1]}` is not available", column=match.start() + 1)


@lru_cache(maxsize=256)
def compile(text: str) -> Expression:  # noqa: A001 - the word everybody looks for
    """Compile ``text``; raise ExpressionError with the place when it is not CEL or the types cannot fit.

    Any free name is taken for a variable of any type; what is allowed is for the caller to say, by ``names``.
    """
    _check_text(text)
    names: frozenset[str] = frozenset()
    try:
        _environment(names).compile(text)
    except RuntimeError as error:
        names = frozenset(name.split(".", 1)[0] for name in _explain(error).names)
    try:
        program = _environment(names).compile(text)
    except RuntimeError as error:
        raise _explain(error) from None
    kind = str(program.return_type().name()).lower()

    def run(variables: Mapping[str, Any]) -> Any:
        try:
            value = program.eval(data=dict(variables))
        except (RuntimeError, TypeError, OverflowError) as error:
            raise EvaluationError(re.sub(r"^[A-Z_]+: | \[[A-Z_]+\]$", "", str(error).partition("\n")[0])) from None
        if value.type().name().lower() in ("*error*", "error"):
            raise EvaluationError(re.sub(r"^[A-Z_]+: ", "", str(value.plain_value())))
        return _result(value.plain_value())

    return Expression(text, names, kind, run)


def _result(value: Any) -> Any:
    if isinstance(value, list):
        return [_result(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise EvaluationError(f"the value is a {type(value).__name__}; a number, a word, true or false was wanted")
