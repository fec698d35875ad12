"""What SGLang makes of its flags: values in the order in which the engine resolves them.

0.5.3, 0.5.9 and 0.5.23 were asked. Between the last two the resolution was rewritten, and where they differ nothing is
said about what lies between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .asked import Asked

EAGLES = ("EAGLE", "EAGLE3", "STANDALONE", "FROZEN_KV_MTP")
STEPS, TOPK, TOKENS = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"
PAGES = {
    "flashmla": ((64,), 64),
    "trtllm_mla": ((32, 64), 64),
    "trtllm_mha": ((16, 32, 64, 128), 64),
    "hpc_ops": ((64,), 64),
    "cutlass_mla": ((128,), 128),
}
"""The page sizes that a backend takes, and what it makes of any other."""
AUTOMATIC = {"LlamaForCausalLM": (5, 4, 8), "Grok1ForCausalLM": (5, 4, 8), "Grok1VForCausalLM": (5, 4, 8)}
"""Steps, topk and draft tokens where none is given, by architecture; everything else gets (3, 1, 4)."""


class Sglang(Asked):
    """The flags as the engine will have resolved them."""

    @property
    def modern(self) -> bool:
        """Whether this release has the rewritten resolution."""
        return self.version >= (0, 5, 23)

    @property
    def first(self) -> bool:
        """Whether the attention backend is chosen only after the arguments were judged."""
        return self.version <= (0, 5, 3)

    @property
    def algorithm(self) -> str | None:
        """The algorithm under the name that the engine works with."""
        word = self.word("speculative-algorithm")
        if word is None:
            return None
        name = word.upper() if self.modern else word
        return "EAGLE" if name == "NEXTN" else name

    @property
    def speculates(self) -> bool:
        """Whether drafts are made."""
        return self.algorithm not in {None, "NONE"}

    @property
    def eagle(self) -> bool:
        """Whether the algorithm is one of those that take steps, topk and draft tokens."""
        return self.algorithm in EAGLES[:3]

    @property
    def three(self) -> tuple[int | None, int | None, int | None]:
        """Steps, topk and draft tokens in effect; None for what is unknown."""
        steps, topk, tokens = (self.number(name) for name in (STEPS, TOPK, TOKENS))
        if self.algorithm == "NGRAM":
            breadth = self.number("speculative-ngram-max-bfs-breadth", 10)
            tokens = tokens if tokens is not None else 12
            chosen = tokens // breadth if self.modern and breadth else None
            return (steps if steps is not None else chosen), breadth, tokens
        if self.algorithm == "DFLASH":
            return 1, 1, tokens  # the draft's own configuration says how many where nobody does
        if not self.eagle:
            return steps, topk, tokens
        if steps is None:
            if self.algorithm == "STANDALONE":
                return 3, 1, 4
            architecture = self.target.architecture
            return AUTOMATIC.get(architecture, (3, 1, 4)) if architecture is not None else (None, None, None)
        return steps, topk, steps + 1 if topk == 1 else tokens

    @property
    def topk(self) -> int:
        """How many branches a draft has; 1 when that is not known."""
        return self.three[1] or 1

    @property
    def attention(self) -> tuple[int, int]:
        """(replicas, groups of data-parallel attention)."""
        replicas, groups = self.number("data-parallel-size", 1), self.number("attn-dp-size", 1)
        if self.given("enable-dp-attention"):
            return (1, replicas) if groups == 1 else (replicas, groups)
        return replicas, groups

    @property
    def backend(self) -> str | None:
        """The attention backend in effect; None when it depends on what is not known."""
        asked = self.word("attention-backend")
        if self.first:
            return asked  # the scheduler chooses, after all the checks
        if asked is None and self.target.hopper and not self.given("enable-deterministic-inference"):
            # What the command line says counts here: a topk chosen later, or nothing, does not.
            topk, page = self.number(TOPK), self.number("page-size")
            asked = "fa3" if topk is None or (topk == 1 and page in (None, 1)) else "flashinfer"
        elif asked is None and self.given("enable-deterministic-inference"):
            asked = "fa3" if self.target.hopper else None  # Blackwell has others
        return "triton" if asked == "fa3" and self.word("kv-cache-dtype") == "fp8_e5m2" else asked

    @property
    def page(self) -> int:
        """The page size in effect."""
        asked = self.number("page-size")
        takes, instead = PAGES.get(self.word("attention-backend") or "", ((), 0))
        if instead and asked not in takes:
            return instead
        return int(asked) if asked is not None else 1

    @property
    def chunk(self) -> int | None:
        """The size of a prefill's chunk in effect; None when it comes from the card's memory."""
        asked = self.number("chunked-prefill-size", 8192 if self.target.hopper else None)
        groups = self.attention[1]
        return None if asked is None else asked // groups if groups > 0 else asked

    def facts(self) -> dict[str, Any]:
        """Return what rules read as ``effective``; null where it is not known."""
        steps, topk, tokens = self.three
        return {
            "algorithm": self.algorithm,
            "speculates": self.speculates,
            "eagle": self.eagle,
            "steps": steps,
            "topk": topk,
            "branches": self.topk,
            "tokens": tokens,
            "backend": self.backend,
            "page": self.page,
            "chunk": self.chunk,
            "replicas": self.attention[0],
            "groups": self.attention[1],
            "ranks": self.number("tensor-parallel-size", 1),
            "stages": self.number("pipeline-parallel-size", 1),
            "nodes": self.number("nnodes", 1),
            "first": self.first,
            "modern": self.modern,
            "hopper": self.target.hopper,
            "context": self.target.context,
        }


def overrides(asked: Sglang) -> Iterator[tuple[str, Any]]:
    """Yield flags with the value that they will have; what is as asked is dropped by the caller."""
    if asked.algorithm is not None:
        yield "speculative-algorithm", asked.algorithm
    if asked.eagle or asked.algorithm in {"NGRAM", "DFLASH", "FROZEN_KV_MTP"}:
        if not asked.given("max-running-requests"):
            yield "max-running-requests", 48
        for name, value in zip((STEPS, TOPK, TOKENS), asked.three, strict=True):
            if value is not None:
                yield name, value
    if asked.given("enable-mixed-chunk") and _unmixed(asked):
        yield "enable-mixed-chunk", False
    yield from _attention(asked)
    yield from _parallel(asked)


def _unmixed(asked: Sglang) -> bool:
    if asked.modern:
        return asked.algorithm in {"STANDALONE", "NGRAM", "FROZEN_KV_MTP", "UNO"}
    return asked.version <= (0, 5, 9) and asked.speculates


def _attention(asked: Sglang) -> Iterator[tuple[str, Any]]:
    backend = asked.backend
    # Without anything said Hopper has fa3: only what other flags make of it is an override.
    if backend is not None and not (backend == "fa3" and asked.target.hopper and not asked.given("attention-backend")):
        yield "attention-backend", backend
    if asked.page != asked.number("page-size", 1):
        yield "page-size", asked.page
    if backend in {"torch_native", "flex_attention"}:
        yield "disable-cuda-graph", True
    if asked.given("enable-deterministic-inference"):
        yield "sampling-backend", "pytorch"
        if backend == "flashinfer" or (asked.first and backend != "fa3"):
            yield "disable-radix-cache", True


def _parallel(asked: Sglang) -> Iterator[tuple[str, Any]]:
    groups = asked.attention[1]
    if asked.given("enable-dp-attention") and asked.modern:
        yield "data-parallel-size", asked.attention[0]
    if asked.given("enable-dp-attention") or groups > 1:
        yield "enable-dp-attention", groups > 1
    if groups > 1:
        if asked.modern:
            yield "attn-dp-size", groups
        yield "schedule-conservativeness", round(asked.number("schedule-conservativeness", 1.0) * 0.3, 6)
        if asked.chunk is not None:
            yield "chunked-prefill-size", asked.chunk
    if asked.number("pipeline-parallel-size", 1) > 1 or (asked.version <= (0, 5, 9) and asked.speculates):
        yield "disable-overlap-schedule", True
