"""How fast the simulated model decodes: one surface through the points of the campaign that this project is built for.

``tok/s = 1000 * AL(k) / (0.25 k + (22.3 + 4 (k - 2)) n)`` for ``k`` speculative steps, with the accept length
``AL(k) = sum of 0.68^i, i = 0..k`` and ``n = 1`` with the right NCCL setting, ``1 / 0.73`` without. Without speculation
88.8 tok/s. The same figures with more than one branch (topk > 1) and for n-gram drafts are assumptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BASELINE_TOK_S = 88.8
ACCEPT = 0.68
DRAFT_MS = 0.25
UNTUNED = 1 / 0.73
SAMPLING_MS = 0.08
IDLE_MS = 0.06
CROWD = 0.04
"""By what share each further request of a batch makes a step longer: assumed, the campaign had one stream."""


@dataclass(frozen=True)
class Setting:
    """What of a configuration decides speed. ``steps`` 0 means no speculation.

    ``wiring``: ``right``; ``layers`` = the draft gets other hidden states than it was trained on; ``none`` = it gets
    no auxiliary hidden states at all, and no drafted token is ever accepted.
    """

    steps: int = 0
    draft_tokens: int = 0
    topk: int = 1
    wiring: str = "right"
    tuned: bool = False
    accept: float = ACCEPT


def accept_length(setting: Setting) -> float:
    """Return the mean number of tokens that one verification yields, bonus token included."""
    if setting.steps == 0 or setting.wiring == "none":
        return 1.0
    if setting.wiring == "layers":
        return min(1.3, 1 + 0.054 * math.pow(setting.steps, 0.6))
    length = sum(math.pow(setting.accept, i) for i in range(setting.steps + 1))
    return length if setting.topk == 1 else min(setting.draft_tokens, length * (1 + 0.04 * (setting.topk - 1) ** 0.5))


def phases_ms(setting: Setting) -> dict[str, float]:
    """Return how long each phase of one decode cycle takes; the sum is the cycle."""
    if setting.steps == 0:
        cycle = 1000 / BASELINE_TOK_S
        return {"decode": cycle - SAMPLING_MS - IDLE_MS, "sampling": SAMPLING_MS, "idle": IDLE_MS}
    drafted = max(setting.draft_tokens - 1, setting.steps)
    verify = (22.3 + 4 * (drafted - 2)) * (1.0 if setting.tuned else UNTUNED)
    return {
        "draft": DRAFT_MS * setting.steps,
        "target_verify": verify - SAMPLING_MS - IDLE_MS,
        "sampling": SAMPLING_MS,
        "idle": IDLE_MS,
    }


def shares(setting: Setting) -> dict[str, float]:
    """Return each phase's share of the cycle."""
    phases = phases_ms(setting)
    cycle = sum(phases.values())
    return {name: duration / cycle for name, duration in phases.items()}


def tok_s(setting: Setting) -> float:
    """Return output tokens a second of one request at a time, without noise."""
    return 1000 * accept_length(setting) / sum(phases_ms(setting).values())
