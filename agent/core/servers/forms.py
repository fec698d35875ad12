"""How SGLang and vLLM write their logs, release by release: one table a kind, the oldest release first.

A generation begins with a release and lasts until the next one. Its ``signs`` are lines that only it writes,
``phases`` mark the course of a start, ``announced`` are words of warnings that say which flag was changed, rarely to
what. A log is read with the forms of all generations, the newest first: a line has one meaning whoever wrote it, and
nobody has looked at the releases in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import re2

from .asked import release

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Generation:
    """What the logs of a release and its successors look like. All patterns are RE2."""

    first: str
    """The release that somebody has read."""
    signs: tuple[str, ...]
    """Lines that no earlier release writes."""
    phases: Pairs
    """(pattern, phase), to be tried in this order."""
    announced: Pairs = ()
    """(words, flag)."""


_SGLANG_TAIL: Pairs = (
    (r"Memory pool end", "MEMORY_POOL"),
    (r"Load weight (?:begin|end)|Loading safetensors checkpoint shards", "LOAD_WEIGHTS"),
    (r"Init torch distributed|is using nccl==", "NCCL_INIT"),
)
_SGLANG_HEAD: Pairs = (
    (r"The server is fired up and ready to roll", "READY"),
    (r"Uvicorn running on|Started server process", "HTTP_BIND"),
    (r"max_total_num_tokens=", "SCHEDULER_UP"),
)
_DRAFT: Pairs = ((r"type=\S*(?:Eagle|EAGLE|NextN|MTP|Draft)", "DRAFT_INIT"),)
_PRINTED: Pairs = ((r"server_args=ServerArgs\(", "ARGUMENTS"),)

SGLANG = (
    Generation(
        "0.5.3",
        (r"Decode batch\. #", r"Load weight end\. type=", r"server_args=ServerArgs\(.*\bhybrid_kvcache_ratio="),
        (
            *_SGLANG_HEAD,
            (r"Capture draft (?:extend )?cuda graph", "CAPTURE_DRAFT"),
            *_DRAFT,
            (r"Capture cuda graph end", "CAPTURED"),
            (r"Capture cuda graph|Capturing batches", "CAPTURE"),
            (r"KV Cache is allocated", "MEMORY_POOL"),
            *_SGLANG_TAIL,
            *_PRINTED,
        ),
        (
            ("speculative_num_draft_tokens is adjusted to", "speculative-num-draft-tokens"),
            ("Max running requests is reset to", "max-running-requests"),
            ("Overlap scheduler is disabled", "disable-overlap-schedule"),
            ("Mixed chunked prefill is disabled", "enable-mixed-chunk"),
            ("mixed chunked prefill are disabled", "enable-mixed-chunk"),
            ("chunked prefill size is adjusted to", "chunked-prefill-size"),
            ("turn off --chunked-prefill-size", "chunked-prefill-size"),
            ("change page_size to", "page-size"),
            ("changing page_size from", "page-size"),
            ("Disabling radix cache", "disable-radix-cache"),
            ("disabling radix cache", "disable-radix-cache"),
            ("Radix cache is disabled", "disable-radix-cache"),
            ("radix cache is disabled", "disable-radix-cache"),
            ("KV cache is forced as chunk cache", "disable-radix-cache"),
            ("Cuda graph is disabled", "disable-cuda-graph"),
            ("is larger than the profiled value", "max-total-tokens"),
            ("Setting attention backend to", "attention-backend"),
            ("Sampling backend is set to", "sampling-backend"),
            ("expert parallel size is adjusted to", "expert-parallel-size"),
            ("Pipeline parallelism is incompatible with overlap", "disable-overlap-schedule"),
        ),
    ),
    Generation(
        "0.5.9",
        (r"Decode batch(?: \[\d+\])?, ", r"Load weight end\. elapsed=", r"server_args=ServerArgs\(.*\bgrpc_mode="),
        (
            *_SGLANG_HEAD,
            (r"Capture draft (?:extend )?cuda graph", "CAPTURE_DRAFT"),
            *_DRAFT,
            (r"Capture cuda graph end", "CAPTURED"),
            (r"Capture (?:cuda|piecewise CUDA) graph|Capturing batches", "CAPTURE"),
            (r"KV Cache is allocated", "MEMORY_POOL"),
            *_SGLANG_TAIL,
            *_PRINTED,
        ),
        (
            ("overlap schedule is turned on", "disable-overlap-schedule"),
            ("Disabling overlap schedule", "disable-overlap-schedule"),
        ),
    ),
    Generation(
        "0.5.23",
        (r"server_args=\{", r"CUDA graph (?:begin|end)\. (?:backend|elapsed|bs)=", r"decode CUDA graph"),
        (
            *_SGLANG_HEAD,
            (r"(?i)capture .*draft.* cuda graph", "CAPTURE_DRAFT"),
            *_DRAFT,
            (r"(?i)capture (?:\w+ )?(?:decode |verify |prefill )?cuda graph end", "CAPTURED"),
            (r"(?i)capture (?:\w+ )?(?:decode |verify |prefill )?cuda graph|Capturing batches", "CAPTURE"),
            *_SGLANG_TAIL,
            (r"server_args=\{", "ARGUMENTS"),
        ),
        (
            ("chunked prefill size is adjusted from", "chunked-prefill-size"),
            ("Chunked prefill is disabled", "chunked-prefill-size"),
            ("Radix cache and chunked prefill are disabled", "disable-radix-cache"),
            ("CUDA graph is disabled", "disable-cuda-graph"),
            ("max_running_requests was reduced from", "max-running-requests"),
            ("overriding speculative_num_steps", "speculative-num-steps"),
            ("overriding speculative_eagle_topk", "speculative-eagle-topk"),
            ("speculative_num_draft_tokens is set to", "speculative-num-draft-tokens"),
            ("speculative_adaptive disabled", "speculative-adaptive"),
            ("promoting --speculative-algorithm", "speculative-algorithm"),
            ("overriding --speculative-attention-mode", "speculative-attention-mode"),
            ("draft worker does not support attention_backend", "speculative-draft-attention-backend"),
            ("overriding KV cache dtype", "kv-cache-dtype"),
            ("Overriding --attention-backend", "attention-backend"),
            ("Fallback load_format to", "load-format"),
            ("attention data-parallel groups. This is deprecated", "attn-dp-size"),
        ),
    ),
)

_VLLM: Pairs = (
    (r"Application startup complete", "READY"),
    (r"Starting vLLM (?:API )?server", "HTTP_BIND"),
    (r"init engine \(profile, create kv cache", "ENGINE_UP"),
    (r"Graph capturing finished|Capturing CUDA graph", "CAPTURE"),
    (r"Available KV cache memory|GPU KV cache size|Maximum concurrency for", "KV_CACHE"),
    (r"torch\.compile takes|Compiling a graph|Dynamo bytecode transform|Cache the graph", "COMPILE"),
    (
        r"Model loading took|Loading safetensors checkpoint shards|Starting to load model|Loading weights",
        "LOAD_WEIGHTS",
    ),
    (r"vLLM is using nccl==", "NCCL_INIT"),
    (r"Initializing a V1 LLM engine", "ENGINE_INIT"),
    (r"vLLM API server version|non-default args", "ARGUMENTS"),
)

VLLM = (
    Generation("0.11.0", (r"Starting vLLM API server \d+ on", r"LLM engine \(v0\.1\d"), _VLLM),
    Generation("0.32.0", (r"Starting vLLM server on", r"LLM engine \(v0\.3\d"), _VLLM),
)

GENERATIONS = {"sglang": SGLANG, "vllm": VLLM}
_TOLD = {
    "vllm": (r"vLLM API server version v?(\d[\w.+]*)", r"LLM engine \(v(\d[\w.+]*)\)"),
    "sglang": (r"\bsglang(?:\[\w+\])?[ =]=?v?(\d+\.\d+\.\d+\w*)",),
}
"""Lines in which an engine says its release itself."""
_HEAD = 4000


def told(kind: str, lines: Iterable[str]) -> str:
    """Return the release that a log names; '' when it names none."""
    for line in lines:
        for pattern in _TOLD.get(kind, ()):
            if match := re2.search(pattern, line[:_HEAD]):
                return str(match[1])
    return ""


def generation(kind: str, lines: Sequence[str], version: str = "") -> Generation | None:
    """Return the generation of a log: by the release if that is known, else by the newest sign in it."""
    known = GENERATIONS.get(kind, ())
    numbers = release(version or told(kind, lines))
    if numbers:
        found = [one for one in known if release(one.first) <= numbers]
        return found[-1] if found else (known[0] if known else None)
    for one in reversed(known):
        if any(re2.search(sign, line) for line in lines for sign in one.signs):
            return one
    return None


def phases(kind: str) -> Pairs:
    """Return what marks the course of a start, the newest generation's forms first."""
    return tuple(dict.fromkeys(pair for one in reversed(GENERATIONS[kind]) for pair in one.phases))


def announced(kind: str) -> Pairs:
    """Return the words of every generation's warnings, each with the flag that it is about."""
    return tuple(dict.fromkeys(pair for one in GENERATIONS[kind] for pair in one.announced))
