"""What vLLM makes of its flags. It is loud where SGLang is silent: most of what it does is to refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from .asked import Asked, Target

HEADS = ("eagle", "eagle3")
SEQUENCES = 128
"""The engine's smallest default of max-num-seqs; it is never more than a step's tokens."""


class Vllm(Asked):
    """The flags as the engine will have resolved them."""

    def __init__(self, flags: Mapping[str, Any], version: str, target: Target) -> None:
        super().__init__({}, version, target)
        for name, value in flags.items():  # in their order: of "x" and "no-x" the last one counts
            if name.startswith("no-") and value is True:
                self.flags[name[3:]] = False
            elif value is not None and value is not False:
                self.flags[name] = value

    @cached_property
    def speculative(self) -> dict[str, Any] | None:
        """The speculative configuration; None when there is none or it is not an object."""
        value = self.flags.get("speculative-config")
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return None
        return dict(value) if isinstance(value, dict) else None

    def of(self, name: str) -> Any:
        """Return what the speculative configuration says of ``name``."""
        return (self.speculative or {}).get(name)

    def count(self, name: str) -> float | None:
        """Return a number of the speculative configuration."""
        value = self.of(name)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    @property
    def context(self) -> float | None:
        """The longest sequence in effect."""
        return self.number("max-model-len", self.target.context)  # type: ignore[no-any-return]

    @property
    def budget(self) -> float | None:
        """How many tokens a step takes; None when the engine's default for the machine decides."""
        return self.number("max-num-batched-tokens")  # type: ignore[no-any-return]

    @property
    def chunks(self) -> bool:
        """Whether prompts are taken in chunks."""
        return self.flags.get("enable-chunked-prefill") is not False

    @property
    def method(self) -> str | None:
        """The method in effect: what is asked for, or what the draft's own path says; None when unknown."""
        asked, model = self.of("method"), self.of("model")
        if self.speculative is None or asked in ("ngram", *HEADS):
            return asked if isinstance(asked, str) else None
        if asked is None and model in ("ngram", "[ngram]"):
            return "ngram"
        path = model.lower() if isinstance(model, str) else ""
        if asked in (None, "draft_model", "mtp"):
            # In this order: a path that holds both words is taken for EAGLE.
            found = "eagle" if "eagle-" in path else "eagle3" if "eagle3" in path else None
            return found or (asked if asked == "draft_model" else None)
        return None

    def facts(self) -> dict[str, Any]:
        """Return what rules read as ``effective``; null where it is not known."""
        given = "speculative-config" in self.flags
        return {
            "speculative": self.speculative or {},
            "speculates": self.speculative is not None,
            "unreadable": given and self.speculative is None,
            "asked_method": self.of("method"),
            "method": self.method,
            "context": self.context,
            "model_context": self.target.context,
            "draft_context": self.target.draft_context,
            "architecture": self.target.architecture,
            "heads": self.target.heads,
            "budget": self.budget,
            "chunks": self.chunks,
            "ranks": self.number("tensor-parallel-size", 1),
        }


def overrides(asked: Vllm) -> Iterator[tuple[str, Any]]:
    """Yield flags with the value that they will have; what is as asked is dropped by the caller.

    Parts of the speculative configuration are named ``speculative-config.prompt-lookup-max``.
    """
    length, whole = asked.flags.get("max-model-len"), asked.target.context
    if length in {-1, "auto"} and whole is not None:
        yield "max-model-len", whole
    budget = asked.budget
    if budget is not None and budget < SEQUENCES and not asked.given("max-num-seqs"):
        yield "max-num-seqs", budget
    if asked.speculative is None:
        return
    method = asked.method
    if method is not None and asked.of("method") != method:
        yield "speculative-config.method", method
    if method == "ngram":
        yield from _lookup(asked)
    elif method is not None and asked.of("draft_tensor_parallel_size") is None:
        yield "speculative-config.draft-tensor-parallel-size", asked.number("tensor-parallel-size", 1)


def _lookup(asked: Vllm) -> Iterator[tuple[str, Any]]:
    low, high = asked.count("prompt_lookup_min"), asked.count("prompt_lookup_max")
    # Who gives one of the two gets it for both: n-grams of one length only.
    if low is None:
        yield "speculative-config.prompt-lookup-min", high if high is not None else 5
    if high is None:
        yield "speculative-config.prompt-lookup-max", low if low is not None else 5
