"""The start-up timeline: phases, log lines and memory of a real start, in simulated seconds, and its faults."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from . import log, nccl
from .devices import Device, devices
from .engine import Engine
from .gpu import UP_EXTRA_MIB, UP_MIB
from .ranks import stranger

FULL_S = 899.0
"""The length of the recorded start that the phases below are taken from."""
WEIGHTS_MIB = 73830
RANK_LIVES_S = 2.5
"""So long, of wall time, a rank that is to die lives at least once all are there."""
TARGET, DRAFT = "KimiK25ForConditionalGeneration", "LlamaForCausalLMEagle3"
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)


class Failure(Exception):  # noqa: N818 - it is what a start ends in, not an error of the lab
    """The start fails with this text, as rank ``rank`` says it; ``silent`` = without a traceback."""

    def __init__(self, text: str, rank: int = 0, *, silent: bool = False) -> None:
        super().__init__(text)
        self.rank, self.silent = rank, silent


class Startup:
    """One start. ``load`` returns when the engine could open its port."""

    def __init__(
        self, engine: Engine, env: dict[str, str], taken: dict[str, str], draft: dict[str, Any] | None
    ) -> None:
        """Prepare; the clock starts with ``load``."""
        self.engine, self.world, self.env, self.taken, self.draft = engine, engine.world, env, taken, draft
        self.spec, self.config = engine.world.spec, engine.config
        self.count = int(self.config["tp_size"])
        self.total = int(self.spec["memory_mib"])
        self.fraction = float(self.config["mem_fraction_static"])
        self.stretch = float(self.spec["start_s"]) / FULL_S
        self.scale = 0.0 if self.world.launch == 0 else self.stretch
        self.began = time.monotonic()
        self.used: dict[int, int] = {}

    def until(self, seconds: float) -> None:
        """Sleep until that simulated second of the start; a rank that dies on the way stops everything."""
        due = self.began + self.world.real_s(seconds * self.scale)
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
            self.check_ranks()
        self.check_ranks()

    def check_ranks(self) -> None:
        """Rank 0's end is noticed; any other leaves the launcher waiting for ever, without a word."""
        dead = self.engine.ranks.dead()
        if 0 in dead:
            raise Failure(
                "Rank 0 scheduler is dead. Please check if there are relevant logs.\nExit code: -9", silent=True
            )
        if dead:
            self.hang()

    def hang(self) -> None:
        """Do nothing more."""
        while True:
            signal.pause()

    def hold(self, pool_mib: int, extra_mib: int = 0, util: int = 0) -> None:
        """Set every rank's memory; with the fault ``unbalanced`` one rank stays far below the others."""
        self.used = {rank: pool_mib + extra_mib + UP_MIB[rank % 8] for rank in range(self.count)}
        low = self.world.fault("unbalanced")
        if low and pool_mib > WEIGHTS_MIB:
            for rank in low["gpus"] or [3]:
                self.used[rank] = 71204
        self.engine.ranks.holders.hold(self.used, util)

    def avail(self) -> str:
        """Return the free memory as the log prints it; ``{n}`` is the last digit, by rank."""
        free = (self.total - self.used.get(0, 0)) / 1024
        return f"avail mem={free:.1f}{{n}} GB"

    def load(self) -> dict[str, Any]:
        """Go through the phases up to the point where the port is opened; return what they found out."""
        held = self.world.fault("port-held")
        if held and held["when"] == "load":
            stranger(f"python3 /opt/metrics/exporter.py --port {self.config['port']}", self.config["port"])
        self.distributed()
        self.weights()
        tokens = self.pool()
        at = self.capture()
        if self.draft is not None:
            at = self.draft_worker(at)
        self.hold(int(self.total * self.fraction + 0.5), UP_EXTRA_MIB)
        log.say(
            f"max_total_num_tokens={tokens}, chunked_prefill_size={self.config['chunked_prefill_size']}, "
            "max_prefill_tokens=16384, "
            f"max_running_requests={self.config['max_running_requests'] or 2048}, context_len=262144, "
            f"available_gpu_mem={(self.total - self.used[0]) / 1024:.2f} GB",
            0,
        )
        self.config["max_running_requests"] = self.config["max_running_requests"] or 2048
        self.until(at + 2)
        usage = {
            "weight": 72.1,
            "kvcache": round((self.pool_mib - WEIGHTS_MIB) / 1024, 2),
            "token_capacity": tokens,
            "graph": 2.31,
        }
        return {"max_total_num_tokens": tokens, "memory_usage": usage}

    def distributed(self) -> None:
        """Initialize NCCL; find out that somebody else is on the GPUs."""
        everyone = devices(self.spec)
        before = [everyone[gpu] for gpu in self.engine.ranks.gpus]
        if self.count > len(before):
            raise Failure("torch.AcceleratorError: CUDA error: invalid device ordinal", len(before))
        self.until(16)
        log.all_ranks(self.count, "Init torch distributed begin.")
        lines = [
            line
            for rank, pid in enumerate(self.engine.ranks.schedulers)
            for line in nccl.lines(self.env, self.taken, pid, rank, self.spec["hostname"])
        ]
        if lines:
            log.plain("\n".join(lines), 1)
        self.until(25)
        free = [(self.total - device.used_mib) / 1024 for device in before]
        if min(free) < 0.9 * max(free) and os.environ.get(
            "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK", "1"
        ).lower() not in ("0", "false"):
            rank = free.index(max(free))
            raise Failure(
                "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
                f"min_per_gpu_memory={min(free)}, local_gpu_memory={free[rank]}, "
                f"local_gpu_memory * 0.9={free[rank] * 0.9}",
                rank,
            )
        self.hold(620)
        log.all_ranks(self.count, "Init torch distributed ends. elapsed=8.9{n} s, mem usage=0.62 GB")
        for device in before:
            if self.total - device.used_mib < WEIGHTS_MIB + 2048:
                self.used_by_others(device)

    def used_by_others(self, device: Device) -> None:
        """Fail because another process holds the GPU's memory."""
        free = (self.total - device.used_mib) / 1024
        who = " ".join(f"Process {pid} has {mib / 1024:.2f} GiB memory in use." for pid, mib in device.apps)
        raise Failure(
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.19 GiB. GPU {device.index} has a total "
            f"capacity of {self.total / 1024:.2f} GiB of which {max(0.0, free):.2f} GiB is free. {who}",
            device.index,
        )

    def weights(self) -> None:
        """Load the target's weights, with the progress lines of the safetensors loader."""
        self.until(27)
        log.all_ranks(self.count, f"Load weight begin. {self.avail()}")
        for done in range(16, 65, 16):
            self.until(27 + 373 * done / 64)
            self.hold(620 + WEIGHTS_MIB * done // 64, util=3)
            share = f"{done * 100 // 64:3d}% Completed | {done}/64 [00:00<00:00,  5.33s/it]"
            log.plain(f"Loading safetensors checkpoint shards: {share}")
            fault = self.world.fault("dead-rank")
            if fault and done == 48:
                time.sleep(RANK_LIVES_S)  # a look once a second must have had the chance to see it alive
                self.engine.ranks.kill((fault["gpus"] or [6])[0])
        log.all_ranks(
            self.count,
            f"Load weight end. elapsed=372.{{n}}0 s, type={TARGET}, dtype=torch.bfloat16, {self.avail()}, "
            "mem usage=72.10 GB.",
        )

    def pool(self) -> int:
        """Allocate the KV cache; fail when the fraction leaves no room, or when the fault ``oom`` says so."""
        self.until(402)
        self.pool_mib = int(self.total * self.fraction + 0.5)
        kv_mib = self.pool_mib - WEIGHTS_MIB
        if kv_mib <= 0:
            raise Failure(
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
                f"Current value: self.server_args.mem_fraction_static={self.fraction}"
            )
        self.hold(self.pool_mib, 620)
        tokens = int(kv_mib * 15.44)
        log.all_ranks(self.count, f"KV Cache is allocated. #tokens: {tokens}, KV size: {kv_mib / 1024:.2f} GB")
        log.all_ranks(self.count, f"Memory pool end. {self.avail()}")
        fault = self.world.fault("oom")
        over = fault is not None and self.fraction > (fault["above"] or 0.87)
        if over and fault is not None and fault["kind"] == "host":
            self.engine.ranks.kill(0)
            while True:
                self.check_ranks()
                time.sleep(0.01)
        if over or self.pool_mib + UP_EXTRA_MIB > self.total:
            raise Failure(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 3 has a total capacity of "
                f"{self.total / 1024:.2f} GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process "
                f"has {(self.total - 1147) / 1024:.2f} GiB memory in use.",
                3 % self.count,
            )
        return tokens

    def capture(self) -> float:
        """Capture the CUDA graphs: most of the time of a start with speculation. Return the second it ends."""
        if self.config["disable_cuda_graph"]:
            return 404
        self.until(403)
        end = 856.0 if self.draft is not None else 553.0
        log.all_ranks(
            self.count,
            f"Capture cuda graph begin. This can take up to several minutes. {self.avail()}",
            f"{log.stamp(0)}Capture cuda graph bs {list(BATCHES)}",
        )
        self.hold(self.pool_mib, 900, util=42)
        for step in range(3, 13, 3):
            if step > 3 and self.world.fault("hang-in-capture"):
                self.hold(self.pool_mib, 900, util=100)
                self.hang()
            self.until(403 + (end - 403) * step / 12)
            size = BATCHES[-step]
            bar = f"{step * 100 // 12:3d}%|{'#' * step:<12}| {step}/12"
            log.plain(f"Capturing batches (bs={size} avail_mem={(self.total - self.used[0]) / 1024:.2f} GB): {bar}")
        self.hold(self.pool_mib, 2300)
        log.all_ranks(
            self.count,
            f"Capture cuda graph end. Time elapsed: {(end - 403) * self.stretch:.1f}{{n}} s. mem usage=2.31 GB. "
            f"{self.avail()}.",
        )
        return end

    def draft_worker(self, at: float) -> float:
        """Load the draft model and capture its graphs."""
        ranks, self.used = self.count, dict(self.used)
        name = ((self.draft or {}).get("architectures") or [DRAFT])[0]
        log.all_ranks(ranks, "Init torch distributed begin.")
        self.until(at + 2)
        log.all_ranks(ranks, "Init torch distributed ends. elapsed=0.0{n} s, mem usage=0.00 GB")
        log.all_ranks(ranks, f"Load weight begin. {self.avail()}")
        self.until(at + 12)
        self.hold(self.pool_mib, 2800)
        log.all_ranks(
            ranks,
            f"Load weight end. elapsed=7.9{{n}} s, type={name}, dtype=torch.bfloat16, {self.avail()}, "
            "mem usage=0.78 GB.",
        )
        if self.config["disable_cuda_graph"]:
            return at + 12
        if self.config["speculative_num_steps"] > 1:
            log.all_ranks(
                ranks,
                f"Capture draft cuda graph begin. This can take up to several minutes. {self.avail()}",
            )
            self.until(at + 24)
            log.all_ranks(
                ranks,
                f"Capture draft cuda graph end. Time elapsed: 10.0{{n}} s. mem usage=0.11 GB. {self.avail()}.",
            )
        log.all_ranks(
            ranks,
            f"Capture draft extend cuda graph begin. This can take up to several minutes. {self.avail()}",
        )
        self.until(at + 36)
        log.all_ranks(
            ranks,
            f"Capture draft extend cuda graph end. Time elapsed: 11.5{{n}} s. mem usage=0.14 GB. {self.avail()}.",
        )
        return at + 36

    def warm_up(self) -> None:
        """Answer the warm-up request, which ends the phase in which health says 503."""
        if self.world.launch:
            time.sleep(self.world.real_s(3 * self.scale))
        log.access('127.0.0.1:41022 - "GET /model_info HTTP/1.1" 200 OK')
        if not self.config["skip_server_warmup"]:
            self.engine.generate("The capital city of France is", 8, quiet=True, sleep=False)
            self.engine.served = self.engine.passes = 0
            self.engine.prompts.clear()
            log.access('127.0.0.1:41030 - "POST /generate HTTP/1.1" 200 OK')
