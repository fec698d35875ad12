"""Checks on what a search changes in the load and not in the server: no launch is needed, and not every load has it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from . import plan
from .check import Findings
from .fields import UNSET
from .guards import Guard
from .guards.valid import BenchValid
from .playbook import Playbook
from .resolve_owned import changed
from .servers import kind_of
from .wording import Path

OWN = ("concurrency", "requests", "output_tokens")
"""What the agent's own load can be changed to, each a number."""
WRITTEN = {
    **dict.fromkeys(("model", "prompt", "messages", "text", "input", "stream", "stream_options"), "leave it out"),
    **dict.fromkeys(
        ("max_tokens", "n_predict", "max_new_tokens", "max_completion_tokens"), "write `benchmark: {output_tokens: …}`"
    ),
    **dict.fromkeys(("ignore_eos", "seed"), "write it among `benchmark.args`: --stop-at-eos, --seed N"),
}
"""Fields of a request that the load itself writes."""
_CONTEXT = {"sglang": "context-length", "vllm": "max-model-len", "llamacpp": "ctx-size"}
"""The flag that says how many tokens a prompt and its answer have together."""
_USUAL = {
    "sglang.bench_serving": "--max-concurrency",
    "vllm bench serve": "--max-concurrency",
    "aiperf": "--concurrency",
    "guidellm": "--rate",
}


def check_loads(playbook: Playbook, resolved: plan.Plan, findings: Findings) -> None:
    """Refuse changes of the load that the playbook's load does not have, and orders that cannot work."""
    for path, target, key, values in _written(playbook, resolved):
        _check_key(playbook, path, target, key, values, findings)
    moved = ""
    for number, stage in enumerate(resolved.search.stages):
        path = ("search", "stages", number)
        if stage.loads() and stage.strategy == "halving":
            remedy = "use grid: further points cost no launch"
            findings.add(
                "E_CONFLICT", (*path, "strategy"), "halving spends launches, and these points need none", remedy
            )
        if moved and stage.when and re.search(r"\bprofile\b", stage.when):
            message = f"it reads a profile of its base, which stage {moved} measures on a launch that is not profiled"
            findings.add("E_CONFLICT", (*path, "when"), message, f"put this stage before {moved}")
        moved = moved or (stage.name if stage.loads() else "")


def check_lengths(playbook: Playbook, resolved: plan.Plan, findings: Findings) -> None:
    """Refuse answers that are longer than the longest context of any trial, where the flags say what that is."""
    kind = kind_of(playbook.server.kind)
    canonical, wanted = getattr(kind, "canonical", str), _CONTEXT.get(playbook.server.kind, "")
    places = [playbook.server.flags, *(place.flags for place in changed(playbook))]
    named = [
        [value for name, value in flags.items() if canonical(name) == canonical(wanted)] for flags in places if wanted
    ]
    sizes = [size for found in named for value in found for size in getattr(value, "sweep", (value,))]
    # Without a number the model's own length holds, which is not known here; 0 asks for just that.
    if not named or not named[0] or not all(type(size) is int and size > 0 for size in sizes):
        return
    own, longest = playbook.benchmark, max(sizes)
    asked: list[tuple[Path, Any]] = [(("benchmark", "output_tokens"), own.output_tokens)]
    asked += [
        (("benchmark", "workloads", name, "output_tokens"), load.output_tokens) for name, load in own.workloads.items()
    ]
    for path, _, key, values in _written(playbook, resolved):
        asked += [(path, value) for value in values if key == "output_tokens"]
    for path, tokens in asked:
        if type(tokens) is int and tokens >= longest:
            message = f"{tokens} tokens and a prompt do not fit into a context of {longest}"
            findings.add("E_CONFLICT", path, message, f"write less, or raise `{wanted}`", found=str(tokens))


def check_warmup(playbook: Playbook, resolved: plan.Plan, findings: Findings) -> None:
    """Refuse to send nothing beforehand where a guard wants it: no result would count."""
    if playbook.benchmark.warmup or playbook.server.kind == "command" or playbook.benchmark.tool:
        return
    for state in resolved.states:
        if not any(isinstance(guard, BenchValid) and not guard.cold_ok for guard in state.guards):
            continue
        own = playbook.states.get(state.name)
        words = ", ".join(_spelled(guard) for guard in state.guards)
        meant = f"`states: {{{state.name}: {{guards: [{words}]}}}}`"
        if own is not None and own.guards is not None:
            meant = f"`cold_ok: true` at that guard of {state.name}"
        message = "bench_valid holds no result that begins with cold requests"
        findings.add("E_CONFLICT", ("benchmark", "warmup"), message, f"write `warmup: 1`; if it is meant, {meant}")
        return


def _spelled(guard: Guard) -> str:
    """Write a guard of the ladder as a playbook does, bench_valid with what allows cold requests."""
    options = {**guard.model_dump(by_alias=True, exclude_defaults=True), "guard": guard.guard}
    options |= {"cold_ok": True} if isinstance(guard, BenchValid) else {}
    others = [f"{key}: {json.dumps(value)}" for key, value in options.items() if key != "guard"]
    return f"{{{', '.join([f'guard: {guard.guard}', *others])}}}" if others else guard.guard


def _written(playbook: Playbook, resolved: plan.Plan) -> Iterator[tuple[Path, str, str, tuple[Any, ...]]]:
    """Yield what stages and points change in the load: place, target, key and the values."""
    search = playbook.search
    stages = search.stages if search is not None and playbook.trials is None else ()
    for number, stage in enumerate(stages):
        rows: list[tuple[Path, Any]] = [(("search", "stages", number), stage)]
        rows += [(("search", "stages", number, "points", place), point) for place, point in enumerate(stage.points)]
        for path, part in rows:
            yield from _parts(path, part)
    for place, point in enumerate(playbook.trials or ()):
        yield from _parts(("trials", place), point)


def _parts(path: Path, part: Any) -> Iterator[tuple[Path, str, str, tuple[Any, ...]]]:
    for target in plan.LOADS:
        for key, value in getattr(part, target).items():
            sweep = getattr(value, "sweep", None)
            yield (*path, target, key), target, key, tuple(sweep) if sweep is not None else (value,)


def _check_key(
    playbook: Playbook, path: Path, target: str, key: str, values: tuple[Any, ...], findings: Findings
) -> None:
    own = playbook.benchmark
    other = own.tool or (own.script if own.script not in (None, "builtin") else "")

    def refuse(message: str, remedy: str) -> None:
        findings.add("E_CONFLICT", path, message, remedy, found=key, key=True)

    if target == "request":
        if other:
            refuse(
                f"only the agent's own load sends this; {other} does not", f"sweep a flag of {other} under `benchmark`"
            )
        elif key in WRITTEN:
            refuse("the load writes this field itself", WRITTEN[key])
    elif key in OWN:
        if other:
            usual = _USUAL.get(other, "--its-flag")
            refuse(f"only the agent's own load reads this; {other} does not", f"sweep its flag: `{usual}`")
        elif own.workloads or isinstance(own.concurrency, tuple):
            refuse("each workload has its own", "leave it out, or measure one workload")
        elif not all(type(value) is int and value >= 1 for value in values if value not in (None, UNSET)):
            findings.add("E_RANGE", path, f"{key} is a whole number of at least 1", "write [1, 8, 32]")
    elif not other:
        refuse("the agent's own load has no such flag to change", f"write {', '.join(OWN)}, or name a `tool`")
