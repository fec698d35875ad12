"""What SGLang refuses and changes: claims as data, values computed in the order in which the engine resolves them.

0.5.3, 0.5.9 and 0.5.23 were asked. Between the last two the resolution was rewritten, and where they differ nothing is
said about what lies between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .predict import Asked, Claim

FIRST, OLD, NEW = "0.5.3", "0.5.9", "0.5.23"

EAGLES = ("EAGLE", "EAGLE3", "STANDALONE", "FROZEN_KV_MTP")
KNOWN = (*EAGLES, "NEXTN", "NGRAM", "DFLASH", "DSPARK", "UNO", "NONE")
STEPS, TOPK, TOKENS = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"
DETERMINISTIC = ("fa3", "flashinfer", "triton")
LATER_DETERMINISTIC = ("ascend", "fa4", "intel_xpu")
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


def _tree_too_small(asked: Sglang) -> bool:
    steps, topk, tokens = asked.three
    if not asked.eagle or steps is None or topk is None or tokens is None or topk <= 1:
        return False
    return topk + (steps - 1) * topk * topk < tokens - 1


def _outside(asked: Sglang, name: str, low: float, high: float) -> bool:
    value = asked.number(name)
    return value is not None and not low < value < high


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "no algorithm has this name",
        lambda a: a.algorithm is not None and a.algorithm not in KNOWN,
        since=NEW,
    ),
    Claim(
        "algorithms are spelled in capitals",
        lambda a: a.algorithm is not None and a.algorithm not in {"EAGLE", "EAGLE3", "STANDALONE", "NGRAM"},
        until=OLD,
    ),
    Claim(
        "topk or draft tokens without steps end in an assertion without a message",
        lambda a: a.eagle and not a.given(STEPS) and a.given(TOPK, TOKENS),
    ),
    Claim(
        "steps without topk end in a TypeError",
        lambda a: a.eagle and a.given(STEPS) and not a.given(TOPK),
    ),
    Claim(
        "flex attention does not speculate",
        lambda a: a.algorithm is not None and a.word("attention-backend") == "flex_attention",
    ),
    Claim(
        "this algorithm does not go with data-parallel attention",
        lambda a: a.algorithm in {"STANDALONE", "NGRAM"} and a.attention[1] > 1,
    ),
    Claim(
        "speculation does not go with pipeline parallelism outside a prefill server",
        lambda a: (
            a.algorithm is not None
            and a.number("pipeline-parallel-size", 1) > 1
            and not (a.algorithm == "EAGLE" and a.modern and a.word("disaggregation-mode") == "prefill")
        ),
    ),
    Claim(
        "mixed chunks do not go with pipeline parallelism",
        lambda a: a.given("enable-mixed-chunk") and a.number("pipeline-parallel-size", 1) > 1,
        until=OLD,
    ),
    Claim(
        "DFLASH needs a draft",
        lambda a: a.algorithm == "DFLASH" and not a.given("speculative-draft-model-path"),
        since=NEW,
    ),
    Claim(
        "trtllm_mha drafts a chain only, no tree",
        lambda a: a.eagle and a.topk > 1 and a.word("attention-backend") == "trtllm_mha",
    ),
    Claim(
        "a tree of drafts on pages larger than 1 is for few backends",
        lambda a: (
            a.eagle
            and a.topk > 1
            and a.page > 1
            and a.backend not in {"flashinfer", "fa3", *(("triton",) if a.modern else ())}
            and (a.backend is not None or a.first)
        ),
    ),
    Claim(
        "n-grams on pages larger than 1 are for flashinfer",
        lambda a: (
            a.algorithm == "NGRAM"
            and a.topk > 1
            and a.page > 1
            and a.backend != "flashinfer"
            and (a.backend or a.first)
        ),
    ),
    Claim(
        "the hierarchical cache needs the radix cache",
        lambda a: a.given("enable-hierarchical-cache") and a.given("disable-radix-cache"),
    ),
    Claim(
        "this backend is for Blackwell cards",
        lambda a: a.target.hopper is True and a.word("attention-backend") in {"trtllm_mla", "cutedsl_mla"},
    ),
    Claim(
        "this backend is for Blackwell cards in this release",
        lambda a: a.target.hopper is True and a.word("attention-backend") == "trtllm_mha",
        until=OLD,
    ),
    Claim(
        "this backend is gone",
        lambda a: a.word("attention-backend") == "cutlass_mla",
        since=NEW,
    ),
    Claim(
        "this flag came later",
        lambda a: a.given("attn-dp-size", "cuda-graph-max-bs-decode"),
        until=OLD,
    ),
    Claim(
        "cuda-graph-max-bs is two flags now, and its old name is ambiguous",
        lambda a: a.given("cuda-graph-max-bs"),
        since=NEW,
    ),
    Claim(
        "tensor-parallel ranks do not divide among the groups of data-parallel attention",
        lambda a: a.attention[1] > 1 and a.number("tensor-parallel-size", 1) % a.attention[1] != 0,
    ),
    Claim(
        "replicas together with data-parallel attention are not supported",
        lambda a: a.attention[0] > 1 and a.attention[1] > 1,
        since=NEW,
    ),
    Claim(
        "ranks do not divide among the nodes",
        lambda a: (
            a.number("tensor-parallel-size", 1) * a.number("pipeline-parallel-size", 1) % max(1, a.number("nnodes", 1))
            != 0
        ),
    ),
    Claim(
        "replicas do not span nodes",
        lambda a: a.attention[0] > 1 and a.number("nnodes", 1) > 1,
    ),
    Claim(
        "a chunk is not a whole number of pages",
        lambda a: a.chunk is not None and a.chunk > 0 and a.chunk % a.page != 0,
    ),
    Claim(
        "this backend is not deterministic",
        lambda a: (
            a.given("enable-deterministic-inference")
            and (a.given("attention-backend") or a.first)
            and a.word("attention-backend") not in (*DETERMINISTIC, *(LATER_DETERMINISTIC if a.modern else ()))
        ),
    ),
    Claim(
        "conservativeness is not negative",
        lambda a: a.number("schedule-conservativeness", 1) < 0,
        since=OLD,
    ),
    Claim(
        "the context is longer than the model's",
        lambda a: a.target.context is not None and a.number("context-length", 0) > a.target.context,
        since=OLD,
    ),
    # The engine takes all of the following, and the launch or the measurement is lost later.
    Claim("a fraction of memory outside (0, 1)", lambda a: _outside(a, "mem-fraction-static", 0, 1), engine=False),
    Claim("no request may run", lambda a: a.number("max-running-requests", 1) < 1, engine=False),
    Claim("the tree has fewer candidates than draft tokens", _tree_too_small, engine=False),
    Claim(
        "a tree without a number of draft tokens",
        lambda a: a.eagle and a.topk > 1 and a.three[2] is None,
        engine=False,
    ),
    Claim(
        "a draft that nothing uses",
        lambda a: a.given("speculative-draft-model-path") and not a.speculates,
        engine=False,
    ),
    Claim(
        "an algorithm that needs a draft has none",
        lambda a: a.algorithm in {"EAGLE3", "STANDALONE"} and not a.given("speculative-draft-model-path"),
        engine=False,
    ),
    Claim(
        "n-grams of fewer tokens than branches take no step",
        lambda a: a.algorithm == "NGRAM" and a.three[0] == 0,
        since=NEW,
        engine=False,
    ),
)


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
