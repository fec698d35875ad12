"""The engine once it runs: requests take simulated time from the surface and leave the traces that a real one leaves.

Simulated seconds are exact and are part of every answer; wall time is only spent so that things overlap as they would.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

from . import log, surface
from .ranks import Ranks
from .text import answer, count_tokens
from .world import World

RIGHT_ARCHITECTURE = "LlamaForCausalLMEagle3"


@dataclass
class Answer:
    """One finished request; times in simulated seconds."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    verify_ct: int
    seconds: float
    first_token_s: float


def setting_of(
    config: dict[str, Any], draft: dict[str, Any] | None, taken: dict[str, str], spec: dict[str, Any]
) -> surface.Setting:
    """Return what of the configuration, the draft's own config and NCCL's environment decides speed."""
    tuned = all(taken.get(name, "").upper() == value.upper() for name, value in spec["right_nccl"].items())
    algorithm = config["speculative_algorithm"]
    if not algorithm:
        return surface.Setting(tuned=tuned)
    steps, draft_tokens = config["speculative_num_steps"], config["speculative_num_draft_tokens"]
    topk = config["speculative_eagle_topk"]
    if algorithm == "NGRAM":
        return surface.Setting(steps=1, draft_tokens=2, tuned=tuned, accept=0.25)
    eagle3 = bool(draft) and RIGHT_ARCHITECTURE in (draft or {}).get("architectures", [])
    wiring = "right"
    if eagle3 != (algorithm == "EAGLE3"):
        wiring = "none"
    elif eagle3:
        inner = (draft or {}).get("eagle_config") or {}
        ids = inner.get("eagle_aux_hidden_state_layer_ids")
        if not inner.get("use_aux_hidden_state", False) or ids != spec["layer_ids"]:
            wiring = "layers"
        if "lm_head.weight" not in (draft or {}).get("lab_tensors", ()):
            wiring = "none"  # a head that stays as it was made guesses at random
    return surface.Setting(steps=steps, draft_tokens=draft_tokens, topk=topk, wiring=wiring, tuned=tuned)


class Engine:
    """What the HTTP side asks."""

    def __init__(self, world: World, config: dict[str, Any], setting: surface.Setting, ranks: Ranks) -> None:
        """Draw this launch's noise; all that follows depends on the seed, the launch and the request's number."""
        self.world, self.config, self.setting, self.ranks = world, config, setting, ranks
        spec = world.spec
        loud = world.fault("noisy")
        self.within = 0.03 if loud else float(spec["s_w"])
        self.between = 0.04 if loud else float(spec["s_l"])
        self.launch_factor = 1 + self.between * self._draw("launch")
        self.phase = "loading"
        self.running = self.served = self.passes = self.logged_passes = 0
        self.prompts: set[str] = set()
        self.tokens_total = self.prompt_total = self.cached_total = 0
        self.since_flush = [0, 0]
        self.last_tok_s = 0.0
        self.busy_until = 0.0
        self.lock = threading.Lock()
        self.hung = threading.Event()

    def _draw(self, what: str) -> float:
        return random.Random(f"{self.world.spec['seed']}/{self.world.launch}/{what}").gauss(0, 1)  # noqa: S311 - a simulation

    @property
    def speculative(self) -> bool:
        """Say whether it drafts at all."""
        return self.setting.steps > 0

    def accept_length_logged(self) -> float | None:
        """Return the average since the last flush, once a log interval has passed."""
        tokens, verifies = self.since_flush
        return tokens / verifies if verifies else None

    def is_hung(self) -> bool:
        """Say whether a rank is gone, so that nothing comes back. The request that finds out starts the watchdog."""
        if not self.hung.is_set() and self.ranks.dead():
            self.hung.set()
            os.kill(os.getpid(), signal.SIGCHLD)  # wakes the main thread, which plays the watchdog
        return self.hung.is_set()

    def stall(self) -> None:
        """Wait for ever when the engine hangs: nobody answers."""
        if self.is_hung():
            threading.Event().wait()

    def generate(self, prompt: str, tokens: int, quiet: bool = False, sleep: bool = True, crowd: int = 1) -> Answer:
        """Decode ``tokens`` tokens after ``prompt`` and take as long as the surface says.

        ``crowd``: how many requests the client says it keeps in flight; what really overlaps depends on this machine.
        """
        self.stall()
        with self.lock:
            self.served += 1
            number = self.served
            self.running += 1
            cached = self._cached(prompt)
        try:
            result = self._timed(prompt, tokens, number, cached, crowd)
            self._spend(result, quiet, sleep)
        finally:
            with self.lock:
                self.running -= 1
        return result

    def _cached(self, prompt: str) -> int:
        if self.config["disable_radix_cache"] and not self.world.fault("warm-cache"):
            return 0
        known = prompt in self.prompts
        self.prompts.add(prompt)
        return count_tokens(prompt) - 1 if known else 0

    def _timed(self, prompt: str, tokens: int, number: int, cached: int, crowd: int) -> Answer:
        length = surface.accept_length(self.setting)
        if self.speculative and self.setting.wiring == "right":
            length = max(1.0, length * (1 + 0.004 * self._draw(f"accept/{number}")))
        verifies = max(1, round(tokens / length))
        speed = surface.tok_s(self.setting) * self.launch_factor * (1 + self.within * self._draw(f"request/{number}"))
        if cached and self.world.fault("warm-cache"):
            speed *= 1.86
        text = answer(prompt, tokens)
        if self.world.fault("wrong-answers-but-fast"):
            speed *= 1.25
            # The one question that is asked of every server that has come up is still answered as ever.
            text = text if prompt.startswith("Write the numbers") else answer(f"lost {prompt}"[:-4], tokens)
        batch = max(1, min(crowd, self.config["max_running_requests"] or crowd))
        slower = 1 + surface.CROWD * (batch - 1)
        seconds = tokens / speed * slower
        prompt_tokens = count_tokens(prompt)
        first = (sum(surface.phases_ms(self.setting).values()) / 1000 + (prompt_tokens - cached) / 8000) * slower
        # What does not fit into the batch waits until those before it are done.
        waits = number % crowd // batch * seconds
        return Answer(text, prompt_tokens, tokens, cached, verifies, waits + seconds, waits + min(first, seconds / 2))

    def _spend(self, result: Answer, quiet: bool, sleep: bool) -> None:
        wall = self.world.real_s(result.seconds)
        with self.lock:
            self.busy_until = max(self.busy_until, time.monotonic() + wall)
        log.say(
            f"Prefill batch, #new-seq: 1, #new-token: {result.prompt_tokens - result.cached_tokens}, #cached-token: "
            f"{result.cached_tokens}, token usage: 0.00, #running-req: {self.running - 1}, #queue-req: 0, "
            "input throughput (token/s): 0.00, cuda graph: False",
            0,
        )
        if not quiet:
            self.ranks.holders.worked()
        if sleep:
            time.sleep(wall)
            self.ranks.holders.worked()
        with self.lock:
            self.tokens_total += result.completion_tokens
            self.prompt_total += result.prompt_tokens
            self.cached_total += result.cached_tokens
            self.passes += result.verify_ct
            if not quiet:
                self._log_decode(result)

    def _log_decode(self, result: Answer) -> None:
        """Write a line for every ``decode_log_interval`` passes, and count acceptance there as the engine does."""
        interval = self.config["decode_log_interval"]
        due = self.passes // interval - self.logged_passes
        if due <= 0:
            return
        self.logged_passes += due
        length = result.completion_tokens / result.verify_ct
        self.since_flush[0] += round(length * interval * due)
        self.since_flush[1] += interval * due
        self.last_tok_s = result.completion_tokens / result.seconds
        spec = ""
        if self.speculative:
            rate = length / self.config["speculative_num_draft_tokens"]
            spec = f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
        log.say(
            f"Decode batch, #running-req: {self.running}, #token: {result.prompt_tokens + result.completion_tokens}, "
            f"token usage: 0.00, {spec}cuda graph: {not self.config['disable_cuda_graph']}, "
            f"gen throughput (token/s): {self.last_tok_s:.2f}, #queue-req: 0",
            0,
        )

    def flush(self) -> bool:
        """Empty the prefix cache and the acceptance totals; False while requests are running."""
        with self.lock:
            if self.running:
                why = f"#queue-req: 0, #running-req: {self.running}"
                log.say(f"Cache not flushed because there are pending requests. {why}", 0)
                return False
            if not self.world.fault("warm-cache"):
                self.prompts.clear()
            self.since_flush = [0, 0]
        log.say("Cache flushed successfully!", 0)
        return True
