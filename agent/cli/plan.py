"""``agent plan PLAYBOOK``: what a run would do, before anything is contacted."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.core.forecast import Forecast
    from agent.core.plan import Plan

START_S = {"llamacpp": 10.0, "command": 30.0, "vllm": 300.0, "sglang": 900.0}
"""Assumed seconds of one start, where no earlier run tells: said as an assumption in the output."""


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("plan", help="what a run would do: trials, launches, time, states; contacts nothing")
    command.add_argument("playbook", type=Path)
    command.add_argument("--start", default="", metavar="DURATION", help="how long one server start takes, as 15m")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.loading import load
    from agent.cli.text import safe
    from agent.core.campaign.choices import evaluate
    from agent.core.forecast import forecast
    from agent.core.values import parse_duration

    _, plan, _ = load(args.playbook)
    cost = forecast(plan, evaluate)
    start_s = parse_duration(args.start) if args.start else START_S[plan.server.kind]
    document = summary(plan, cost, start_s)
    if args.json:
        print(json.dumps(document))
        return 0
    for line in lines(document):
        print(safe(line))
    return 0


def cycle_s(plan: Plan, start_s: float) -> float:
    """Estimate the seconds of one launch with its benchmark: the start, and the tokens at an assumed 50 tok/s."""
    if plan.benchmark is None:
        return start_s
    loads, repeats = plan.benchmark.workloads or (plan.benchmark.workload,), plan.benchmark.repeats.min
    waits = ((load.requests + load.warmup) * load.output_tokens / max(1, load.concurrency) for load in loads)
    return start_s + sum(waits) * repeats / 50.0 + 3.0


def summary(plan: Plan, cost: Forecast, start_s: float) -> dict[str, Any]:
    """Return the plan for programs."""
    from agent.core.servers import kind_of

    kind, one = kind_of(plan.server.kind), cycle_s(plan, start_s)
    # Points of the load that share a launch cost their benchmark; those of a stage that may be skipped are not counted.
    shared = sum(max(0, stage.points - stage.most) for stage in cost.stages if stage.loads and not stage.when)
    return {
        "playbook": plan.name,
        "aim": plan.aim,
        "hosts": {host.name: host.address for host in plan.hosts.values()},
        "goal": plan.goal.model_dump(mode="json"),
        "trials": [
            {
                "trial": trial.id,
                "stage": trial.stage,
                "label": trial.label(),
                "command": [*_container(plan), *kind.argv(plan.server, trial)],
                "env": trial.env,
                "benchmark": trial.benchmark,
                "request": trial.request,
            }
            for trial in cost.trials
        ],
        "debug": inquiry(plan),
        "stages": [stage.model_dump(mode="json") for stage in cost.stages],
        "launches": {
            "least": cost.least,
            "most": cost.most,
            "bound": cost.bound,
            "warm": cost.warm,
            "base": cost.base,
            "again": cost.again,
            "confirm": cost.confirm,
            "confirm_most": cost.confirm_most,
            "capped": cost.capped,
        },
        "proof": cost.proof.model_dump(mode="json") if cost.proof else None,
        "warnings": [warning.model_dump(mode="json") for warning in cost.warnings],
        "time_s": {
            "least": cost.least * one + shared * (one - start_s),
            "most": cost.most * one + shared * (one - start_s),
            "assumed_start_s": start_s,
        },
        "budget": plan.budget.model_dump(mode="json"),
        "replaces": plan.server.replaces.model_dump(mode="json") if plan.server.replaces else None,
        "secrets": sorted(plan.secrets),
        "files": plan.files,
        "states": [
            {
                "state": state.name,
                "do": list(state.do),
                "guards": [
                    guard.model_dump(mode="json", exclude_defaults=True, by_alias=True) | {"guard": guard.guard}
                    for guard in state.guards
                ],
                "on": state.on,
                "timeout_s": state.timeout_s,
                "attempts": state.attempts,
            }
            for state in plan.states
        ],
        "finally": plan.finally_,
    }


FINALLY = {
    "winner": "the winner is left running (the baseline's configuration when nothing is better)",
    "stop": "nothing of this run is left running",
    "restore": "the server that was replaced is started again with its own command",
}


def inquiry(plan: Plan) -> dict[str, Any] | None:
    """Return what a debug campaign is to find out, in the order of its tests; None for one that optimizes."""
    from agent.core.changes import place
    from agent.core.hypotheses import rank, wording

    debug = plan.debug
    if debug is None:
        return None

    def changed(one: Any) -> list[str]:
        return [f"{name} = {value}" for name, value in {**one.flags, **one.env}.items()] + [place(c) for c in one.files]

    bisect = debug.bisect
    return {
        "healthy": [guard.wants() for guard in debug.healthy],
        "hypotheses": [
            {"name": one.name, "because": one.because, "change": changed(one), "predicts": wording(one),
             "revert": one.revert, "launches": 0 if one.empty else 1, "rules_out": one.rules_out}
            for one in rank(debug)
        ],
        "bisect": {
            "mode": bisect.mode,
            "points": [{"name": one.name, "change": changed(one)} for one in bisect.points],
            "bad": [guard.wants() for guard in bisect.bad],
        } if bisect else None,
    }  # fmt: skip


def inquiry_lines(debug: dict[str, Any]) -> list[str]:
    """Return the same for people."""
    out = ["healthy is: " + "; ".join(debug["healthy"])] if debug["healthy"] else []
    for number, one in enumerate(debug["hypotheses"], 1):
        cost = "no launch" if not one["launches"] else "one launch"
        out += ["", f"{number}. {one['name']} ({cost}): {one['because']}"]
        out += [f"     change: {change}" for change in one["change"]]
        out += [f"     predicts: {one['predicts']}" + ("" if not one["change"] else f"; taken back: {one['revert']}")]
        out += [f"     if {word}, no test of {', '.join(names)}" for word, names in one["rules_out"].items()]
    if bisect := debug["bisect"]:
        how = "halved" if bisect["mode"] == "ordered" else "reduced to the smallest set"
        out += [f"{len(bisect['points'])} points, {how}; the fault is: {'; '.join(bisect['bad'])}"]
        out += [f"  {one['name']:<24} {'; '.join(one['change']) or 'as it is'}" for one in bisect["points"]]
    return [*out, ""]


def lines(document: dict[str, Any]) -> list[str]:
    """Return the plan for people."""
    from agent.core.values import duration_text

    goal, launches, time_s = document["goal"], document["launches"], document["time_s"]
    hosts = ", ".join(f"{name} = {address}" for name, address in document["hosts"].items())
    out = [f"{document['playbook']} ({document['aim']}) on {hosts}"]
    if document["debug"]:
        out += inquiry_lines(document["debug"])
    else:
        strict = " (strict)" if goal["strict"] else ""
        out += [f"goal: {goal['metric']} {goal['improve']:+.1%} over the baseline{strict}", ""]
    out.append("trials known beforehand:")
    for trial in document["trials"] if not document["debug"] else document["trials"][:1]:
        out.append(f"  {trial['trial']:<18} {trial['label']}")
        words = [*(f"{key}={value}" for key, value in trial["env"].items()), *trial["command"]]
        out.append(f"  {'':<18} $ {' '.join(words)}")
    out += ["", *_order(document)]
    span = f"{duration_text(time_s['least'])} to {duration_text(time_s['most'])}"
    capped = ", cut by the budget" if launches["capped"] else ""
    out += [
        f"launches: {launches['least']} to {launches['most']}{capped}{_at_worst(launches)}",
        f"time: {span}, assuming {duration_text(time_s['assumed_start_s'])} a start (--start to change)",
        *_proof(document["proof"]),
        *(f"warning: {one['message']}; {one['remedy']}" for one in document["warnings"]),
    ]
    if document["replaces"]:
        out.append(f"may end, after your yes to the list: {replaced(document['replaces'])}")
    out += ["", "states:"]
    for state in document["states"]:
        attempts = f", {state['attempts']} attempts" if state["attempts"] > 1 else ""
        out.append(
            f"  {state['state']:<13} do {', '.join(state['do'])}  ({duration_text(state['timeout_s'])}{attempts})"
        )
        if state["guards"]:
            out.append(f"  {'':<13} guards: " + ", ".join(_guard(guard) for guard in state["guards"]))
        out.append(f"  {'':<13} " + "  ".join(f"{outcome} → {target}" for outcome, target in state["on"].items()))
    out += ["", f"at the end: {FINALLY[document['finally']]}"]
    return out


def _container(plan: Plan) -> list[str]:
    """Return what stands before the server's own words where it runs in a container, as people would type it."""
    box = plan.server.container
    return [box.engine, "run", *box.options, box.image] if box is not None else []


def _order(document: dict[str, Any]) -> list[str]:
    """Say in which order launches come, and how many each part takes."""
    launches, confirm = document["launches"], document["launches"]["confirm"]
    rows = [(str(launches["warm"]), "baseline, to warm caches: discarded")] if launches["warm"] else []
    rows.append(("1", "baseline"))
    if launches["base"]:
        rows.append(("1", "base"))
    for stage in document["stages"]:
        when = f", when {stage['when']}" if stage["when"] else ""
        points = f"{stage['points']} points" if stage["points"] != 1 else "1 point"
        shared = stage["points"] - stage["most"] if stage["strategy"] != "unimodal" else 0
        known = f", {shared} of them known from another launch" if shared > 0 else ""
        known = ", measured on launches that they share" if stage["loads"] else known
        what = f"stage {stage['name']}: {stage['strategy']} over {points}{known}{when}"
        rows.append((_span(stage["least"], stage["most"]), what))
    if launches["again"]:
        rows.append((_span(0, launches["again"]), "candidates that are too close to tell apart, once more"))
    if confirm:
        most = launches["confirm_most"]
        rows.append((_span(0, most), f"confirmation: baseline and winner in turn, at first {confirm}"))
    return ["launches, in their order:", *(f"  {count:>6}  {what}" for count, what in rows)]


def _at_worst(launches: dict[str, Any]) -> str:
    """Say how many launches failures may make of it."""
    return f"; at most {launches['bound']} where launches fail" if launches["bound"] > launches["most"] else ""


def _span(least: int, most: int) -> str:
    return str(most) if least == most else f"{least}-{most}"


def _proof(proof: dict[str, Any] | None) -> list[str]:
    """Say what the confirmation can prove."""
    if proof is None:
        return []
    spread = proof["spread"]
    noise = f"launches that differ by {spread['launch']:.2%} and repeats by {spread['repeat']:.2%} (assumed)"
    pairs = f"{proof['most']} pairs find a gain of {proof['least_gain']:.1%} with a chance of 90 %"
    if not proof["wanted"]:
        return [f"proof: with {noise}, {pairs}"]
    needed = f"{proof['needed']} pairs" if proof["needed"] else "more than 64 pairs"
    return [f"proof: with {noise}, a gain of {proof['wanted']:.1%} takes {needed} for a chance of 90 %; {pairs}"]


def replaced(conditions: dict[str, Any]) -> str:
    """Say in words whose server may be replaced."""
    words = [f"`{' '.join(conditions['argv'])}` in its command line"] if conditions["argv"] else []
    words += [f"listening on port {conditions['port']}"] if conditions["port"] else []
    words += [f"of user {conditions['user']}"] if conditions["user"] else []
    words += [f"running {conditions['exe']}"] if conditions["exe"] else []
    servers = "1 server" if conditions["expect"] == 1 else f"{conditions['expect']} servers"
    if conditions.get("container"):
        servers = f"container {conditions['container']} (stopped, not removed)"
    return f"{servers} with " + ", ".join(words)


def _guard(guard: dict[str, Any]) -> str:
    options = ", ".join(f"{key}={value}" for key, value in guard.items() if key != "guard")
    return str(guard["guard"]) + (f"({options})" if options else "")
