"""The simulated profiler: a trace per rank where the real one puts it, with the names that the real one has."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

from . import log, surface
from .engine import Engine


class Profiler:
    """Started and stopped over HTTP; with ``num_steps`` it stops by itself after so many decode passes."""

    def __init__(self, engine: Engine) -> None:
        """Nothing is being profiled."""
        self.engine = engine
        self.options: dict[str, Any] | None = None
        self.first_pass = 0

    def start(self, options: dict[str, Any]) -> bool:
        """Begin; False when one is under way."""
        if self.options is not None:
            return False
        self.options, self.first_pass = options, self.engine.passes
        return True

    def check(self) -> None:
        """Stop when the steps asked for have passed."""
        steps = (self.options or {}).get("num_steps")
        if steps and self.engine.passes - self.first_pass >= int(steps):
            self.stop()

    def stop(self) -> bool:
        """Write the files; False when nothing was started."""
        options, self.options = self.options, None
        if options is None:
            return False
        folder = Path(options.get("output_dir") or os.environ.get("SGLANG_TORCH_PROFILER_DIR") or "/tmp")  # noqa: S108 - as SGLang does
        folder.mkdir(parents=True, exist_ok=True)
        prefix = f"{options['profile_prefix']}-" if options.get("profile_prefix") else ""
        name = f"{prefix}{time.time()}"
        stacks = options.get("with_stack") is not False
        for rank in range(len(self.engine.ranks.schedulers)):
            text = json.dumps(self._trace(rank, stacks)).encode()
            (folder / f"{name}-TP-{rank}.trace.json.gz").write_bytes(gzip.compress(text, 1))
        log.say(f"Profiling done. Traces are saved to: {folder}", 0)
        return True

    def _trace(self, rank: int, stacks: bool) -> dict[str, Any]:
        """Return the trace of one rank: a few cycles, as torch's profiler shows those of SGLang 0.5.9.

        Each phase is one launch of a CUDA graph, within the function of the worker that stands for it; functions are
        recorded only with stacks, as by the real one.
        """
        events: list[dict[str, Any]] = []
        at, call = 1000.0, 0
        setting = self.engine.setting
        for _ in range(CYCLES):
            since = at
            for phase, milliseconds in surface.phases_ms(setting).items():
                duration = milliseconds * 1000
                if phase == "idle":
                    at += duration
                    continue
                call += 1
                events.append(_event("cuda_runtime", "cudaGraphLaunch", at - 3, 2.0, PID, PID, {"correlation": call}))
                function, kernels = PHASES[phase]
                if stacks:
                    events.append(_event("python_function", function, at - 4, duration - 10, PID, PID, {}))
                begin = at
                for kernel, part in kernels:
                    where = {"device": rank, "stream": 7, "correlation": call}
                    events.append(_event("kernel", kernel, begin, duration * part, rank, 7, where))
                    begin += duration * part
                at += duration
            if stacks:
                events.append(_event("python_function", BATCH, since - 6, at - since - 20, PID, PID, {}))
        about = {"backend": "nccl", "rank": rank, "world_size": len(self.engine.ranks.schedulers)}
        return {
            "schemaVersion": 1,
            "displayTimeUnit": "ms",
            "lab": True,
            "distributedInfo": about,
            "traceEvents": events,
        }


CYCLES = 20
PID = 4711
BATCH = "sglang/srt/managers/scheduler.py(2210): run_batch"
GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
FLASH = "flash_fwd_mla_combine_kernel"
MOE = "fused_moe_kernel"
REDUCE = "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>"
PHASES = {
    "draft": ("sglang/srt/speculative/eagle_worker.py(532): draft", ((GEMM, 0.7), (FLASH, 0.3))),
    "target_verify": (
        "sglang/srt/speculative/eagle_worker.py(691): verify",
        ((GEMM, 0.25), (FLASH, 0.1), (MOE, 0.35), (REDUCE, 0.3)),
    ),
    "decode": (
        "sglang/srt/model_executor/cuda_graph_runner.py(846): replay",
        ((GEMM, 0.3), (FLASH, 0.1), (MOE, 0.4), (REDUCE, 0.2)),
    ),
    "sampling": ("sglang/srt/layers/sampler.py(70): forward", (("void VerifyTreeGreedy<long, long>", 1.0),)),
}
"""Where a phase is found in the engine, and what its kernels are: made-up parts, of this one model."""


def _event(category: str, name: str, ts: float, dur: float, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
        "ts": round(ts, 3), "dur": round(dur, 3), "args": args,
    }  # fmt: skip
