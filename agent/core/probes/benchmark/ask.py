"""How a benchmark is asked for: the command line of one repeat as a host job, and the files it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...values import digest
from .tools import TOOLS

if TYPE_CHECKING:
    from ...plan import Benchmark, Server, Trial, Workload

PROMPTS_INLINE_CHARS_MAX = 16 * 1024
"""Prompts up to this size travel on the script's command line, longer ones as a file of the job."""
BUILTIN = "bench.py"
TOOL = "bench_tool.py"
OWN_SCRIPTS = {"builtin": BUILTIN, "builtin:tool": TOOL, "builtin:accuracy": "accuracy.py"}
"""The agent's own scripts by the name that stands for them where a playbook names a file."""
API = {
    "sglang": ("sglang", "--flush", "--unique-prefix"),
    "vllm": ("vllm", "--unique-prefix", "--seed", "-1"),
    "llamacpp": ("llamacpp",),
    "command": ("openai", "--unique-prefix", "--seed", "-1"),
}
"""The protocol of each server kind, and how its prefix cache is kept out of the measurement.

llama.cpp is asked not to use it, SGLang to empty it; elsewhere every prompt of every repeat begins differently.
"""


def prompts_text(workload: Workload) -> str:
    """Return the prompts as the JSON list that the script reads: pure ASCII, no line breaks."""
    return json.dumps(list(workload.prompts))


def workloads_text(workloads: tuple[Workload, ...]) -> str:
    """Return several workloads as the JSON list that the script reads, each set of prompts once."""
    rows: list[dict[str, Any]] = []
    sets: list[tuple[str, ...]] = []
    for load in workloads:
        if load.prompts not in sets:
            sets.append(load.prompts)
        row = {"name": load.name, "prompts": sets.index(load.prompts), "output_tokens": load.output_tokens}
        rows.append(row | {"requests": load.requests, "concurrency": load.concurrency})
    return json.dumps({"prompts": [list(prompts) for prompts in sets], "workloads": rows})


def _by_word_or_file(name: str, text: str) -> tuple[tuple[str, ...], dict[str, str], dict[str, bytes]]:
    """Return the words that hand over a text, the job's files by SHA-256, and the bytes behind these."""
    data = text.encode()
    if len(data) <= PROMPTS_INLINE_CHARS_MAX:
        return (f"--{name}", text), {}, {}
    file = f"{name}.json"
    return (f"--{name}-file", f"@job/{file}"), {file: digest(data)}, {digest(data): data}


def generated_files(benchmark: Benchmark) -> dict[str, bytes]:
    """Return the files that jobs of this benchmark need beside its script, by SHA-256; mostly none."""
    loads = _by_word_or_file("workloads", workloads_text(benchmark.workloads))[2] if benchmark.workloads else {}
    return {**_by_word_or_file("prompts", prompts_text(benchmark.workload))[2], **loads}


def prompt_words(workload: Workload) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the words that hand over the prompts, and the job's files (name to SHA-256) that they name."""
    return _by_word_or_file("prompts", prompts_text(workload))[:2]


def changed(benchmark: Benchmark, trial: Trial | None) -> Benchmark:
    """Return the benchmark as a trial changes it: its load, or the flags of its tool or script."""
    if trial is None or not trial.benchmark:
        return benchmark
    words = {key: value for key, value in trial.benchmark.items() if key.startswith("-")}
    own: dict[str, Any] = {key: value for key, value in trial.benchmark.items() if key not in words}
    if "concurrency" in own and "requests" not in own:
        # Fewer requests than are to be in flight would measure another concurrency than was asked for.
        own["requests"] = max(benchmark.workload.requests, int(own["concurrency"]))
    load = benchmark.workload.model_copy(update=own)
    return benchmark.model_copy(update={"workload": load, "args": with_words(benchmark.args, words)})


def with_words(args: tuple[str, ...], words: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a command line in which these flags have these values; None leaves a flag out, ``true`` writes it bare."""
    found: list[str] = []
    skip = False
    for place, word in enumerate(args):
        if skip:
            skip = False
            continue
        if word.partition("=")[0] not in words:
            found.append(word)
        elif "=" not in word and place + 1 < len(args):
            skip = not _is_flag(args[place + 1])
    for name, value in words.items():
        if value is True:
            found.append(name)
        elif value is not None and value is not False:
            found += [name, str(value)]
    return tuple(found)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:].replace(".", "", 1).isdigit()


def bench_command(
    benchmark: Benchmark, server: Server, trial: Trial | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line of one repeat and the job's files, by name, as SHA-256; of a trial, as it changes them.

    A script of the user's own gets its own arguments and nothing else; where to send requests stands in the
    environment (``AGENT_PORT``, ``AGENT_URL``). It must be executable by ``python3``, or by ``sh`` if it ends in .sh.
    """
    benchmark = changed(benchmark, trial)
    if benchmark.tool:
        return _tool_command(benchmark, server)
    if benchmark.script != "builtin":
        name = benchmark.script.rsplit("/", 1)[-1]
        shell = "sh" if name.endswith(".sh") else "python3"
        return (shell, f"@job/{name}", *benchmark.args), {name: benchmark.sha256, **benchmark.files}
    load = benchmark.workload
    if benchmark.workloads:
        words, files, _ = _by_word_or_file("workloads", workloads_text(benchmark.workloads))
    else:
        words, files = prompt_words(load)
        words = ("--concurrency", str(load.concurrency), "--warmup", str(load.warmup), *words)
        words = ("--output-tokens", str(load.output_tokens), "--requests", str(load.requests), *words)
    if benchmark.workloads:
        words = ("--warmup", str(load.warmup), *words)
    if trial is not None and trial.request:
        words = ("--request", json.dumps(trial.request), *words)
    argv = ("python3", f"@job/{BUILTIN}", "--port", str(server.port), "--api", *API[server.kind], *words)
    return (*argv, *benchmark.args), {BUILTIN: benchmark.sha256, **files}


def _tool_command(benchmark: Benchmark, server: Server) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line that runs a benchmark tool of somebody else and prints what it left behind."""
    tool = TOOLS[benchmark.tool]
    given = {word.partition("=")[0] for word in benchmark.args}
    usual = tuple(
        word
        for words in tool.usual
        if words[0] not in given and not given & set(tool.instead.get(words[0], ()))
        for word in words
    )
    slo: tuple[str, ...] = ()
    if benchmark.slo and tool.slo_words is not None and "--goodput" not in given:
        slo = tuple(tool.slo_words(benchmark.slo))
    results = tuple(word for name in tool.results for word in ("--result", name))
    argv = (
        *("python3", f"@job/{TOOL}", "--tool", benchmark.tool, "--port", str(server.port)),
        *(("--package", tool.package) if tool.package else ()),
        *results,
        "--",
        *benchmark.command,
        *usual,
        *slo,
        *benchmark.args,
    )
    return argv, {TOOL: benchmark.sha256, **benchmark.files}
