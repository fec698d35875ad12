"""How often decisions are right, and what they cost: the real search and statistics on simulated servers.

Every number here is simulated; nothing is launched. Two surfaces: ``seed`` (a step count under four NCCL protocols)
and ``curve`` (steps 1 to 8 with accept lengths of 1.83 to 3.77). On both the best configuration is 5.9 % faster than
the baseline; on ``flat`` nothing differs from it. A launch moves all its repeats by s_l, every repeat moves by s_w:
A (0.3, 0.3) %, B (1, 2) %, C (2, 2) %, D (5, 10) %. The host may drift: ``line`` loses 0.2 % a launch, ``step`` 3 %
at the eighth launch, ``walk`` wanders by 0.3 % a launch. A launch is measured 3 to 10 times, until the repeats vary
by 1 %; the tools that are compared with repeat as their own rules say.

    python benchmarks/decisions.py [--seeds 2000] [--first 100000] [--only figures|unlimited|drift|peers] [--noise ABCD]

Columns: wins = *improved* or *goal met*; not = *not improved*; launches on average and at most; regret = how much
slower the chosen configuration truly is than the best one, on average.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.cli.adviser import advise
from agent.core import search
from agent.core.expressions import compile as compile_expression
from agent.core.observations import Completed
from agent.core.plan import Axis, Budget, Expr, Goal, Plan, Search, Server, Stage, Trial
from agent.core.probes.advice import read_advice
from agent.core.search import Consult, Finished, Record, Score, propose
from agent.core.statistics import cv, mean, sd

NOISES = {"A": (0.003, 0.003), "B": (0.01, 0.02), "C": (0.02, 0.02), "D": (0.05, 0.10)}
DRIFTS = ("none", "line", "step", "walk")
PROTOCOLS = (None, "LL", "LL128", "Simple")
LENGTHS = (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77)
TRUE_GAIN = 1.059
LAUNCH_H = 890 / 3600

Point = tuple[int | None, str | None]
"""Steps (None = no speculation) and NCCL protocol: what the surfaces depend on."""
Truth = Callable[[Point], float]


# ---------------------------------------------------------------- surfaces


def seed_surface(point: Point) -> float:
    """Tokens per second of the seed campaign: 94.0 at 2 steps under LL, 88.8 without speculation."""
    steps, protocol = point
    if steps is None:
        return 88.8
    slow = 1.0 if protocol == "LL" else 1 / 0.73
    return 1000 * sum(0.68**i for i in range(steps + 1)) / (0.25 * steps + (22.3 + 4 * (steps - 2)) * slow)


def curve_surface(point: Point) -> float:
    """Tokens per second from the measured accept lengths and the seed's cost of a step; two best points 0.1 % apart."""
    steps = point[0]
    if steps is None:
        return max(curve_surface((k, None)) for k in range(1, 9)) / TRUE_GAIN
    return 1000 * LENGTHS[steps - 1] / (0.25 * steps + 22.3 + 4 * (steps - 2))


def flat_surface(point: Point) -> float:
    """Nothing makes a difference: whatever wins is a false win."""
    return 88.8


SURFACES: dict[str, tuple[Truth, tuple[Point, ...]]] = {
    "seed": (seed_surface, tuple((k, p) for p in PROTOCOLS for k in range(1, 11))),
    "flat": (flat_surface, tuple((k, p) for p in PROTOCOLS for k in range(1, 11))),
    "curve": (curve_surface, tuple((k, None) for k in range(1, 9))),
}


# ---------------------------------------------------------------- the host


class Host:
    """A simulated host: one launch after the other, each with a number of its own."""

    def __init__(self, truth: Truth, noise: str, drift: str, seed: str) -> None:
        self.truth, self.drift, (self.s_l, self.s_w) = truth, drift, NOISES[noise]
        self.draw, self.launches, self.moved = random.Random(seed), 0, 0.0

    def launch(self, point: Point, least: int = 3, most: int = 10) -> list[float]:
        """Launch and measure: repeats until they vary by 1 %, at least and at most so many."""
        self.launches += 1
        if self.drift == "line":
            self.moved -= 0.002
        elif self.drift == "step" and self.launches == 8:
            self.moved -= 0.03
        elif self.drift == "walk":
            self.moved += self.draw.gauss(0, 0.003)
        centre = self.truth(point) * math.exp(self.moved + self.draw.gauss(0, self.s_l))
        found: list[float] = []
        while len(found) < least or (len(found) < most and cv(found) > 0.01):
            found.append(centre * math.exp(self.draw.gauss(0, self.s_w)))
        return found


# ---------------------------------------------------------------- who decides


@dataclass(frozen=True)
class Outcome:
    """How one campaign ended: the word, the configuration it would choose, and its launches."""

    word: str
    chosen: Point
    launches: int


Decider = Callable[[Host, Sequence[Point], int], Outcome]
"""Runs a campaign over these points on a host, with a number for what it draws itself."""


def memo() -> Callable[[str, Mapping[str, Any]], Any]:
    """Return the evaluator of campaigns, remembering what it was asked: thousands of campaigns ask the same."""
    known: dict[str, Any] = {}

    def evaluate(text: str, variables: Mapping[str, Any]) -> Any:
        key = f"{text}|{variables!r}"
        if key not in known:
            known[key] = compile_expression(text).evaluate(variables)
        return known[key]

    return evaluate


EVALUATE = memo()


def remember() -> None:
    """Remember trials and their digests between campaigns: pure functions of the same plans, asked again and again."""
    trials: dict[Any, Trial] = {}
    digests: dict[int, str] = {}
    resolve, digest = search.resolve_trial, Trial.launch_digest

    def resolve_once(plan: Plan, name: str, role: Any, stage: str, point: Mapping[str, Any], *rest: Any) -> Trial:
        key = (id(plan), name, role, stage, tuple(point.items()), not rest[0])
        if key not in trials:
            trials[key] = resolve(plan, name, role, stage, dict(point), *rest)
            digests[id(trials[key])] = digest(trials[key])
        return trials[key]

    search.resolve_trial = resolve_once  # type: ignore[assignment]
    Trial.launch_digest = lambda self: digests.get(id(self)) or digest(self)  # type: ignore[method-assign]


@lru_cache(maxsize=64)
def plan_of(points: tuple[Point, ...], strategy: str, budget: int | None, most: int | None, seed: int = 0) -> Plan:
    """Build the campaign: NCCL first where there is a choice, then the steps, as ``unimodal`` or ``grid``."""
    protocols = list(dict.fromkeys(protocol for _, protocol in points))
    steps = Axis(target="flags", key="steps", values=tuple(dict.fromkeys(k for k, _ in points)))
    stages = [Stage(name="steps", axes=(steps,), strategy="unimodal" if strategy == "unimodal" else "grid")]
    if strategy == "optuna":
        both = (steps, Axis(target="env", key="NCCL_PROTO", values=tuple(protocols)))
        stages = [Stage(name="both", axes=both, strategy="optuna", sample=12)]
    elif len(protocols) > 1:
        nccl = Axis(target="env", key="NCCL_PROTO", values=tuple(protocols))
        stages.insert(0, Stage(name="nccl", when="profile.share['verify'] > 0.5", axes=(nccl,)))
    return Plan(
        name="decisions",
        hosts={},
        server=Server(kind="sglang", host="box", port=8000, gpus=8, command=("serve",)),
        goal=Goal(improve=0.02),
        states=(),
        seed=seed,
        budget=Budget(launches=budget),
        search=Search(
            flags={"steps": 5, "draft": Expr(expr="flags['steps'] + 1")}, stages=tuple(stages), confirm_most=most
        ),
    )


def point_of(trial: Trial) -> Point:
    """Return what the surface needs to know of a trial."""
    steps = trial.flags.get("steps")
    return (steps if isinstance(steps, int) else None), trial.env.get("NCCL_PROTO")


def agent(strategy: str = "unimodal", budget: int | None = None, most: int | None = 6) -> Decider:
    """Return this project's decisions."""

    def decide(host: Host, points: Sequence[Point], seed: int) -> Outcome:
        plan = plan_of(tuple(points), strategy, budget, most, seed if strategy == "optuna" else 0)
        history: list[Record] = []
        advice: dict[str, list[tuple[int, ...] | None]] = {}
        while not isinstance(step := propose(plan, history, EVALUATE, advice=advice), Finished):
            if isinstance(step, Consult):
                answer = advise(step.action)
                said = read_advice(answer.out.string(), step.action) if isinstance(answer, Completed) else None
                advice.setdefault(step.action.stage, []).append(said or None)
                continue
            repeats = host.launch(point_of(step.trial))
            score = Score(mean(repeats), deviation=sd(repeats), repeats=len(repeats), profile={"verify": 0.95})
            history.append(Record(step.trial, score))
        if step.comparison is not None:
            word = step.comparison.word
        else:
            word = "not improved" if step.reason.startswith("no candidate beats") else "not conclusive"
        best = next((record.trial for record in history if record.trial.id == step.winner), None)
        return Outcome(word, point_of(best) if best else (None, None), host.launches)

    return decide


def by_maximum(order: Callable[[Sequence[Point], int], Sequence[Point]], least: int = 1, most: int = 1) -> Decider:
    """Return a tool that measures points once each and takes the best number: a gain is what exceeds the baseline."""

    def decide(host: Host, points: Sequence[Point], seed: int) -> Outcome:
        values = {(None, None): mean(host.launch((None, None), least, most))}
        for point in order(points, seed):
            values[point] = mean(host.launch(point, least, most))
        chosen = max(values, key=lambda point: values[point])
        return Outcome("improved" if chosen != (None, None) else "not improved", chosen, host.launches)

    return decide


def random_points(count: int) -> Decider:
    """Random search: so many points drawn without repeats, the maximum wins."""
    return by_maximum(lambda points, seed: random.Random(seed).sample(points, min(count, len(points))), 3, 3)


def sglang_auto_benchmark(count: int = 8) -> Decider:
    """The rule of ``sglang.auto_benchmark`` with a fixed rate: the first candidates of the product of its search
    space (8 by default), one run of the benchmark on a launch each, the largest output throughput is the result."""
    return by_maximum(lambda points, seed: points[:count])


def vllm_bench_sweep() -> Decider:
    """The rule of ``vllm bench sweep serve``: every combination is launched, 3 runs each (``--num-runs``), and the
    reader of its summary takes the best mean."""
    return by_maximum(lambda points, seed: points, 3, 3)


def optuna_tpe(count: int) -> Decider | None:
    """Optuna's TPE over the same points, so many launches, the best value wins; None where Optuna is not installed."""
    try:
        import optuna  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def decide(host: Host, points: Sequence[Point], seed: int) -> Outcome:
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        steps = sorted({k for k, _ in points if k is not None})
        protocols = [str(protocol) for protocol in dict.fromkeys(protocol for _, protocol in points)]
        baseline = mean(host.launch((None, None), 3, 3))
        for _ in range(count):
            trial = study.ask()
            k = trial.suggest_int("steps", steps[0], steps[-1])
            protocol = trial.suggest_categorical("protocol", protocols)
            study.tell(trial, mean(host.launch((k, None if protocol == "None" else protocol), 3, 3)))
        if study.best_value <= baseline:
            return Outcome("not improved", (None, None), host.launches)
        best = study.best_params
        return Outcome(
            "improved", (best["steps"], None if best["protocol"] == "None" else best["protocol"]), host.launches
        )

    return decide


# ---------------------------------------------------------------- counting


@dataclass
class Tally:
    """What many campaigns of one kind came to."""

    best: float
    words: dict[str, int] = field(default_factory=dict)
    launches: list[int] = field(default_factory=list)
    regrets: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome, truth: Truth) -> None:
        """Count one campaign."""
        word = "improved" if outcome.word == "goal met" else outcome.word
        self.words[word] = self.words.get(word, 0) + 1
        self.launches.append(outcome.launches)
        self.regrets.append(1 - truth(outcome.chosen) / self.best)

    def rate(self, word: str) -> float:
        """Return the share of campaigns that ended with a word."""
        return self.words.get(word, 0) / len(self.launches)

    def row(self) -> str:
        """Write the tally as columns of the table."""
        count = len(self.launches)
        return (
            f"{self.rate('improved'):>8.2%} {self.rate('not improved'):>7.2%} {self.rate('not conclusive'):>9.2%}"
            f" {sum(self.launches) / count:>7.2f} {max(self.launches):>4}"
            f" {sum(self.launches) / count * LAUNCH_H:>6.1f} {sum(self.regrets) / count:>7.2%}"
        )


HEAD = (
    f"{'who':<26} {'surface':<7} {'noise':<5} {'drift':<5} {'wins':>8} {'not':>7} {'not concl':>9} {'launches':>7}"
    f" {'most':>4} {'hours':>6} {'regret':>7}"
)


def campaigns(
    decide: Decider, surface: str, noise: str, drift: str = "none", seeds: Iterable[int] = range(100)
) -> Tally:
    """Run a campaign for each seed."""
    truth, points = SURFACES[surface]
    tally = Tally(max(truth(point) for point in (*points, (None, None))))
    for seed in seeds:
        host = Host(truth, noise, drift, f"{surface}/{noise}/{drift}/{seed}")
        tally.add(decide(host, points, seed), truth)
    return tally


BUDGETS = {"A": 14, "B": 16, "C": 22, "D": 22}
"""Launches that a campaign may use, by noise: those of the figures to reach."""

Line = tuple[str, Decider | None, str, str, str]


def figures(noises: str) -> Iterator[Line]:
    """The figures that the project promises: true gains and no gains, without drift."""
    for noise in noises:
        for surface in ("seed", "curve", "flat"):
            yield f"unimodal, {BUDGETS[noise]} launches", agent("unimodal", BUDGETS[noise]), surface, noise, "none"
    if "A" in noises:
        for surface in ("seed", "flat"):
            yield "grid, 18 launches", agent("grid", 18), surface, "A", "none"


def curve(noises: str) -> Iterator[Line]:
    """The acceptance curve alone: eight step counts, whose best two are 0.1 % apart."""
    for noise in noises:
        yield f"unimodal, {BUDGETS[noise]} launches", agent("unimodal", BUDGETS[noise]), "curve", noise, "none"


def advised(noises: str) -> Iterator[Line]:
    """Optuna as the adviser of a stage of 12 points, with this project's confirmation."""
    for noise in noises:
        for surface in ("seed", "flat"):
            yield "optuna, 12 points", agent("optuna"), surface, noise, "none"


def unlimited(noises: str) -> Iterator[Line]:
    """Without a budget: up to 6 pairs, if nothing is settled before."""
    for noise in noises:
        for surface in ("seed", "flat"):
            yield "unimodal, no limit", agent("unimodal"), surface, noise, "none"


def drifts(noises: str) -> Iterator[Line]:
    """The same while the host drifts."""
    for drift in DRIFTS[1:]:
        for noise in noises:
            for surface in ("seed", "flat"):
                yield f"unimodal, {BUDGETS[noise]} launches", agent("unimodal", BUDGETS[noise]), surface, noise, drift


def peers(noises: str) -> Iterator[Line]:
    """What others' rules come to on the same hosts."""
    for noise in noises:
        for surface in ("seed", "flat"):
            whole = len(SURFACES[surface][1])
            yield "full grid and max()", by_maximum(lambda points, seed: points, 3, 3), surface, noise, "none"
            yield "random 16 and max()", random_points(16), surface, noise, "none"
            yield "Optuna TPE, 16 trials", optuna_tpe(16), surface, noise, "none"
            yield "sglang.auto_benchmark", sglang_auto_benchmark(), surface, noise, "none"
            yield f"vllm bench sweep ({whole})", vllm_bench_sweep(), surface, noise, "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed: others than those it was tuned on")
    parser.add_argument(
        "--only", choices=["figures", "unlimited", "drift", "peers", "curve", "advised"], action="append"
    )
    parser.add_argument("--noise", default="ABCD", help="which of A, B, C and D")
    args = parser.parse_args()
    remember()
    print(f"{args.seeds} simulated campaigns a line; hours: 890 s a launch, starts only")
    print(HEAD)
    parts = {"figures": figures, "unlimited": unlimited, "drift": drifts, "peers": peers}
    for part in args.only or list(parts):
        for who, decide, surface, noise, drift in {**parts, "curve": curve, "advised": advised}[part](args.noise):
            if decide is None:
                print(f"{who:<26} not installed")
                continue
            tally = campaigns(decide, surface, noise, drift, range(args.first, args.first + args.seeds))
            print(f"{who:<26} {surface:<7} {noise:<5} {drift:<5} {tally.row()}", flush=True)


if __name__ == "__main__":
    main()
