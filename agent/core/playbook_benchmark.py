"""The playbook language, the part on measuring: what loads the server, and what counts as good."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr, Tag

from .fields import Count, File, Latency, Metric, Part, Percent, Timeout, WorkloadName, by_kind

PromptSet = Literal["copy", "free", "mixed"]
Prompts = Annotated[
    Annotated[PromptSet, Tag("one")]
    | Annotated[Annotated[tuple[Annotated[StrictStr, Field(min_length=1)], ...], Field(min_length=1)], Tag("list")],
    by_kind("copy, free, mixed, or a list of prompts"),
]
ToolName = Literal[
    "sglang.bench_serving",
    "sglang.benchmark.one_batch_server",
    "vllm bench serve",
    "aiperf",
    "guidellm",
    "llama-bench",
    "command",
]


class Repeats(Part):
    """How often a benchmark is repeated in one launch."""

    min: Annotated[StrictInt, Field(ge=1, le=1000)] = 3
    """At least."""
    until_cv: Percent | None = None
    """Until the coefficient of variation is at most this."""
    max: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    """At most. Default: `min`, or 10 with `until_cv`."""


class Slo(Part):
    """Limits that a request has to meet to count as good; at least one."""

    ttft: Latency | None = None
    """Time to its first token."""
    tpot: Latency | None = None
    """Time per token after the first."""
    e2e: Latency | None = None
    """Time to its last token."""


class Workload(Part):
    """One of several loads of a repeat. What it leaves out is as the benchmark says."""

    prompts: Prompts | None = None
    """As the benchmark's."""
    output_tokens: Count | None = None
    """As the benchmark's."""
    requests: Count | None = None
    """As the benchmark's."""
    concurrency: Count | None = None
    """As the benchmark's."""


class Extract(Part):
    """Where a number stands in what a tool left: exactly one of `json` and `pattern`."""

    json_: StrictStr | None = Field(default=None, alias="json")
    """A path into JSON: `latency.p99`, `results.0.tps`."""
    pattern: StrictStr | None = None
    """A pattern (RE2) with one group, the number; of several matches the last."""
    file: StrictStr | None = None
    """A file that the tool leaves in its folder. Default: what it prints."""


class Benchmark(Part):
    """The load that measures: the agent's own, a script of yours, or a benchmark tool that the host has."""

    script: File | None = None
    """A file beside the playbook; it is uploaded under its digest and prints one JSON document."""
    tool: ToolName | None = None
    """A tool that is installed on the host; `command` is anything that prints numbers. Default: the agent's own."""
    command: Annotated[tuple[StrictStr, ...], Field(min_length=1)] | None = None
    """How the tool is started, where not by its usual name: `[/opt/venv/bin/python, -m, sglang.bench_serving]`."""
    args: tuple[StrictStr, ...] = ()
    """Further words of the command line. With a tool, `{url}`, `{port}`, `{model}` and `{job}` stand for the server."""
    files: tuple[File, ...] = ()
    """Files beside the playbook that are put into the job's folder, where a tool or script runs: prompts, data."""
    metrics: dict[Metric, Extract] = {}
    """Numbers by name that are picked out of a tool's output. `command` needs at least one."""
    slo: Slo | None = None
    """Latency limits; with them there are the metrics `goodput_req_s` and `slo_share`."""
    prompts: Prompts = "mixed"
    """A named set (`copy`: repeat code; `free`: prose; `mixed`), or the prompts themselves."""
    output_tokens: Count = 96
    """Tokens asked for in each answer."""
    requests: Count = 2
    """Requests in one repeat."""
    concurrency: Annotated[
        Annotated[Count, Tag("one")] | Annotated[Annotated[tuple[Count, ...], Field(min_length=1)], Tag("list")],
        by_kind("a number, or several: [1, 8, 32]"),
    ] = 1
    """Requests at a time. Several (`[1, 8, 32]`) are workloads `c1`, `c8` and `c32`."""
    workloads: Annotated[dict[WorkloadName, Workload], Field(max_length=32)] = {}
    """Several loads in each repeat, by name; a metric of one is called `METRIC_NAME`."""
    warmup: Annotated[StrictInt, Field(ge=0, le=1000)] = 1
    """Requests before each repeat that are not counted. 0 needs `cold_ok: true` at the guard `bench_valid`."""
    repeats: Annotated[
        Annotated[Annotated[StrictInt, Field(ge=1, le=1000)], Tag("one")] | Annotated[Repeats, Tag("map")],
        by_kind("a number, or min, until_cv and max"),
    ] = 3
    """A number, or `{min: 3, until_cv: 1%, max: 10}`."""
    timeout: Timeout = 600.0
    """Of one repeat."""


class Accuracy(Part):
    """What a setting must not change: questions whose answers are compared with the baseline's, or a command."""

    questions: File | None = None
    """A file beside the playbook: a JSON list of `{prompt, expect: [TEXT, …]}`. Default: a dozen of the agent's own."""
    tokens: Annotated[StrictInt, Field(ge=1, le=512)] = 24
    """How long answers are, at most."""
    agree: Percent = 0.5
    """At least this share of the answers must be the baseline's, near ties aside."""
    drop: Percent = 0.1
    """At most this share of what the baseline answered right may be wrong; one always may."""
    tie: Annotated[StrictFloat, Field(ge=0, le=20)] = 0.5
    """A token is a near tie when it is at most so much less likely than the chosen one (natural logarithm)."""
    command: Annotated[tuple[StrictStr, ...], Field(min_length=1)] | None = None
    """In place of questions: a command on the host that prints an accuracy; `{url}` and the like as in a tool."""
    metric: Extract | None = None
    """With `command`: where the number stands in its output. More is better."""
    files: tuple[File, ...] = ()
    """With `command`: files beside the playbook that it needs."""
    timeout: Timeout = 600.0
    """Of all questions together."""
