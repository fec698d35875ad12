"""Simulated campaigns over one search: a plan around it, a surface, and a bench that follows the proposals."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.core.actions import Advise
from agent.core.campaign.choices import may_share
from agent.core.expressions import compile as compile_expression
from agent.core.plan import Axis, Expr, Goal, Plan, Search, Server, Stage, Trial
from agent.core.search import Consult, Finished, Next, Record, Score, propose

STEPS, DRAFT = "speculative-num-steps", "speculative-num-draft-tokens"
TUNED = (90.6, 94.0, 90.8, 85.3, 79.2, 73.2, 67.7, 62.7, 58.2, 54.2)
VERIFY = {"target_verify": 0.95, "draft": 0.03}

NCCL = Stage(
    name="nccl",
    when="profile.share['target_verify'] > 0.5",
    axes=(Axis(target="env", key="NCCL_PROTO", values=(None, "LL", "LL128", "Simple")),),
)
SWEEP = Stage(name="steps", axes=(Axis(target="flags", key=STEPS, values=tuple(range(1, 11))),), strategy="unimodal")
BASE = {STEPS: 5, DRAFT: Expr(expr=f"flags['{STEPS}'] + 1"), "speculative-algorithm": "EAGLE3"}


def evaluate(text: str, variables: Mapping[str, Any]) -> Any:
    """Evaluate the way campaigns do."""
    return compile_expression(text).evaluate(variables)


def plan(*stages: Stage, flags: dict[str, Any] | None = None, confirm: int = 2, **others: Any) -> Plan:
    """Build a plan around a search; by default the seed's."""
    server = Server(kind="sglang", host="box", port=8000, gpus=8, command=("serve",), flags={"model-path": "/m"})
    search = Search(flags=BASE if flags is None else flags, stages=stages or (NCCL, SWEEP), confirm_launches=confirm)
    return Plan(
        **{"name": "t", "hosts": {}, "server": server, "goal": Goal(improve=0.02), "states": (), "search": search}
        | others
    )


def knob(*values: Any, strategy: str = "grid", name: str = "knob", **others: Any) -> Stage:
    """Build a stage over one flag ``x``."""
    return Stage(name=name, axes=(Axis(target="flags", key="x", values=values),), strategy=strategy, **others)


def surface(trial: Trial, tuned: str = "LL") -> float:
    """Return the seed's tokens per second; ``tuned`` is the NCCL protocol that cuts verify time by 27 %."""
    steps = trial.flags.get(STEPS)
    if steps is None:
        return 88.8
    slow = 1.0 if trial.env.get("NCCL_PROTO", "unset") == tuned else 1 / 0.73
    length = sum(0.68**i for i in range(steps + 1))
    return 1000 * length / (0.25 * steps + (22.3 + 4 * (steps - 2)) * slow)


def normal(key: str) -> float:
    """Return a standard normal deviate that belongs to a key."""
    word = hashlib.sha256(key.encode()).digest()
    first, second = ((int.from_bytes(word[i : i + 8], "big") + 0.5) / 2**64 for i in (0, 8))
    return math.sqrt(-2 * math.log(first)) * math.cos(2 * math.pi * second)


@dataclass
class Bench:
    """A simulated campaign: measures what the search proposes until it has finished."""

    plan: Plan
    truth: Callable[[Trial], float | None] = surface
    seed: int = 0
    s_l: float = 0.0
    s_w: float = 0.0
    profile: Mapping[str, float] = field(default_factory=lambda: VERIFY)
    rejects: Callable[[Trial], str] | None = None
    history: list[Record] = field(default_factory=list)
    adviser: Callable[[Advise], tuple[int, ...] | None] = lambda action: None
    advice: dict[str, list[tuple[int, ...] | None]] = field(default_factory=dict)
    asked: list[Advise] = field(default_factory=list)

    def score(self, trial: Trial) -> Score:
        """Measure three repeats of one launch."""
        value = self.truth(trial)
        if value is None:
            return Score(None, "CRASH")
        key = f"{self.seed}/{trial.id}"
        centre = value * math.exp(self.s_l * normal(key))
        repeats = [centre * math.exp(self.s_w * normal(f"{key}/{i}")) for i in range(3)]
        mean = sum(repeats) / 3
        sd = math.sqrt(sum((repeat - mean) ** 2 for repeat in repeats) / 2)
        return Score(mean, deviation=sd, repeats=3, profile=self.profile)

    def run(self) -> Finished:
        """Follow the proposals to the end."""
        while True:
            step, up = self.next(), self.up()
            if isinstance(step, Finished):
                return step
            assert len(self.history) < 200, "the search does not end"
            same = up is not None and step.trial.launch_digest() == up.trial.launch_digest()
            number = self.launches + 1 - (same and up is not None and may_share(up.trial, step.trial))
            self.history.append(Record(step.trial, self.score(step.trial), f"l{number}"))

    @property
    def launches(self) -> int:
        """How many servers were started."""
        return len({record.launch for record in self.history})

    def next(self) -> Next:
        """Return what is proposed now; the adviser is asked as long as that is what is proposed."""
        up = self.up()
        running = up.trial.launch_digest() if up is not None else ""
        while True:
            step = propose(
                self.plan,
                self.history,
                evaluate,
                self.rejects,
                launches=self.launches,
                running=running,
                advice=self.advice,
            )
            if not isinstance(step, Consult):
                return step
            self.asked.append(step.action)
            self.advice.setdefault(step.action.stage, []).append(self.adviser(step.action))

    def up(self) -> Record | None:
        """Return what was measured last, where a server is left that another trial may be measured on."""
        last = self.history[-1] if self.history else None
        return last if last is not None and last.score is not None and last.score.value is not None else None

    @property
    def ids(self) -> list[str]:
        """The trials in the order they were launched."""
        return [record.trial.id for record in self.history]
