"""Flag sets to ask the real engines about: seeded, so that the same sets come again, and only what tuning touches.

Two thirds are drawn at random, each flag alone at its own rate; the rest walks through what is known to be delicate,
because chance alone would seldom meet, say, a tree of drafts on pages of 64 with one certain backend.
Standard library only: this file is read inside the engines' environments.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from functools import partial

Argv = list[str]
SEED = 20231

# Directories that models.py writes: a target and drafts for it. HEAD is EAGLE under the name of architecture that
# vLLM expects of such a draft.
TARGET, EAGLE, EAGLE3, HEAD = "llama", "llama-eagle", "llama-eagle3", "llama-head"


def sglang(count: int = 420, seed: int = SEED) -> list[Argv]:
    """Return flag sets for SGLang, without the model."""
    rng = random.Random(seed)  # noqa: S311 - not a secret
    sets: list[Argv] = [[], *_sglang_known()]
    while len(sets) < count:
        sets.append(_sglang_random(rng))
    return _distinct(sets)


def _maybe(argv: Argv, rng: random.Random, rate: float, flag: str, *values: object) -> None:
    """Append a flag so often, with one of these values; what is random is drawn in this order."""
    if rng.random() < rate:
        argv.append(f"--{flag}")
        if values:
            argv.append(str(rng.choice(values)))


def _sglang_random(rng: random.Random) -> Argv:
    argv: Argv = []
    maybe = partial(_maybe, argv, rng)
    algorithms = ("EAGLE", "EAGLE", "EAGLE3", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "eagle3")
    if rng.random() < 0.65:
        argv += ["--speculative-algorithm", rng.choice(algorithms)]
        maybe(0.7, "speculative-draft-model-path", EAGLE, EAGLE3, TARGET)
        whole = rng.random() < 0.7
        maybe(1.0 if whole else 0.4, "speculative-num-steps", 1, 2, 3, 5, 8)
        maybe(1.0 if whole else 0.4, "speculative-eagle-topk", 1, 1, 1, 2, 4, 8)
        maybe(1.0 if whole else 0.4, "speculative-num-draft-tokens", 2, 4, 6, 8, 16, 32, 64)
    else:
        maybe(0.1, "speculative-draft-model-path", EAGLE3)
    maybe(0.25, "mem-fraction-static", 0.5, 0.8, 0.88, 0.95, 1.5)
    maybe(0.35, "tp-size", 2, 3, 4, 8)
    maybe(0.15, "dp-size", 2, 3, 4)
    maybe(0.15, "enable-dp-attention")
    maybe(0.08, "pp-size", 2)
    maybe(0.30, "page-size", 1, 16, 32, 64, 128, 100)
    backends = ("triton", "flashinfer", "fa3", "fa4", "flashmla", "trtllm_mha", "trtllm_mla", "torch_native")
    maybe(0.40, "attention-backend", *backends, "flex_attention", "flashinfer", "fa3", "triton")
    maybe(0.30, "chunked-prefill-size", -1, 0, 512, 2048, 4096, 8192, 1000)
    maybe(0.30, "max-running-requests", 0, 1, 16, 48, 64, 256)
    maybe(0.15, "enable-mixed-chunk")
    maybe(0.15, "kv-cache-dtype", "auto", "fp8_e4m3", "fp8_e5m2", "bf16")
    maybe(0.02, "cuda-graph-max-bs", 8, 64, 512)
    maybe(0.10, "cuda-graph-max-bs-decode", 8, 64, 512)
    maybe(0.08, "disable-cuda-graph")
    maybe(0.12, "disable-radix-cache")
    maybe(0.08, "enable-hierarchical-cache")
    maybe(0.12, "disable-overlap-schedule")
    maybe(0.08, "enable-deterministic-inference")
    maybe(0.10, "schedule-conservativeness", 0.3, 1.0, -1)
    maybe(0.08, "context-length", 1024, 2048, 2048, 16384)
    maybe(0.04, "nnodes", 2)
    return argv


def _sglang_known() -> Iterator[Argv]:
    spec = ["--speculative-algorithm"]
    names = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "ngram", "Eagle", "NONE", "MEDUSA")
    for name in names:
        yield [*spec, name, "--speculative-draft-model-path", EAGLE3]
        yield [*spec, name]
    trio = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
    for name, values in itertools.product(("EAGLE3", "NGRAM"), ((3, 1, 4), (3, 2, 4))):
        for chosen in itertools.product((False, True), repeat=3):
            given = [(f"--{flag}", str(v)) for flag, v, on in zip(trio, values, chosen, strict=True) if on]
            yield [*spec, name, *itertools.chain.from_iterable(given)]
    whole = [*spec, "EAGLE3", "--speculative-draft-model-path", EAGLE3]
    for steps, topk, tokens in ((1, 1, 16), (3, 1, 7), (5, 1, 6), (3, 4, 2), (1, 4, 16), (3, 4, 64), (2, 2, 8)):
        yield [*whole, *_three(steps, topk, tokens)]
    for backend, page in itertools.product(("flashinfer", "fa3", "triton", "trtllm_mha", "fa4", "flashmla"), (1, 64)):
        yield [*whole, *_three(3, 4, 8), "--attention-backend", backend, "--page-size", str(page)]
    for backend, page in itertools.product(("flashmla", "trtllm_mha", "trtllm_mla", "fa4", "cutlass_mla"), (1, 32, 64)):
        yield ["--attention-backend", backend, "--page-size", str(page)]
    for tp, dp in ((4, 2), (4, 3), (8, 8), (2, 1), (1, 2)):
        yield ["--tp-size", str(tp), "--dp-size", str(dp), "--enable-dp-attention", "--chunked-prefill-size", "8192"]
        yield ["--tp-size", str(tp), "--attn-dp-size", str(dp)]
        yield ["--tp-size", str(tp), "--dp-size", str(dp)]
    for name in ("EAGLE", "EAGLE3", "NGRAM", "STANDALONE"):
        yield [*spec, name, "--enable-mixed-chunk"]
        yield [*spec, name, "--pp-size", "2"]
        yield [*spec, name, "--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"]
        yield [*spec, name, "--disable-overlap-schedule"]
    for page, chunk in ((64, 1000), (64, 4096), (100, 4096), (64, -1)):
        yield ["--page-size", str(page), "--chunked-prefill-size", str(chunk)]
    for argv in (
        "--enable-hierarchical-cache --disable-radix-cache",
        "--attention-backend nope",
        "--attention-backend fa3 --kv-cache-dtype fp8_e5m2",
        "--tp-size 3 --nnodes 2",
        "--mem-fraction-static 1.5",
        "--mem-fraction-static abc",
        "--max-running-requests -1",
        "--tp 2",
        "--speculative-num-st 3",
        "--speculative-algo EAGLE3",
        "--tensor-paralel-size 2",
        "--tp-size 2 --tp-size 4",
        "--speculative-draft-model-path llama-eagle3",
        "--enable-deterministic-inference --attention-backend flashmla",
        "--enable-deterministic-inference --sampling-backend flashinfer",
        "--pp-size 2 --enable-mixed-chunk",
        "--cuda-graph-max-bs 8 --max-running-requests 256",
        "--context-length 100000",
        "--dp-size 2 --nnodes 2 --tp-size 2",
        "--tp-size 4 --dp-size 2 --attn-dp-size 2",
    ):
        yield argv.split()


def _three(steps: int, topk: int, tokens: int) -> Argv:
    return [
        *("--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(tokens)),
    ]


def vllm(count: int = 420, seed: int = SEED) -> list[Argv]:
    """Return flag sets for vLLM, without the model."""
    rng = random.Random(seed)  # noqa: S311 - not a secret
    sets: list[Argv] = [[], *_vllm_known()]
    while len(sets) < count:
        sets.append(_vllm_random(rng))
    return _distinct(sets)


def _vllm_random(rng: random.Random) -> Argv:
    argv: Argv = []
    maybe = partial(_maybe, argv, rng)
    if rng.random() < 0.6:
        argv += ["--speculative-config", json.dumps(_speculative(rng))]
    maybe(0.5, "max-model-len", 16, 64, 128, 256, 512, 1024, 2048, 2048, 4096)
    maybe(0.4, "max-num-seqs", 1, 4, 64, 300, 1024)
    maybe(0.4, "max-num-batched-tokens", 16, 64, 128, 1024, 2048, 8192)
    maybe(0.25, "gpu-memory-utilization", 0.3, 0.5, 0.8, 0.9, 0.95, 1.0, 1.5)
    maybe(0.25, "block-size", 1, 7, 16, 32, 64, 128)
    maybe(0.20, "tensor-parallel-size", 2, 3, 4)
    maybe(0.15, "no-enable-chunked-prefill")
    maybe(0.15, "enable-chunked-prefill")
    maybe(0.15, "enforce-eager")
    maybe(0.15, "no-enable-prefix-caching")
    maybe(0.10, "kv-cache-dtype", "auto", "fp8")
    maybe(0.01, "max-num-partial-prefills", 1, 2)
    maybe(0.08, "async-scheduling")
    maybe(0.05, "pipeline-parallel-size", 2)
    return argv


def _speculative(rng: random.Random) -> dict[str, object]:
    method = rng.choice(
        ("ngram", "ngram", "ngram", "eagle", "eagle3", "eagle3", "draft_model", "draft_model", "mtp", None)
    )
    config: dict[str, object] = {} if method is None else {"method": method}
    if rng.random() < 0.9:
        config["num_speculative_tokens"] = rng.choice((1, 2, 3, 4, 4, 5, 8, 32))
    if method == "ngram":
        if rng.random() < 0.6:
            config["prompt_lookup_max"] = rng.choice((1, 3, 4, 5))
        if rng.random() < 0.5:
            config["prompt_lookup_min"] = rng.choice((1, 1, 2, 5))
    elif rng.random() < 0.85:
        # The head that goes with the method, and now and then another.
        fits = {"eagle": HEAD, "eagle3": EAGLE3, "draft_model": TARGET}
        config["model"] = fits.get(str(method), EAGLE3) if rng.random() < 0.8 else rng.choice((HEAD, EAGLE3, TARGET))
    if rng.random() < 0.02:
        config["disable_by_batch_size"] = 8
    if rng.random() < 0.15:
        config["draft_tensor_parallel_size"] = rng.choice((1, 2))
    if rng.random() < 0.1:
        config["max_model_len"] = rng.choice((512, 4096))
    return config


def _vllm_known() -> Iterator[Argv]:
    config = "--speculative-config"
    for given in (
        {"method": "ngram", "num_speculative_tokens": 4},
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1},
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 1, "prompt_lookup_min": 3},
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4},
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2},
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 0, "prompt_lookup_max": 4},
        {"method": "ngram"},
        {"method": "ngram", "num_speculative_tokens": 0},
        {"method": "ngram", "num_speculative_tokens": -1},
        {"method": "eagle", "num_speculative_tokens": 4},
        {"method": "eagle3", "num_speculative_tokens": 4},
        {"method": "eagle", "model": EAGLE, "num_speculative_tokens": 4},
        {"method": "eagle", "model": HEAD, "num_speculative_tokens": 4},
        {"method": "eagle3", "model": EAGLE3, "num_speculative_tokens": 4},
        {"method": "eagle", "model": EAGLE3, "num_speculative_tokens": 4},
        {"method": "eagle3", "model": EAGLE3},
        {"method": "draft_model", "model": TARGET, "num_speculative_tokens": 4},
        {"method": "draft_model", "model": EAGLE3, "num_speculative_tokens": 4},
        {"method": "draft_model", "num_speculative_tokens": 4},
        {"model": EAGLE3, "num_speculative_tokens": 4},
        {"model": TARGET, "num_speculative_tokens": 4},
        {"model": "ngram", "num_speculative_tokens": 4},
        {"method": "EAGLE3", "model": EAGLE3, "num_speculative_tokens": 4},
        {"method": "nothing", "num_speculative_tokens": 4},
        {"method": "mtp", "num_speculative_tokens": 2},
        {"method": "suffix"},
        {"method": "suffix", "num_speculative_tokens": 4},
        {"num_speculative_tokens": 4},
        {"method": "ngram", "num_speculative_tokens": 4, "num_spec_tokens": 4},
        {"method": "ngram", "num_speculative_tokens": 4, "disable_by_batch_size": 4},
        {"method": "eagle3", "model": EAGLE3, "num_speculative_tokens": 4, "draft_tensor_parallel_size": 3},
        {"method": "eagle3", "model": EAGLE3, "num_speculative_tokens": 4, "max_model_len": 4096},
        {"method": "eagle3", "model": EAGLE3, "num_speculative_tokens": 4, "max_model_len": 512},
        {"method": "eagle3", "model": EAGLE3, "num_speculative_tokens": 4, "quantization": "fp8"},
        {"method": "ngram", "num_speculative_tokens": 4, "quantization": "fp8"},
    ):
        yield [config, json.dumps(given)]
    yield [config, "not json"]
    for argv in (
        "--max-model-len 99999",
        "--max-model-len 1k",
        "--max-model-len -1",
        "--max-model-len auto",
        "--max-num-batched-tokens 64 --no-enable-chunked-prefill",
        "--max-num-batched-tokens 64 --max-model-len 2048",
        "--max-num-seqs 300 --max-num-batched-tokens 128",
        "--max-num-seqs 0",
        "--max-num-batched-tokens 0",
        "--tensor-parallel-size 3",
        "--tensor-parallel-size 2",
        "--gpu-memory-utilization 1.5",
        "--gpu-memory-utilization 0",
        "--gpu-memory-utilization -0.5",
        "--block-size 7",
        "--block-size 0",
        "--max-num-partial-prefills 2 --no-enable-chunked-prefill",
        "--tensor-paralel-size 2",
        "--max-num-s 4",
        "--tp 2",
        "--num-speculative-tokens 4",
        "--data-parallel-size 2",
        "--kv-cache-dtype fp7",
    ):
        yield argv.split()


def _distinct(sets: Sequence[Argv]) -> list[Argv]:
    return [list(one) for one in dict.fromkeys(tuple(one) for one in sets)]
