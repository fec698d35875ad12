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
    from ..plan import Plan, Server, Trial

FILES = {
    "sglang": ("sglang", "nccl", "bench"),
    "vllm": ("vllm", "nccl", "bench"),
    "llamacpp": ("llamacpp", "bench"),
    "command": ("nccl", "bench"),
}


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
    at: tuple[str, ...] = ()
    """What it is about: ``flags.NAME`` and ``env.NAME``, as the trial writes them; () when something is missing."""

    def __str__(self) -> str:
        return f"{self.id}: {self.happens}; {self.remedy}"


TWICE = Rule(
    id="GEN001",
    level="error",
    when="the same flag stands twice, under one name or two",
    happens="a flag that is given twice is taken once, the last one, without a message",
    remedy="give it once",
    source="Python argparse; the servers' own command lines",
    versions="all",
    finding=Finding.CONFIG_OVERRIDDEN,
)
"""The one rule that cannot be written over the values alone: by then one of the two is gone."""


@cache
def rules(kind: str) -> tuple[Rule, ...]:
    """Return the rules for servers of this kind, in the order of their files."""
    found: list[Rule] = []
    for name in FILES[kind]:
        text = importlib.resources.files(__package__).joinpath("rules", f"{name}.yaml").read_text("utf-8")
        found += [Rule.model_validate(item) for item in yaml.safe_load(text)]
    return tuple(found)


def every_rule() -> tuple[Rule, ...]:
    """Return all rules of all kinds, each once, in the order of their ids."""
    found = {rule.id: rule for kind in FILES for rule in rules(kind)} | {TWICE.id: TWICE}
    return tuple(found[name] for name in sorted(found))


def lint(server: Server, trial: Trial, bench: tuple[str, ...] = ()) -> list[Hint]:
    """Return what is known to go wrong with this trial, errors first. ``bench``: the words of the benchmark."""
    from ..expressions import EvaluationError
    from ..expressions import compile as compile_expression

    names, written, doubled = _flags(server, trial)
    env = {**server.env, **trial.env}
    variables = {"flags": names, "env": env, "gpus": server.gpus, "port": server.port, "bench": list(bench)}
    found = [
        _hint(TWICE, (f"flags.{second}",), f"{first} and {second} are the same flag; the last one wins in silence")
        for first, second in doubled
    ]
    for rule in rules(server.kind):
        try:
            applies = compile_expression(rule.when).evaluate({**variables, "known": rule.known})
        except EvaluationError:
            continue  # a value of another type than the rule thinks of
        if applies is True:
            found.append(_hint(rule, _about(rule, written, env)))
    order = ("error", "warning", "note")
    return sorted(found, key=lambda hint: order.index(hint.level))


def rejection(plan: Plan, trial: Trial) -> str:
    """Say why a trial is known to fail before it is launched; '' when nothing speaks against it.

    Only rules of the level ``error`` reject. What the playbook allows by a comment passes, and so does an override
    that a guard of the playbook allows by the flag's name.
    """
    for hint in lint(plan.server, trial, plan.benchmark.args if plan.benchmark else ()):
        if hint.level == "error" and not is_allowed(plan, hint):
            return str(hint)
    return ""


def is_allowed(plan: Plan, hint: Hint) -> bool:
    """Whether a playbook allows what a rule found: by a comment, or an override by its guard's ``allow_overrides``."""
    if hint.id in plan.allow:
        return True
    if hint.finding is not Finding.CONFIG_OVERRIDDEN or hint.id == TWICE.id:
        return False
    own = getattr(kind_of(plan.server.kind), "canonical", str)
    guards = [guard for state in plan.states for guard in state.guards]
    allowed = {own(name) for guard in guards for name in getattr(guard, "allow_overrides", ())}
    return bool(allowed & {own(place.removeprefix("flags.")) for place in hint.at if place.startswith("flags.")})


def _hint(rule: Rule, at: tuple[str, ...], happens: str = "") -> Hint:
    return Hint(
        id=rule.id,
        level=rule.level,
        happens=happens or rule.happens,
        remedy=rule.remedy,
        source=rule.source,
        finding=rule.finding,
        at=at,
    )


def _about(rule: Rule, written: dict[str, str], env: dict[str, str]) -> tuple[str, ...]:
    """Return the flags and variables of this trial that the rule's condition names, the last named first."""
    words = list(dict.fromkeys(re.findall(r"'([A-Za-z][A-Za-z0-9_-]*)'", rule.when)))
    found = [f"flags.{written[word]}" for word in words if word in written]
    found += [f"env.{word}" for word in words if word in env]
    if not found and rule.known and "flags.exists" in rule.when:
        found = [f"flags.{name}" for key, name in written.items() if key not in rule.known
                 and any(word.startswith(key) for word in rule.known)]  # fmt: skip
    if not found and rule.known and "env.exists" in rule.when:
        found = [f"env.{name}" for name in env if name.startswith("NCCL_") and name not in rule.known]
    return tuple(reversed(found))


def _flags(server: Server, trial: Trial) -> tuple[dict[str, Any], dict[str, str], list[tuple[str, str]]]:
    """Return the flags under their own names, how they are written, and doubles.

    Those of the command line stand below those of the trial.
    """
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
    return found, given, doubled


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
