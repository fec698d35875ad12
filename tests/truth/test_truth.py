"""What we foretell of an engine's arguments is what the engine itself said, set by set and rule by rule.

The fixtures are answers of the real SGLang and vLLM to a few hundred generated flag sets (``scripts/truth``; ``make
truth`` asks them anew). A prediction may be silent; it may not be wrong.
"""

from __future__ import annotations

import collections
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.core.plan import Server, Trial
from agent.core.servers import kind_of
from agent.core.servers.asked import Target
from agent.core.servers.engine import Engine
from agent.core.servers.lint import Hint, Rule, lint, rules
from agent.core.servers.predict import foretell

# `make truth` points at answers that are not in the repository yet.
FIXTURES = Path(os.environ.get("TRUTH_FIXTURES") or Path(__file__).parent)
NAMES = sorted(path.stem for path in FIXTURES.glob("*.jsonl"))
FLOORS = {"sglang": (0.9, 0.99, 0.92), "vllm": (0.85, 0.75, 0.95)}
"""The shares of refusals, of changes of what was asked, and of what was not, that must be foretold."""
MODEL = Target(architecture="LlamaForCausalLM", context=2048, heads=8, draft_context=2048)
DERIVED = {
    *("mem-fraction-static", "cuda-graph-max-bs", "speculative-draft-attention-backend", "max-prefill-tokens"),
    *("max-num-scheduled-tokens", "async-scheduling", "speculative-config.model", "max-num-batched-tokens"),
}
"""What the engine works out from the card, or repeats from another field: not foretold, not counted."""

NOT_ASKED: set[str] = set()
"""Rules about arguments to which none of the generated sets comes near."""


@dataclass
class Score:
    """How predictions and answers compare."""

    wrong: list[str] = field(default_factory=list)
    refused: collections.Counter[bool] = field(default_factory=collections.Counter)
    asked: collections.Counter[bool] = field(default_factory=collections.Counter)
    defaults: collections.Counter[bool] = field(default_factory=collections.Counter)
    missed: collections.Counter[str] = field(default_factory=collections.Counter)
    applied: collections.Counter[str] = field(default_factory=collections.Counter)
    """How often each rule was put to the engine."""
    taken: set[str] = field(default_factory=set)
    """Rules that applied to flags which the engine took."""


def read(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text("utf-8").splitlines()]
    return lines[0], lines[1:]


def value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def flags(engine: Engine, argv: list[str]) -> dict[str, Any]:
    """Return flags under their own names; of a doubled flag the last counts, as everywhere."""
    found: dict[str, Any] = {}
    for place, word in enumerate(argv):
        if word.startswith("--"):
            after = argv[place + 1 : place + 2]
            bare = not after or after[0].startswith("--")
            name, given = engine.canonical(word), True if bare else value(after[0])
            found.pop(name, None)  # what was said last stands last
            found[name] = given
    return found


def spread(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags by the names under which vLLM's answer has them: "no-x" is x, and a table is its entries."""
    found: dict[str, Any] = {}
    for name, item in given.items():
        if name == "speculative-config":
            entries = json.loads(item)
            found |= {f"speculative-config.{key.replace('_', '-')}": entry for key, entry in entries.items()}
        elif name.startswith("no-"):
            found[name[3:]] = False
        else:
            found[name] = item
    return found


def same(one: Any, two: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(two, (int, float)):
        return math.isclose(one, two, rel_tol=1e-9)
    return bool(one == two)


@cache
def score(name: str) -> Score:
    engine = kind_of(name.partition("-")[0])
    assert isinstance(engine, Engine)
    head, records = read(name)
    version = head["versions"][engine.name]
    found = Score()
    for record in records:
        hopper = record.get("hopper")
        given = flags(engine, record["argv"])
        target = replace(MODEL, hopper=hopper)
        tell = f"{' '.join(record['argv'])}{' [hopper]' if hopper else ''}"
        said = {hint.id: hint for hint in hints(engine, given, version, target)}
        found.applied.update(said.keys())
        refuse = [rule.id for rule in judged(engine.name) if rule.engine == "refuses" and rule.id in said]
        if refusal := record.get("refused"):
            found.refused[bool(refuse)] += 1
            if not refuse:
                found.missed[f"refused: {refusal['line'] or refusal['in']}"] += 1
            continue
        found.taken |= said.keys()
        if refuse:
            found.wrong.append(f"{tell}: taken, and {refuse} say that it is refused")
            continue
        defaults = head["defaults"]
        if hopper is not None:
            defaults = defaults["hopper" if hopper else "unknown"]
        plain = named(engine, defaults)
        real = {**plain, **named(engine, record["resolved"])}
        foretold = foretell(engine.name, given, version, target)
        compare(tell, spread(given), foretold.overrides, plain, real, found)
        changed(tell, engine.name, said, spread(given), real, found)
    return found


def named(engine: Engine, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the engine answered by the names of flags."""
    found = {}
    for key, item in values.items():
        table, dot, entry = key.partition(".")
        found[f"{table}-config.{engine.canonical(entry)}" if dot else engine.canonical(key)] = item
    return found


def judged(kind: str) -> list[Rule]:
    """Return the rules that say what the engine does when it reads its arguments."""
    return [rule for rule in rules(kind) if rule.engine]


def hints(engine: Engine, given: Mapping[str, Any], version: str, target: Target) -> list[Hint]:
    server = Server(kind=engine.name, host="box", port=30000, gpus=1, command=("server",))  # type: ignore[arg-type]
    return lint(server, Trial(id="t", role="candidate", flags=dict(given)), (), version, target)


def changed(
    tell: str, kind: str, said: Mapping[str, Hint], given: Mapping[str, Any], real: Mapping[str, Any], found: Score
) -> None:
    """Hold what rules say of changes against the values in effect: one of the flags that they name differs."""
    for rule in judged(kind):
        if rule.engine != "changes" or rule.id not in said:
            continue
        seen = [key for key in rule.sets if key in real]
        if seen and all(key in given and same(real[key], given[key]) for key in seen):
            found.wrong.append(f"{tell}: {rule.id} says that {rule.sets} change, and they are as asked")


def compare(
    tell: str,
    given: Mapping[str, Any],
    foretold: Mapping[str, Any],
    plain: Mapping[str, Any],
    real: Mapping[str, Any],
    found: Score,
) -> None:
    for key, expected in foretold.items():
        if key in real and not same(real[key], expected):
            found.wrong.append(f"{tell}: {key} is {real[key]!r}, and we say {expected!r}")
    for key, in_effect in real.items():
        if key.startswith("speculative-config.prompt-lookup") and in_effect == 0:
            continue  # of a method that looks nothing up
        if key in DERIVED or same(in_effect, given.get(key, plain.get(key))):
            continue
        (found.asked if key in given else found.defaults)[key in foretold] += 1
        if key not in foretold:
            found.missed[f"{key}: {given.get(key, plain.get(key))} became {in_effect}"] += 1


def share(count: collections.Counter[bool]) -> float:
    return count[True] / max(1, count.total())


def told(count: collections.Counter[bool]) -> str:
    return f"{count[True]} of {count.total()} ({100 * share(count):.0f} %)"


def test_there_are_answers_to_compare_with() -> None:
    """The comparison does not pass because there is nothing to compare."""
    assert NAMES
    for name in NAMES:
        head, records = read(name)
        assert head["sets"] == len(records) > 300
        assert head["wheels"]
        assert all(len(digest) == 64 for digest in head["wheels"].values())


@pytest.mark.parametrize("name", NAMES)
def test_no_prediction_is_wrong(name: str) -> None:
    """Every override that we foretell happens, and whatever we say is refused is refused."""
    wrong = score(name).wrong
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_most_of_what_engines_do_is_foretold(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the engine's refusals and changes, at least this share is known before the launch."""
    found, engine = score(name), name.partition("-")[0]
    head, _ = read(name)
    with capsys.disabled():
        print(
            f"\n{engine} {head['versions'][engine]}, {head['sets']} flag sets: foretold are"
            f" {told(found.refused)} refusals, {told(found.asked)} changes of what was asked,"
            f" {told(found.defaults)} changes of what was not; wrong {len(found.wrong)}"
        )
    missed = "\n".join(f"{count} {line}" for line, count in found.missed.most_common())
    shares = [share(count) for count in (found.refused, found.asked, found.defaults)]
    assert all(real >= floor for real, floor in zip(shares, FLOORS[engine], strict=True)), missed


@pytest.mark.parametrize("name", NAMES)
def test_each_rule_about_arguments_was_put_to_the_engine(name: str) -> None:
    """No rule stands only because no set comes near it; those that nobody could ask are named, and are few."""
    engine, (head, _) = name.partition("-")[0], read(name)
    made = [rule.id for rule in judged(engine) if rule.covers(head["versions"][engine])]
    missing = {rule for rule in made if not score(name).applied[rule]}
    assert missing <= NOT_ASKED, missing - NOT_ASKED


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_what_an_engine_takes_without_a_word_it_does_take(engine: str) -> None:
    """Where we mean to be the stricter one, the engine is not: some set to which the rule applies was taken."""
    taken = {rule for name in NAMES if name.partition("-")[0] == engine for rule in score(name).taken}
    stricter = {rule.id for rule in judged(engine) if rule.engine == "accepts"}
    assert stricter - taken <= NOT_ASKED


def test_a_changed_answer_is_noticed() -> None:
    """The comparison itself can fail: a changed value and a refusal that did not happen are both listed."""
    found = Score()
    compare("set", {"page-size": 1}, {"page-size": 64}, {}, {"page-size": 32}, found)
    assert found.wrong == ["set: page-size is 32, and we say 64"]
    assert found.asked == {True: 1}
