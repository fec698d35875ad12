"""The benchmark of a playbook, worked out: which script or tool, its files, its workloads, what counts as good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import re2

from . import plan
from .check import Findings
from .playbook_benchmark import Accuracy, Benchmark, Extract, Repeats
from .probes.accuracy import SCRIPT as ACCURACY_SCRIPT
from .probes.benchmark import BUILTIN, OWN_SCRIPTS, TOOLS
from .probes.benchmark import TOOL as TOOL_SCRIPT
from .wording import Path, did_you_mean
from .workloads import SETS

Digest = Callable[[str, Path], str]
_OWN = ("prompts", "output_tokens", "requests", "concurrency", "workloads", "warmup")
"""What only the agent's own load reads; a script or a tool has arguments of its own."""
TOOL = "builtin:tool"
LOAD_FLAGS = frozenset(
    [
        "--api",
        "--chat",
        "--concurrency",
        "--flush",
        "--host",
        "--model",
        "--output-tokens",
        "--port",
        "--prompts",
        "--prompts-file",
        "--request",
        "--requests",
        "--seed",
        "--stop-at-eos",
        "--timeout",
        "--unique-prefix",
        "--warmup",
        "--warmup-tokens",
        "--workloads",
        "--workloads-file",
    ]
)
"""What the agent's own load takes; anything else ends it before its first request."""


def resolve_benchmark(own: Benchmark, digest: Digest, findings: Findings) -> plan.Benchmark:
    """Return the benchmark in full; what is wrong with it goes to ``findings``."""
    _check(own, findings)
    loads = _workloads(own)
    named = {name: digest(name, ("benchmark", "files", place)) for place, name in enumerate(own.files)}
    files = {name.rsplit("/", 1)[-1]: sha256 for name, sha256 in named.items()}
    if len(files) < len(named) or files.keys() & set(OWN_SCRIPTS.values()):
        message = "two files of one name would stand in one folder"
        findings.add("E_CONFLICT", ("benchmark", "files"), message, "rename one", found="", key=True)
    if own.tool:
        files[BUILTIN] = digest("builtin", ("benchmark", "tool"))
    script = own.script or (TOOL if own.tool else "builtin")
    slo = own.slo.model_dump(exclude_none=True) if own.slo is not None else {}
    return plan.Benchmark(
        script=script,
        sha256=digest(script, ("benchmark", "script" if own.script else "tool")),
        args=own.args,
        tool=own.tool or "",
        command=(own.command or TOOLS[own.tool].command) if own.tool else (),
        files=files,
        metrics={name: _extract(how, ("benchmark", "metrics", name), findings) for name, how in own.metrics.items()},
        slo={name: seconds * 1000.0 for name, seconds in slo.items()},
        workload=loads[0],
        workloads=loads if len(loads) > 1 or own.workloads else (),
        repeats=_repeats(own, findings),
        timeout_s=own.timeout,
    )


def _check(own: Benchmark, findings: Findings) -> None:
    written = own.model_fields_set
    path: Path = ("benchmark",)

    def refuse(key: str, message: str, remedy: str, code: str = "E_CONFLICT") -> None:
        findings.add(code, (*path, key), message, remedy, found="", key=True)

    if own.tool and own.script:
        refuse("tool", "a script and a tool cannot both measure", "leave one out; a script may start the tool itself")
    if own.tool or (own.script and own.script != "builtin"):
        for key in _OWN:
            if key in written:
                who = own.tool or own.script
                refuse(key, f"only the agent's own load reads this; {who} does not", f"write it among `args` of {who}")
    if not own.tool and own.script in (None, "builtin"):
        for place, word in enumerate(own.args):
            name = word.partition("=")[0]
            if name.startswith("--") and not any(flag.startswith(name) for flag in LOAD_FLAGS):
                remedy = did_you_mean(name, LOAD_FLAGS)
                findings.add("E_REF", (*path, "args", place), "the agent's own load has no such flag", remedy)
    for key in ("command", "metrics"):
        if key in written and not own.tool:
            refuse(key, "it belongs to a tool", "write `tool: command`, or leave it out")
    if own.tool == "command":
        for key in ("command", "metrics"):
            if not getattr(own, key):
                remedy = {
                    "command": "write `command: [pgbench, …]`",
                    "metrics": "write `metrics: {tps: {pattern: 'tps = ([0-9.]+)'}}`",
                }[key]
                findings.add("E_MISSING", (*path, "tool"), f"`{key}` is missing", remedy, found="", key=True)
    if own.tool and own.slo and not _tells(own.tool):
        refuse("slo", f"{own.tool} does not tell how many requests met a limit", "leave it out")
    if own.workloads and isinstance(own.concurrency, tuple):
        refuse("concurrency", "`workloads` and a list of concurrencies say the same twice", "give each its own")
    if own.slo is not None and not own.slo.model_dump(exclude_none=True):
        refuse("slo", "no limit is given", "write `slo: {ttft: 500ms, tpot: 50ms}`")


def _tells(tool: str) -> bool:
    return TOOLS[tool].tells_slo


def _extract(own: Extract, path: Path, findings: Findings) -> plan.Extract:
    if (own.json_ is None) == (own.pattern is None):
        remedy = "write `{pattern: 'tps = ([0-9.]+)'}` or `{json: results.0.tps}`"
        findings.add("E_CONFLICT", path, "a number stands in one place", remedy, found="", key=True)
    if own.pattern is not None:
        try:
            groups = re2.compile(own.pattern).groups
        except re2.error:
            findings.add("E_PATTERN", (*path, "pattern"), "no pattern of RE2", "no look-ahead, no back-reference")
        else:
            if groups == 0:
                message = "no group: nothing says which part of the match is the number"
                findings.add("E_PATTERN", (*path, "pattern"), message, "write 'tps = ([0-9.]+)'")
            if groups > 1:
                findings.add("E_PATTERN", (*path, "pattern"), "more than one group", "write (?:…) for the others")
    if own.file is not None and (own.file.startswith("/") or ".." in own.file.split("/")):
        findings.add("E_PATH", (*path, "file"), "a file that the tool leaves in its folder", "write result.json")
    return plan.Extract(json_=own.json_ or "", pattern=own.pattern or "", file=own.file or "")


def _repeats(own: Benchmark, findings: Findings) -> plan.Repeats:
    repeats = own.repeats if isinstance(own.repeats, Repeats) else Repeats(min=own.repeats, max=own.repeats)
    most = repeats.max or max(repeats.min, 10 if repeats.until_cv is not None else repeats.min)
    path: Path = ("benchmark", "repeats", "max")
    if most < repeats.min:
        findings.add("E_RANGE", path, "less than min", f"write {repeats.min} or more")
    if repeats.until_cv is not None and most < 2:
        findings.add("E_RANGE", path, "one repeat has no variation", "write `max: 10`")
    return plan.Repeats(min=repeats.min, max=most, until_cv=repeats.until_cv)


def _workloads(own: Benchmark) -> tuple[plan.Workload, ...]:
    """Return every workload in full; one where the benchmark names none."""

    def load(name: str, part: Any) -> plan.Workload:
        prompts = getattr(part, "prompts", None) or own.prompts
        values = {key: getattr(part, key, None) or getattr(own, key) for key in ("output_tokens", "requests")}
        level = getattr(part, "concurrency", None) or own.concurrency
        concurrency = level if isinstance(level, int) else level[0]  # a list beside `workloads` is refused already
        set_name = prompts if isinstance(prompts, str) else "own"
        texts = SETS[prompts] if isinstance(prompts, str) else prompts
        return plan.Workload(name=name or set_name, prompts=texts, concurrency=concurrency, warmup=own.warmup, **values)

    if own.workloads:
        return tuple(load(name, part) for name, part in own.workloads.items())
    if isinstance(own.concurrency, tuple):
        levels = dict.fromkeys(own.concurrency)
        return tuple(
            load(f"c{level}", own.model_copy(update={"concurrency": level, "requests": max(level, own.requests)}))
            for level in levels
        )
    return (load("", own),)


def resolve_accuracy(own: Accuracy | str | None, kind: str, digest: Digest, findings: Findings) -> plan.Accuracy | None:
    """Return what answers are held to; None when nothing is asked: told so, or a server of no known kind."""
    if own == "off" or (own is None and kind == "command"):
        return None
    own = own if isinstance(own, Accuracy) else Accuracy()
    path: Path = ("accuracy",)
    if (own.command is None) != (own.metric is None):
        remedy = "write `command: [lm-eval, …]` and `metric: {json: results.acc}`"
        findings.add("E_CONFLICT", path, "a command and its metric belong together", remedy, found="", key=True)
    if own.command and own.questions:
        findings.add("E_CONFLICT", (*path, "questions"), "the command asks its own", "leave one out", key=True)
    if own.files and not own.command:
        findings.add("E_CONFLICT", (*path, "files"), "they belong to a command", "leave them out", found="", key=True)
    files = {name.rsplit("/", 1)[-1]: digest(name, (*path, "files", n)) for n, name in enumerate(own.files)}
    files[BUILTIN] = digest("builtin", path)
    if own.command:
        files[TOOL_SCRIPT] = digest(TOOL, path)
    else:
        files[ACCURACY_SCRIPT] = digest("builtin:accuracy", path)
    if own.questions:
        files["questions.json"] = digest(own.questions, (*path, "questions"))
    return plan.Accuracy(
        tokens=own.tokens,
        agree=own.agree,
        drop=own.drop,
        tie=own.tie,
        command=own.command or (),
        metric=_extract(own.metric, (*path, "metric"), findings) if own.metric else plan.Extract(),
        files=files,
        timeout_s=own.timeout,
    )
