"""What vLLM refuses and changes. It is loud where SGLang is silent: most of this is refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from .predict import Asked, Claim, Target

LOOKED = "0.32.0"
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


def _below(value: float | None, low: float) -> bool:
    return value is not None and value < low


def _lookup_crossed(asked: Vllm) -> bool:
    low, high = asked.count("prompt_lookup_min"), asked.count("prompt_lookup_max")
    return asked.of("method") == "ngram" and low is not None and high is not None and low > high


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "the speculative configuration is not a JSON object",
        lambda a: isinstance(a.flags.get("speculative-config"), str) and a.speculative is None,
    ),
    Claim(
        "the context is longer than the model's",
        lambda a: a.target.context is not None and a.number("max-model-len", 0) > a.target.context,
    ),
    Claim(
        "without chunks a step takes at least one whole sequence",
        lambda a: not a.chunks and a.budget is not None and a.context is not None and a.budget < a.context,
    ),
    Claim(
        "a step takes at least a token of every sequence",
        lambda a: a.budget is not None and a.budget < a.number("max-num-seqs", 0),
    ),
    Claim("a step takes at least one token", lambda a: _below(a.budget, 1)),
    Claim("at least one sequence runs", lambda a: a.number("max-num-seqs", 1) < 1),
    Claim("the fraction of memory is within (0, 1]", lambda a: not 0 < a.number("gpu-memory-utilization", 0.9) <= 1),
    Claim("a block holds at least one token", lambda a: a.number("block-size", 1) < 1),
    Claim(
        "heads do not divide among the ranks",
        lambda a: a.target.heads is not None and a.target.heads % max(1, a.number("tensor-parallel-size", 1)) != 0,
    ),
    Claim("at least one token is drafted", lambda a: _below(a.count("num_speculative_tokens"), 1)),
    Claim(
        "a draft without a number of tokens",
        lambda a: (
            a.of("method") in (*HEADS, "draft_model", "ngram", None)
            and a.speculative is not None
            and a.of("num_speculative_tokens") is None
        ),
    ),
    Claim(
        "this method needs a draft",
        lambda a: a.of("method") in (*HEADS, "draft_model", "medusa") and a.of("model") is None,
    ),
    Claim(
        "neither a method nor a draft",
        lambda a: a.speculative is not None and a.of("method") is None and a.of("model") is None,
    ),
    Claim(
        "methods are spelled in small letters",
        lambda a: isinstance(a.of("method"), str) and a.of("method") != a.of("method").lower(),
    ),
    Claim(
        "this model has no layers that draft",
        lambda a: a.of("method") == "mtp" and a.of("model") is None and a.target.architecture == "LlamaForCausalLM",
    ),
    Claim(
        "n-grams do not go with asynchronous scheduling",
        lambda a: a.method == "ngram" and a.given("async-scheduling"),
        since=LOOKED,
    ),
    Claim(
        "the draft's context is longer than its model's",
        lambda a: (
            a.target.draft_context is not None
            and a.method not in {None, "ngram"}
            and (a.count("max_model_len") or 0) > a.target.draft_context
        ),
    ),
    Claim(
        "the shortest n-gram is longer than the longest",
        _lookup_crossed,
    ),
    Claim("an n-gram has at least one token", lambda a: _below(a.count("prompt_lookup_min"), 1)),
    Claim(
        "disable_by_batch_size is gone",
        lambda a: a.of("disable_by_batch_size") is not None,
        since=LOOKED,
    ),
    Claim(
        "max-num-partial-prefills is gone",
        lambda a: a.given("max-num-partial-prefills"),
        since=LOOKED,
    ),
    Claim(
        "a draft is split over one rank, or over as many as its target",
        lambda a: (
            a.method not in {None, "ngram"}
            and a.count("draft_tensor_parallel_size") not in {None, 1, a.number("tensor-parallel-size", 1)}
        ),
    ),
    # The engine takes all of the following, and the launch or the measurement is lost later.
    Claim(
        "a fraction of memory that leaves nothing for graphs and libraries",
        lambda a: 0.98 < a.number("gpu-memory-utilization", 0.9) <= 1,
        engine=False,
    ),
    Claim(
        "kernels want blocks of 16 tokens or multiples",
        lambda a: a.number("block-size", 16) >= 1 and a.number("block-size", 16) % 16 != 0,
        engine=False,
    ),
    Claim(
        "a context of the draft's own is read by nothing",
        lambda a: a.of("max_model_len") is not None,
        engine=False,
    ),
)


def overrides(asked: Vllm) -> Iterator[tuple[str, Any]]:
    """Yield flags with the value that they will have; what is as asked is dropped by the caller.

    Parts of the speculative configuration are named ``speculative.prompt-lookup-max``.
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
        yield "speculative.method", method
    if method == "ngram":
        yield from _lookup(asked)
    elif method is not None and asked.of("draft_tensor_parallel_size") is None:
        yield "speculative.draft-tensor-parallel-size", asked.number("tensor-parallel-size", 1)


def _lookup(asked: Vllm) -> Iterator[tuple[str, Any]]:
    low, high = asked.count("prompt_lookup_min"), asked.count("prompt_lookup_max")
    # Who gives one of the two gets it for both: n-grams of one length only.
    if low is None:
        yield "speculative.prompt-lookup-min", high if high is not None else 5
    if high is None:
        yield "speculative.prompt-lookup-max", low if low is not None else 5
