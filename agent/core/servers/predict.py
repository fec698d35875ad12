"""What an engine will make of a set of flags, foretold before anybody waits for a launch. Pure.

These are claims about programs of other people. ``tests/truth`` holds every one of them against what the engines
themselves answered; nothing belongs here that was only read somewhere. What is not known (the card, the model's
architecture) is left open rather than guessed: a prediction that is silent costs a launch, a wrong one costs trust.

Here is what an engine changes, and the numbers that follow from flags. What it refuses, and what it takes and should
not, are rules (``rules/*.yaml``); they read those numbers as ``effective``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import predict_sglang, predict_vllm
from .asked import Target, release

GENERATIONS: Mapping[str, tuple[str, ...]] = {"sglang": ("0.5.3", "0.5.9", "0.5.23"), "vllm": ("0.11.0", "0.32.0")}
"""Releases of each kind that differ from the one before; newer ones are read like the last."""


@dataclass(frozen=True)
class Foretold:
    """What an engine of one release will make of flags.

    ``overrides`` holds flags, by their own names, whose value in effect will differ from what was asked for or, where
    nobody asked, from what it is without the other flags. ``facts`` is what rules read as ``effective``.
    """

    overrides: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def generations(kind: str, version: str) -> tuple[str, ...]:
    """Return the releases to be judged by: this one; without a version, or with a part of one, all that it may be."""
    known = GENERATIONS.get(kind, ("",))
    given = release(version)
    if len(given) >= 3:
        return (version,)
    return tuple(one for one in known if release(one)[: len(given)] == given) or (version,)


def foretell(kind: str, flags: Mapping[str, Any], version: str, target: Target | None = None) -> Foretold:
    """Return what a server of this kind and release makes of flags under their own names (``page-size``)."""
    asked: predict_sglang.Sglang | predict_vllm.Vllm
    if kind == "sglang":
        asked = predict_sglang.Sglang(flags, version, target or Target())
        found = dict(predict_sglang.overrides(asked))
    elif kind == "vllm":
        asked = predict_vllm.Vllm(flags, version, target or Target())
        found = dict(predict_vllm.overrides(asked))
    else:
        return Foretold()
    return Foretold({name: value for name, value in found.items() if asked.flags.get(name) != value}, asked.facts())
