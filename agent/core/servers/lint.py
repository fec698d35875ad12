"""What is known to go wrong with a configuration before it is launched: rules as data, one YAML entry each.

A rule that cannot be evaluated for a configuration says nothing about it.
"""

from __future__ import annotations

import importlib.resources
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import Field

from ..values import Finding, Value
from . import kind_of

if TYPE_CHECKING:
    from ..plan import Server, Trial

FILES = {"sglang": ("sglang", "nccl"), "vllm": ("vllm", "nccl"), "llamacpp": ("llamacpp",), "command": ("nccl",)}


class Rule(Value):
    """One thing that is known to go silently wrong, and how to tell from the configuration."""

    id: str = Field(pattern=r"^[A-Z]{3}\d{3}$")
    level: Literal["error", "warning", "note"]
    when: str
    happens: str
    remedy: str
    source: str
    versions: str = ""
    finding: Finding | None = None
    known: tuple[str, ...] = ()
    """Words that ``when`` may read as ``known``."""


class Hint(Value):
    """A rule that applies to a configuration."""

    id: str
    level: Literal["error", "warning", "note"]
    happens: str
    remedy: str
    source: str = ""
    finding: Finding | None = None


@cache
def rules(kind: str) -> tuple[Rule, ...]:
    """Return the rules for servers of this kind, in the order of their files."""
    found: list[Rule] = []
    for name in FILES[kind]:
        text = importlib.resources.files(__package__).joinpath("rules", f"{name}.yaml").read_text("utf-8")
        found += [Rule.model_validate(item) for item in yaml.safe_load(text)]
    return tuple(found)


def lint(server: Server, trial: Trial) -> list[Hint]:
    """Return what is known to go wrong with this trial, errors first."""
    from ..expressions import EvaluationError
    from ..expressions import compile as compile_expression

    names, doubled = _flags(server, trial)
    variables = {
        "flags": names,
        "env": {**server.env, **trial.env},
        "gpus": server.gpus,
        "port": server.port,
    }
    found = [
        Hint(
            id="GEN001",
            level="error",
            happens=f"{first} and {second} are the same flag; the last one wins without a message",
            remedy="give it once",
            finding=Finding.CONFIG_OVERRIDDEN,
        )
        for first, second in doubled
    ]
    for rule in rules(server.kind):
        try:
            applies = compile_expression(rule.when).evaluate({**variables, "known": rule.known})
        except EvaluationError:
            continue  # a value of another type than the rule thinks of
        if applies is True:
            found.append(
                Hint(
                    id=rule.id,
                    level=rule.level,
                    happens=rule.happens,
                    remedy=rule.remedy,
                    source=rule.source,
                    finding=rule.finding,
                )
            )
    order = ("error", "warning", "note")
    return sorted(found, key=lambda hint: order.index(hint.level))


def _flags(server: Server, trial: Trial) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the flags under their own names, those of the command line below those of the trial; and doubles."""
    kind = kind_of(server.kind)
    canonical = getattr(kind, "canonical", None)
    found: dict[str, Any] = {}
    given: dict[str, str] = {}
    doubled: list[tuple[str, str]] = []
    pairs: list[tuple[str, Any]] = [*_written(server.command), *trial.flags.items()]
    for name, value in pairs:
        if value is None or value is False:
            continue
        key = str(canonical(name)) if canonical is not None else name.lstrip("-")
        if key in given:
            doubled.append((given[key], name))
        given[key] = name
        found[key] = _value(value)
    return found, doubled


def _written(command: tuple[str, ...]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for place, word in enumerate(command):
        if not word.startswith("--") or len(word) < 3:
            continue
        name, equals, value = word[2:].partition("=")
        after = command[place + 1] if place + 1 < len(command) else "-"
        found.append((name, value if equals else True if after.startswith("-") else after))
    return found


def _value(value: Any) -> Any:
    """Return numbers that are written as text as numbers: a rule compares values, not spellings."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}", value):
        return int(value)
    return value
