"""What engines call the phases of their work, and what their kernels are called: tables, read from their sources.

Runs on the server's own host with nothing but Python 3.8. Sources: sglang 0.5.3, 0.5.9 and 0.5.23
(``srt/speculative``, ``srt/model_executor``, ``srt/utils/profile_utils.py``), vllm 0.32 (``v1/worker``).

- SGLang 0.5.23 opens spans: ``step[VERIFY bs=…]``, ``step[DRAFT …]``, ``step[DECODE …]``, ``step[EXTEND …]`` around
  each ``ModelRunner.forward`` (``build_step_span_name``), ``draft`` and ``draft_extend`` around those stages
  (``spec_stage_span``). Before that it opened none: what a kernel belongs to is told by the functions of the
  speculation worker, which a trace names only when it was recorded with stacks (``with_stack``, SGLang's default).
- vLLM's worker opens ``execute_context_R(T)_generation_R(T)`` (requests and tokens) around each step while a profiler
  runs; with VLLM_CUSTOM_SCOPES_FOR_PROFILING=1 also ``gpu_model_runner: draft``, ``… sample``.

Precedence, from the weakest: 1 a forward pass, 2 a stage of speculation, 3 sampling. Of equals the innermost holds.
SGLang's worker for n-grams (0.5.9) names no stage: there a replayed graph is a verification, and a pass without a graph
may be a prompt or a verification, so it is left unattributed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Phase = tuple[str, int]
    """The phase and its rank of precedence."""

AROUND, PASS, STAGE, SAMPLING = 0, 1, 2, 3

NGRAM = "ngram"
"""No phase, but what is around one: a decoding pass in there verifies; a prompt's pass may be either."""

_STEP = re.compile(r"step\[([A-Z_]+)")
_STEPS: dict[str, Phase] = {
    "VERIFY": ("target_verify", STAGE),
    "TARGET_VERIFY": ("target_verify", STAGE),
    "DRAFT": ("draft", PASS),  # within draft_extend as well: the stage says which
    "DECODE": ("decode", PASS),
    "EXTEND": ("extend", PASS),
    "SPLIT_PREFILL": ("extend", PASS),
    "MIXED": ("mixed", PASS),
}
_NAMED: dict[str, Phase] = {
    "draft": ("draft", STAGE),
    "draft_extend": ("draft_extend", STAGE),
    "verify": ("target_verify", STAGE),
    "target_verify": ("target_verify", STAGE),
    "decode": ("decode", PASS),
    "extend": ("extend", PASS),
    "sampling": ("sampling", SAMPLING),
    "gpu_model_runner: draft": ("draft", STAGE),
    "gpu_model_runner: sample": ("sampling", SAMPLING),
    "Draft": ("draft", STAGE),
    "Sample": ("sampling", SAMPLING),
}
_ITERATION = re.compile(r"execute_(?:\d+_)?context_(\d+)\((?:sq)?(\d+)[^)]*\)_generation_(\d+)\((?:sq)?(\d+)[^)]*\)")

_EAGLE = ("eagle_worker.py", "eagle_worker_v2.py", "multi_layer_eagle_worker.py", "multi_layer_eagle_worker_v2.py")
_FUNCTIONS: dict[tuple[str, str], Phase] = {
    **{(file, "draft"): ("draft", STAGE) for file in _EAGLE},
    **{(file, "verify"): ("target_verify", STAGE) for file in _EAGLE},
    **{
        (file, function): ("draft_extend", STAGE)
        for file in _EAGLE
        for function in (
            "forward_draft_extend",
            "forward_draft_extend_after_decode",
            "_draft_extend_for_prefill",
            "_draft_extend_for_decode",
        )
    },
    **{(file, "forward_target_extend"): ("extend", STAGE) for file in _EAGLE},
    ("ngram_worker.py", "_prepare_for_speculative_decoding"): ("draft", STAGE),
    ("ngram_worker.py", "forward_batch_generation"): (NGRAM, AROUND),
    ("eagle_info.py", "verify"): ("sampling", SAMPLING),
    ("eagle_info_v2.py", "sample"): ("sampling", SAMPLING),
    ("eagle_utils.py", "eagle_sample"): ("sampling", SAMPLING),
    ("ngram_info.py", "verify"): ("sampling", SAMPLING),
    ("sampler.py", "forward"): ("sampling", SAMPLING),
    ("model_runner.py", "sample"): ("sampling", SAMPLING),
    ("model_runner.py", "forward_decode"): ("decode", PASS),
    ("model_runner.py", "forward_extend"): ("extend", PASS),
    ("model_runner.py", "forward_split_prefill"): ("extend", PASS),
    ("cuda_graph_runner.py", "replay"): ("decode", PASS),
    ("piecewise_cuda_graph_runner.py", "replay"): ("extend", PASS),
    ("gpu_model_runner.py", "propose_draft_token_ids"): ("draft", STAGE),
    ("gpu_model_runner.py", "_sample"): ("sampling", SAMPLING),
    ("speculator.py", "propose"): (
        "draft",
        STAGE,
    ),  # of vLLM's second model runner, whose `sample` is named as SGLang's
}
FUNCTIONS = frozenset(function for _, function in _FUNCTIONS)
"""Bare names of the functions that a reader must not leave out."""

_FUNCTION = re.compile(r"([^/\\(]+)\(\d+\): (\S+)$")


def span_phase(name: str) -> Phase | None:
    """Return the phase of a span that an engine opened itself; None for one that is none of ours."""
    step = _STEP.match(name)
    if step is not None:
        return _STEPS.get(step[1])
    found = _ITERATION.match(name)
    if found is None:
        return _NAMED.get(name)
    prompts, _, requests, tokens = (int(number) for number in found.groups())
    if prompts:
        return ("mixed" if requests else "extend", PASS)
    # More tokens than requests in a step without prompts: drafted ones are being verified.
    return ("target_verify" if tokens > requests else "decode", PASS) if requests else None


def function_phase(name: str) -> Phase | None:
    """Return the phase of a Python function, as a trace names it: ``path/file.py(12): function``."""
    found = _FUNCTION.search(name)
    return _FUNCTIONS.get((found[1], found[2])) if found is not None else None


_CLASSES = (
    ("all_reduce", r"all_?reduce|cross_device_reduce|one_?shot|two_?shot|multimem|quick_?reduce"),
    (
        "communication",
        r"nccl|rccl|all_?gather|reduce_?scatter|all_?to_?all|sendrecv|nvshmem|deep_?ep|broadcast_kernel_",
    ),
    (
        "attention",
        r"flash(?!infer)|fmha|attention|attn|paged_?kv|_mla|\bmla|BatchDecode|BatchPrefill|_fwd_(grouped_)?kernel",
    ),
    ("moe", r"moe|expert|topk_?gating|grouped_?gemm|group_?gemm|marlin_moe|grouped_mm|GroupProblem"),
    ("gemm", r"gemm|cutlass|cublas|nvjet|xmma|matmul|wgmma|marlin|gemv|split_?k|gptq|awq|scaled_mm|dot_kernel"),
    ("sampling", r"sampl|top_?k|top_?p|argmax|multinomial|verify_?tree|rejection|build_tree|radix_?select"),
    ("norm", r"norm"),
    (
        "elementwise",
        r"elementwise|act_and_mul|silu|gelu|rotary|rope|copy|fill|cat_|index|scatter|gather|reduce|softmax",
    ),
    ("elementwise", r"triton|quant|vectorized|embedding"),
)
_KERNELS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _CLASSES)
_OPERATORS = (
    ("gemm", re.compile(r"mm$|linear|matmul|addmv|mkldnn|conv")),
    ("attention", re.compile(r"attention|sdpa")),
    ("all_reduce", re.compile(r"all_?reduce")),
    ("communication", re.compile(r"c10d|gloo|nccl|all_?gather")),
    ("sampling", re.compile(r"argmax|multinomial|topk|sort")),
    ("norm", re.compile(r"_norm")),
    ("memcpy", re.compile(r"copy_|clone|contiguous")),
)


def class_of(name: str, category: str) -> str:
    """Return what kind of work a kernel (on a CPU: an operator) does, by its name; ``other`` where it does not say."""
    if category in ("gpu_memcpy", "gpu_memset"):
        return "memcpy"
    table = _OPERATORS if category == "cpu_op" else _KERNELS
    return next((kind for kind, pattern in table if pattern.search(name)), "other")
