"""What we foretell of an engine's arguments is what the engine itself said, set by set.

The fixtures are answers of the real SGLang and vLLM to a few hundred generated flag sets (``scripts/truth``; ``make
truth`` asks them anew). A prediction may be silent; it may not be wrong.
"""

from __future__ import annotations

import collections
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.core.servers import kind_of
from agent.core.servers import predict_sglang as sglang_claims
from agent.core.servers import predict_vllm as vllm_claims
from agent.core.servers.engine import Engine
from agent.core.servers.predict import Prediction, Target, predict_sglang, predict_vllm, release

# `make truth` points at answers that are not in the repository yet.
FIXTURES = Path(os.environ.get("TRUTH_FIXTURES") or Path(__file__).parent)
NAMES = sorted(path.stem for path in FIXTURES.glob("*.jsonl"))
FLOORS = {"sglang": (0.9, 0.99, 0.92), "vllm": (0.85, 0.75, 0.95)}
"""The shares of refusals, of changes of what was asked, and of what was not, that must be foretold."""
PREDICT: dict[str, Callable[[Mapping[str, Any], str, Target | None], Prediction]] = {
    "sglang": predict_sglang,
    "vllm": predict_vllm,
}
CLAIMS = {"sglang": sglang_claims.CLAIMS, "vllm": vllm_claims.CLAIMS}
MODEL = Target(architecture="LlamaForCausalLM", context=2048, heads=8, draft_context=2048)
DERIVED = {
    *("mem-fraction-static", "cuda-graph-max-bs", "speculative-draft-attention-backend", "max-prefill-tokens"),
    *("max-num-scheduled-tokens", "async-scheduling", "speculative.model", "max-num-batched-tokens"),
}
"""What the engine works out from the card, or repeats from another field: not foretold, not counted."""


@dataclass
class Score:
    """How predictions and answers compare."""

    wrong: list[str] = field(default_factory=list)
    refused: collections.Counter[bool] = field(default_factory=collections.Counter)
    asked: collections.Counter[bool] = field(default_factory=collections.Counter)
    defaults: collections.Counter[bool] = field(default_factory=collections.Counter)
    missed: collections.Counter[str] = field(default_factory=collections.Counter)
    stricter: collections.Counter[str] = field(default_factory=collections.Counter)
    claims: set[str] = field(default_factory=set)


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
            found |= {f"speculative.{key.replace('_', '-')}": entry for key, entry in entries.items()}
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
    found = Score()
    for record in records:
        hopper = record.get("hopper")
        given = flags(engine, record["argv"])
        foretold = PREDICT[engine.name](given, head["versions"][engine.name], replace(MODEL, hopper=hopper))
        tell = f"{' '.join(record['argv'])}{' [hopper]' if hopper else ''}"
        if foretold.refused:
            found.claims.add(foretold.refused)
        if refusal := record.get("refused"):
            found.refused[foretold.refused is not None] += 1
            if foretold.refused is None:
                found.missed[f"refused: {refusal['line'] or refusal['in']}"] += 1
            continue
        found.stricter.update(foretold.stricter)
        if foretold.refused is not None:
            found.wrong.append(f"{tell}: taken, and we say that {foretold.refused}")
            continue
        defaults = head["defaults"]
        if hopper is not None:
            defaults = defaults["hopper" if hopper else "unknown"]
        plain = {engine.canonical(key): item for key, item in defaults.items()}
        real = {**plain, **{engine.canonical(key): item for key, item in record["resolved"].items()}}
        compare(tell, spread(given), foretold.overrides, plain, real, found)
    return found


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
        if key.startswith("speculative.prompt-lookup") and in_effect == 0:
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
def test_each_claim_was_put_to_the_engine(name: str) -> None:
    """No claim stands only because no set comes near it, be it a refusal or where we mean to be the stricter one."""
    head, _ = read(name)
    engine = name.partition("-")[0]
    version = release(head["versions"][engine])
    made = [claim for claim in CLAIMS[engine] if release(claim.since) <= version <= release(claim.until)]
    assert {claim.says for claim in made if claim.engine} <= score(name).claims
    assert {claim.says for claim in made if not claim.engine} <= set(score(name).stricter)


def test_a_changed_answer_is_noticed() -> None:
    """The comparison itself can fail: a changed value and a refusal that did not happen are both listed."""
    found = Score()
    compare("set", {"page-size": 1}, {"page-size": 64}, {}, {"page-size": 32}, found)
    assert found.wrong == ["set: page-size is 32, and we say 64"]
    assert found.asked == {True: 1}
