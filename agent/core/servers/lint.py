"""What is known to go wrong with a configuration before it is launched: rules as data, one YAML entry each.

A rule that cannot be evaluated for a configuration says nothing about it. What an engine makes of flags differs from
release to release: where nobody knows which one is installed, every generation is asked, and what holds for some of
them only is a warning that names them.
"""

from __future__ import annotations

import importlib.resources
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import Field, model_validator

from ..values import Finding, Value
from . import kind_of
from .asked import Target, release
from .predict import Foretold, foretell, generations

if TYPE_CHECKING:
    from ..plan import Plan, Server, Trial

FILES = {
    "sglang": ("sglang", "nccl", "bench"),
    "vllm": ("vllm", "nccl", "bench"),
    "llamacpp": ("llamacpp", "bench"),
    "command": ("nccl", "bench"),
}


class Rule(Value):
    """One thing that is known to go wrong, most often in silence, and how to tell from the configuration."""

    id: str = Field(pattern=r"^[A-Z]{3}\d{3}$")
    level: Literal["error", "warning", "note"]
    when: str
    happens: str
    remedy: str
    source: str
    engine: Literal["refuses", "changes", "accepts", ""] = ""
    """What the engine does about it when it reads its arguments; '' where that is not what it is about."""
    since: str = ""
    until: str = ""
    """The releases for which that is so, both inclusive; '' is any."""
    versions: str = ""
    """The same in words; of something else than the engine where it says so."""
    sets: tuple[str, ...] = ()
    """Flags that the engine changes."""
    finding: Finding | None = None
    known: tuple[str, ...] = ()
    """Words that ``when`` may read as ``known``."""

    @model_validator(mode="before")
    @classmethod
    def _in_words(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("versions"):
            since, until = data.get("since", ""), data.get("until", "")
            words = f"{since} to {until}" if since and until else f"up to {until}" if until else f"{since} and later"
            return {**data, "versions": since if since == until != "" else words if since or until else "all"}
        return data

    def covers(self, version: str) -> bool:
        """Whether the rule is about this release; of one that is not known nothing is excluded."""
        numbers = release(version)
        if not numbers:
            return True
        last = release(self.until)
        return release(self.since) <= numbers and (not last or numbers[: len(last)] <= last)


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
"""Cannot be written over the values alone: by then one of the two is gone."""

CHANGED = Rule(
    id="GEN002",
    level="warning",
    when="a flag that is given will have another value in effect, and no other rule says why",
    happens="the engine changes a flag that was asked for",
    remedy="ask for what will be in effect, or allow the override: trials are compared by the values in effect",
    source="the engines' own answers, tests/truth",
    versions="all",
    engine="changes",
    finding=Finding.CONFIG_OVERRIDDEN,
)
"""What is foretold, and explained by no rule of its own."""


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
    found = {rule.id: rule for kind in FILES for rule in rules(kind)} | {rule.id: rule for rule in (TWICE, CHANGED)}
    return tuple(found[name] for name in sorted(found))


def lint(
    server: Server, trial: Trial, bench: tuple[str, ...] = (), version: str = "", target: Target | None = None
) -> list[Hint]:
    """Return what is known to go wrong with this trial, errors first.

    ``bench``: the words of the benchmark. ``version``: the engine's release, '' where it is not known.
    """
    names, written, doubled = _flags(server, trial)
    env = {**server.env, **trial.env}
    variables = {"flags": names, "env": env, "gpus": server.gpus, "port": server.port, "bench": list(bench)}
    found = [
        _hint(TWICE, (f"flags.{second}",), f"{first} and {second} are the same flag; the last one wins in silence")
        for first, second in doubled
    ]
    told = {name: foretell(server.kind, names, name, target) for name in generations(server.kind, version)}
    explained: set[str] = set()
    for rule in rules(server.kind):
        hit = _releases(rule, variables, told)
        if hit:
            explained.update(rule.sets)
            found.append(_told(rule, _about(rule, written, env), names, told, hit))
    for name in names:
        hit = {one: foretold for one, foretold in told.items() if name in foretold.overrides}
        if hit and name not in explained:
            rule = CHANGED.model_copy(update={"sets": (name,), "happens": f"the engine changes {name}"})
            found.append(_told(rule, (f"flags.{written[name]}",), names, told, hit))
    order = ("error", "warning", "note")
    return sorted(found, key=lambda hint: order.index(hint.level))


def _releases(rule: Rule, variables: dict[str, Any], told: dict[str, Foretold]) -> dict[str, Foretold]:
    """Return the releases to which the rule applies, with what each will make of the flags."""
    from ..expressions import EvaluationError
    from ..expressions import compile as compile_expression

    condition = compile_expression(rule.when)
    varies = bool(condition.names & {"effective", "becomes"})
    found: dict[str, Foretold] = {}
    applies = False
    for place, (version, foretold) in enumerate(told.items()):
        if varies or place == 0:
            more = {"known": rule.known, "effective": foretold.facts, "becomes": foretold.overrides}
            try:
                applies = condition.evaluate({**variables, **more}) is True
            except EvaluationError:
                applies = False  # a value of another type than the rule thinks of, or one that is not known
        if applies and rule.covers(version):
            found[version] = foretold
    return found


def _told(
    rule: Rule, at: tuple[str, ...], asked: dict[str, Any], told: dict[str, Foretold], hit: dict[str, Foretold]
) -> Hint:
    """Return the hint with the values that will be in effect, and with the releases where not all are meant."""
    words: list[str] = []
    for name in rule.sets:
        values = {version: foretold.overrides[name] for version, foretold in hit.items() if name in foretold.overrides}
        if not values:
            continue
        become = " or ".join(dict.fromkeys(str(value) for value in values.values()))
        words.append(
            f"{name}: asked {asked[name]}, in effect {become}" if name in asked else f"{name} becomes {become}"
        )
    some = len(hit) < len(told)
    if some:
        words.insert(0, f"in {', '.join(hit)}, not in {', '.join(name for name in told if name not in hit)}")
    happens = f"{rule.happens} ({'; '.join(words)})" if words else rule.happens
    hint = _hint(rule, at, happens)
    return hint.model_copy(update={"level": "warning"}) if some and rule.level == "error" else hint


def version_of(plan: Plan) -> str:
    """Return the engine's release that the playbook insists on; '' when it does not."""
    guards = [guard for state in plan.states for guard in state.guards if guard.guard == "engine_is"]
    return next((guard.version for guard in guards if guard.version and plan.server.kind in guard.package), "")


def rejection(plan: Plan, trial: Trial, version: str = "") -> str:
    """Say why a trial is known to fail before it is launched; '' when nothing speaks against it.

    ``version`` is the engine's release as a server of this campaign told it. Only rules of the level ``error`` reject.
    What the playbook allows by a comment passes, and so does an override that a guard of the playbook allows by the
    flag's name.
    """
    for hint in lint(plan.server, trial, plan.benchmark.words if plan.benchmark else (), version or version_of(plan)):
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
        found.pop(key, None)  # what was said last stands last
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
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}\.\d{1,15}", value):
        return float(value)
    return value
