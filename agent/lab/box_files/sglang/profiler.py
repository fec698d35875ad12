"""The simulated profiler: a trace per rank where the real one puts it, and a small file of phase shares."""

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
        trace = gzip.compress(json.dumps(self._trace()).encode(), 1)
        for rank in range(len(self.engine.ranks.schedulers)):
            (folder / f"{name}-TP-{rank}.trace.json.gz").write_bytes(trace)
        fresh = folder / f"{name}.new"
        fresh.write_text(json.dumps(self._shares(), indent=1))
        fresh.replace(folder / f"{name}.phase-shares.json")
        log.say(f"Profiling done. Traces are saved to: {folder}", 0)
        return True

    def _shares(self) -> dict[str, Any]:
        setting = self.engine.setting
        phases = surface.phases_ms(setting)
        return {
            "lab": True,
            "note": "simulated: shares of one decode cycle, from the lab's surface, not measured",
            "steps": setting.steps,
            "passes": self.engine.passes - self.first_pass,
            "cycle_ms": round(sum(phases.values()), 4),
            "share": {phase: round(share, 6) for phase, share in surface.shares(setting).items()},
        }

    def _trace(self) -> dict[str, Any]:
        """Return a Chrome trace of a few cycles, one event per phase."""
        events: list[dict[str, Any]] = []
        at_us = 0.0
        for cycle in range(20):
            for phase, duration in surface.phases_ms(self.engine.setting).items():
                if phase != "idle":
                    events.append(
                        {"ph": "X", "cat": "gpu_user_annotation", "name": phase, "pid": 0, "tid": 7,
                         "ts": round(at_us, 3), "dur": round(duration * 1000, 3), "args": {"cycle": cycle}}
                    )  # fmt: skip
                at_us += duration * 1000
        return {"schemaVersion": 1, "displayTimeUnit": "ms", "lab": True, "traceEvents": events}
