"""Traces as torch's exporter writes them, of a made-up engine whose every microsecond is known.

A cycle drafts, verifies in a CUDA graph, extends the draft and samples, as SGLang does; the text has the layout of
Kineto's writer, with stacks, operators, flows and everything else that a reader has to pass over.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEADER = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0, "numSms": 132
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": %d, "world_size": %d, "pg_count": 1, "nccl_version": "2.27.5"},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
FOOTER = """
  ],
  "traceName": "/tmp/trace.json"
}
"""
BASE = 5134817883000.0
SPANS = "spans"
STACKS = "stacks"
FUNCTIONS = {
    "draft": "sglang/srt/speculative/eagle_worker.py(532): draft",
    "verify": "sglang/srt/speculative/eagle_worker.py(691): verify",
    "draft_extend": "sglang/srt/speculative/eagle_worker.py(902): forward_draft_extend_after_decode",
    "sampling": "sglang/srt/speculative/eagle_info.py(216): verify",
}
NAMES = {"draft": "draft", "verify": "step[VERIFY bs=1]", "draft_extend": "draft_extend", "sampling": "sampling"}
GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
FLASH = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<2, cutlass::bfloat16_t>>>"
REDUCE = "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>(sglang::RankData*, sglang::RankSignals)"
MOE = "fused_moe_kernel"
NORM = "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*)"
VERIFY_TREE = "void VerifyTreeGreedy<long, long>(long*, long*, long*, unsigned int)"


@dataclass
class Maker:
    """Writes events; ``at`` is the time of the host, ``gpu`` that at which the device is free, both in µs."""

    how: str = STACKS
    graph: bool = True
    at: float = 0.0
    gpu: float = 0.0
    call: int = 1000
    out: list[str] = field(default_factory=list)

    def event(self, category: str, name: str, ts: float, dur: float, args: dict[str, Any], pid: Any, tid: Any) -> None:
        """Write one event, laid out as Kineto does."""
        inner = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in args.items())
        where = f'"pid": {json.dumps(pid)}, "tid": {json.dumps(tid)},\n    "ts": {BASE + ts:.3f}, "dur": {dur:.3f}'
        self.out.append(
            f'  {{\n    "ph": "X", "cat": "{category}", "name": {json.dumps(name)}, {where},\n'
            f'    "args": {{\n      {inner}\n    }}\n  }}'
        )

    def flow(self, kind: str, ts: float, pid: Any, tid: Any) -> None:
        """Write one end of an arrow from a launch to its kernel."""
        end = ', "bp": "e"' if kind == "f" else ""
        self.out.append(
            f'  {{\n    "ph": "{kind}", "id": {self.call}, "pid": {pid}, "tid": {tid}, "ts": {BASE + ts:.3f},\n'
            f'    "cat": "ac2g", "name": "ac2g"{end}\n  }}'
        )

    def kernel(self, name: str, dur: float, *, gap: float = 0.0, stream: int = 7, start: float | None = None) -> None:
        """Run a kernel when the device is free, ``gap`` µs after that; of the newest launch."""
        begin = self.gpu + gap if start is None else start
        args = {
            "External id": self.call, "queued": 0, "device": 0, "context": 1, "stream": stream,
            "correlation": self.call, "registers per thread": 168, "shared memory": 213376, "blocks per SM": 0.484848,
            "warps per SM": 5.818182, "grid": [1, 64, 1], "block": [384, 1, 1],
            "est. achieved occupancy %": 9,
        }  # fmt: skip
        self.event("kernel", name, begin, dur, args, 0, stream)
        self.gpu = max(self.gpu, begin + dur)

    def launch(self, name: str = "cudaLaunchKernelExC", took: float = 4.0) -> None:
        """Call the runtime; kernels that follow are of this launch."""
        self.call += 1
        args = {"External id": self.call, "cbid": 430, "correlation": self.call}
        self.event("cuda_runtime", name, self.at, took, args, 4711, 4711)
        self.flow("s", self.at, 4711, 4711)
        self.flow("f", max(self.gpu, self.at + took), 0, 7)
        self.at += took
        self.gpu = max(self.gpu, self.at)

    def noise(self, stacks: int, operators: int) -> None:
        """Write what says nothing about the GPU: frames of the interpreter and operators."""
        for number in range(stacks):
            args = {"Python parent id": number, "Python id": number + 1, "Ev Idx": number}
            name = f"torch/nn/modules/module.py(17{number % 90:02d}): _wrapped_call_impl"
            self.event("python_function", name, self.at, 3.5, args, 4711, 4711)
        for number in range(operators):
            args = {"External id": number, "Record function id": 0, "Ev Idx": number}
            self.event("cpu_op", "aten::empty", self.at, 1.0, args, 4711, 4711)

    def phase(self, name: str, since: float) -> None:
        """Write the span of a phase that began at ``since``."""
        if self.how == SPANS:
            args: dict[str, Any] = {"External id": 9, "Record function id": 0, "Ev Idx": 3}
            self.event("user_annotation", NAMES[name], since, self.at - since, args, 4711, 4711)
        elif self.how == STACKS:
            args = {"Python parent id": 1, "Python id": 2, "Ev Idx": 5}
            self.event("python_function", FUNCTIONS[name], since, self.at - since, args, 4711, 4711)

    def cycle(self, layers: int = 4, stacks: int = 6, operators: int = 3) -> None:
        """One cycle: 100 µs of drafting, 800 of verifying, 40 of sampling, 50 of extending the draft, 10 idle."""
        began = self.gpu + 10.0  # the host comes back 10 µs after the device has fallen idle
        self.at = began - 4.0
        since = self.at
        self.noise(stacks, operators)
        self.launch("cudaGraphLaunch")
        for _ in range(2):
            self.kernel(GEMM, 30.0)
            self.kernel(FLASH, 20.0)
        self.phase("draft", since)
        self.at = since = self.at + 1.0
        self.noise(stacks, operators)
        self.launch("cudaGraphLaunch")
        part = 800.0 / layers
        for _ in range(layers):  # of each layer 5 % are gaps between the nodes of the graph
            self.kernel(GEMM, part * 0.30)
            self.kernel(FLASH, part * 0.10, gap=part * 0.05)
            self.kernel(MOE, part * 0.25)
            self.kernel(REDUCE, part * 0.25)
            self.kernel(NORM, part * 0.05)
        sampled = self.at = self.at + 1.0
        self.launch("cudaLaunchKernel")
        self.kernel(VERIFY_TREE, 40.0)
        self.phase("sampling", sampled)
        self.at += 1.0
        self.phase("verify", since)
        self.at = since = self.at + 1.0
        self.launch("cudaGraphLaunch")
        self.kernel(GEMM, 50.0)
        self.phase("draft_extend", since)

    def text(self, rank: int = 0, world: int = 1) -> str:
        """Return the document."""
        return HEADER % (rank, world) + ",\n".join(self.out) + FOOTER


SHARES = {"draft": 0.100, "target_verify": 0.800, "sampling": 0.040, "draft_extend": 0.050, "idle": 0.010}
"""What a cycle is made of. The first cycle of a trace has no idle time before it."""
CLASSES = {
    "gemm": 0.060 + 0.240 + 0.050, "attention": 0.040 + 0.080, "moe": 0.200, "all_reduce": 0.200, "norm": 0.040,
    "sampling": 0.040, "launch_gap": 0.040, "host_wait": 0.010,
}  # fmt: skip


def made(cycles: int, how: str = STACKS, **more: int) -> Maker:
    """Return so many cycles."""
    maker = Maker(how=how)
    for _ in range(cycles):
        maker.cycle(**more)
    return maker


def chunks(cycles: int, how: str = STACKS, **more: int) -> Iterator[str]:
    """Yield a trace of any length, piece by piece."""
    maker = Maker(how=how)
    yield HEADER % (0, 1)
    for number in range(cycles):
        maker.cycle(**more)
        yield (",\n" if number else "") + ",\n".join(maker.out)
        maker.out.clear()
    yield FOOTER


def write(path: Path, text: str) -> Path:
    """Write a trace, compressed where its name says so."""
    data = text.encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path
