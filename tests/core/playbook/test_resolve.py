"""From playbook to plan: defaults written out, names looked up, sweeps spread, expressions tried."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from agent.core.forecast import check as check_search
from agent.core.plan import Axis, Expr, Plan, Repeats, Replaces, SecretSource
from agent.core.playbook import Playbook
from agent.core.resolve import load_plan, resolve
from agent.core.workloads import SETS
from agent.errors import AgentError, PlaybookError

from . import HEAD, plan, problems, reader

HERE = Path(__file__).parent
SAMPLES = sorted(HERE.glob("*.yaml"))
SHIPPED = sorted((HERE.parents[2] / "playbooks").glob("*.yaml"))


@pytest.mark.parametrize("path", [*SAMPLES, *SHIPPED], ids=lambda path: path.stem)
def test_samples_load_and_survive_the_journal(path: Path) -> None:
    """Every sample is right, resolves to the same plan each time, and reads back from JSON as it was."""
    raw = path.read_bytes()
    resolved = load_plan(raw, path.name, reader)
    assert resolved == load_plan(raw, path.name, reader)
    assert Plan.model_validate_json(resolved.model_dump_json(by_alias=True)) == resolved
    assert check_search(resolved) == ()


def test_the_seed_campaign() -> None:
    """The playbook of the campaign that all this is for, part by part."""
    found = load_plan((HERE / "eagle3.yaml").read_bytes(), "eagle3.yaml", reader)
    assert (found.name, found.aim, found.finally_, found.seed) == ("eagle3-tune", "optimize", "winner", 0)
    assert (found.goal.metric, found.goal.improve, found.goal.direction) == ("output_tok_s", 0.02, "up")
    assert found.hosts["box"].address == "root@kimi-box"
    assert (found.server.gpus, found.server.flags["port"], found.server.flags["tp-size"]) == (8, 8000, 8)
    assert found.server.replaces == Replaces(argv=("sglang.launch_server",), port=8000, expect=1)
    assert found.secrets == {"HF_TOKEN": SecretSource(env="HF_TOKEN")}
    assert found.search.flags["speculative-num-draft-tokens"] == Expr(expr="flags['speculative-num-steps'] + 1")
    nccl, steps = found.search.stages
    assert nccl.axes == (Axis(target="env", key="NCCL_PROTO", values=(None, "LL", "LL128", "Simple")),)
    assert (steps.strategy, steps.axes[0].values) == ("unimodal", tuple(range(1, 11)))
    assert (found.budget.launches, found.budget.time_s) == (18, 8 * 3600)
    assert found.benchmark is not None
    assert found.benchmark.repeats == Repeats(min=3, max=10, until_cv=0.01)
    assert list(found.assumptions) == ["draft-readable"]
    assert set(found.files) == {"benchmark_eagle3.py", "soak.py", "builtin", "builtin:accuracy"}


def test_defaults_of_the_shortest_playbook() -> None:
    """Six lines are a playbook; everything else is written out in the plan."""
    found = plan(HEAD)
    assert (found.server.host, found.server.gpus, found.server.health) == ("box", 0, "/health")
    assert found.server.flags == {"port": 18080}
    assert found.finally_ == "stop"
    assert found.benchmark is not None
    assert found.benchmark.script == "builtin"
    assert found.benchmark.sha256 == found.files["builtin"]
    assert found.benchmark.workload.prompts == SETS["mixed"]
    assert found.search.confirm_launches == 2
    assert found.search.stages == ()


def test_finally_follows_from_what_is_replaced() -> None:
    """Whoever takes a server away puts it back, unless told otherwise."""
    replaces = "  replaces: {argv: [llama-server], port: 8080}\n"
    assert plan(HEAD + replaces).finally_ == "restore"
    assert plan(HEAD + replaces + "finally: stop\n").finally_ == "stop"


@pytest.mark.parametrize(
    ("kind", "keys", "gpus", "flags"),
    [
        ("sglang", "", 1, {"port": 18080}),
        ("sglang", "tensor_parallel: 4", 4, {"port": 18080, "tp-size": 4}),
        ("vllm", "tensor_parallel: 4", 4, {"port": 18080, "tensor-parallel-size": 4}),
        ("vllm", "tensor_parallel: 4, flags: {tp: 4}", 4, {"tp": 4, "port": 18080}),
        ("vllm", "gpus: 0", 0, {"port": 18080}),
        ("command", "gpus: 2", 2, {}),
        ("llamacpp", "tensor_parallel: 1", 0, {"port": 18080}),
    ],
)
def test_gpus_and_flags_that_follow(kind: str, keys: str, gpus: int, flags: dict[str, object]) -> None:
    """Port and parallelism are written as the engine's own flags, once."""
    text = f"playbook: x\nhosts: {{box: demo}}\nserver: {{kind: {kind}, port: 18080, command: [x], {keys}}}\n"
    found = plan(text.replace(", }", "}")).server
    assert (found.gpus, found.flags) == (gpus, flags)


def test_unset_is_none_and_false_stays() -> None:
    """The word for "not given", in every place that has values."""
    text = """  flags: {a: unset, b: false, c: [1, two]}
  env: {A: unset, B: b}
search:
  base: {flags: {d: unset}, env: {B: unset}}
  stages: [{
    name: s,
    flags: {e: {sweep: [unset, 1, true, 1.5, x]}, f: 3},
    env: {C: {sweep: 1..3}, D: {sweep: [unset, "1"]}}
    }]
"""
    found = plan(HEAD + text)
    assert found.server.flags == {"a": None, "b": False, "c": (1, "two"), "port": 18080}
    assert found.server.env == {"B": "b"}
    assert (found.search.flags, found.search.env) == ({"d": None}, {"B": None})
    assert [axis.values for axis in found.search.stages[0].axes] == [
        (None, 1, True, 1.5, "x"), (3,), ("1", "2", "3"), (None, "1"),
    ]  # fmt: skip


def test_trials_are_a_stage() -> None:
    """The short form: one stage of strategy list."""
    (stage,) = plan(HEAD + "trials: [{flags: {a: 1}}, {flags: {a: unset, b: x}, env: {C: d}}]\n").search.stages
    assert (stage.name, stage.strategy) == ("trials", "list")
    assert stage.points == ({"flags.a": 1}, {"flags.a": None, "flags.b": "x", "env.C": "d"})
    assert {(axis.target, axis.key): axis.values for axis in stage.axes} == {
        ("flags", "a"): (1, None), ("flags", "b"): ("x",), ("env", "C"): ("d",),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "code", "said"),
    [
        ("{name: a}", "E_MISSING", "tries nothing"),
        ("{name: a, strategy: random, flags: {b: {sweep: 1..3}}}", "E_MISSING", "sample"),
        ("{name: a, sample: 3, flags: {b: {sweep: 1..3}}}", "E_CONFLICT", "only random and optuna"),
        ("{name: a, strategy: unimodal, flags: {b: {sweep: [3, 1]}}}", "E_SWEEP", "rising numbers"),
        ("{name: a, strategy: unimodal, flags: {b: {sweep: 1..3}, c: {sweep: 1..3}}}", "E_SWEEP", "one ordered knob"),
        ("{name: a, strategy: grid, flags: {b: {sweep: 1..3, strategy: unimodal}}}", "E_CONFLICT", "already `grid`"),
        ("{name: a, strategy: list}", "E_MISSING", "needs points"),
        ("{name: a, points: [{flags: {b: 1}}], flags: {c: 1}}", "E_CONFLICT", "points or sweeps"),
        ("{name: a, points: [{flags: {b: 1}}, {flags: {b: 1}}]}", "E_CONFLICT", "twice"),
        ("{name: a, points: [{}]}", "E_MISSING", "changes nothing"),
        ("{name: a, flags: {b: {sweep: 1..200}, c: {sweep: 1..200}}}", "E_SWEEP", "40,000 points"),
        ("{name: a, flags: {b: {sweep: 3..1}}}", "E_SWEEP", "upwards"),
        ("{name: a, flags: {b: {sweep: []}}}", "E_SWEEP", "1 to 256"),
        ("{name: a, flags: {b: {sweep: [1, 1]}}}", "E_SWEEP", "twice"),
        ("{name: a, flags: {b: {expr: '1'}}}", "E_VALUE", "search.base"),
        ("{name: a, env: {B: {sweep: [1, 2]}}}", "E_TYPE", "a word"),
        ("{name: a, when: 'profil.x > 1', flags: {b: 1}}", "E_UNDEFINED_VAR", "profil"),
        ("{name: a, when: '1 + 1', flags: {b: 1}}", "E_EXPR", "true or false"),
    ],
)
def test_stages_that_cannot_be(stage: str, code: str, said: str) -> None:
    """What a search could not carry out is refused when it is read."""
    found = problems(HEAD + f"search: {{stages: [{stage}]}}\n")
    assert code in [problem.code for problem in found]
    assert said in found[0].message


def test_expressions_are_tried_with_every_value_of_a_sweep() -> None:
    """A flag that can be unset or a word shows before the first launch."""
    text = (
        "search: {base: {flags: {a: 1, b: {expr: flags.a + 1}}}, stages: [{name: s, flags: {a: {sweep: [1, 2, x]}}}]}\n"
    )
    (one,) = problems(HEAD + text)
    assert (one.code, one.field) == ("E_EXPR", "search.base.flags.b.expr")
    assert "for a=x" in one.message
    assert problems(HEAD + text.replace(", x]", "]")) == ()
    (one,) = problems(HEAD + text.replace("x]", "unset]"))
    assert "for a=unset" in one.message


def test_a_condition_needs_a_profile() -> None:
    """Nobody takes one when profiling is off."""
    text = "search: {stages: [{name: s, when: \"profile.share['matmul'] > 0.5\", flags: {a: {sweep: [1, 2]}}}]}\n"
    assert problems(HEAD + text) == ()
    assert [one.code for one in problems(HEAD + text + "profile: {method: off}\n")] == ["E_CONFLICT"]
    assert problems(HEAD + text.replace("profile.share['matmul'] > 0.5", "best > baseline")) == ()


@pytest.mark.parametrize(
    ("kind", "flags", "condition", "said"),
    [
        ("sglang", "", "profile.share['target_verify'] > 0.5", ""),
        ("sglang", "", "profile.kernel['all_reduce'] > 0.2 && profile.busy > 0.5", ""),
        ("sglang", "", "profile.share['verify'] > 0.5", "has `verify` among its shares"),
        ("sglang", "", "profile.kernel.allreduce > 0.5", "has `allreduce` among its kernels"),
        ("llamacpp", "", "profile.share['prompt'] > 0.5", ""),
        ("llamacpp", "", "profile.share['target_verify'] > 0.5", "has `target_verify` among its shares"),
        ("vllm", "", "profile.share['target_verify'] > 0.5", "without a profiler"),
        ("vllm", "", "profile.share['prompt'] > 0.5", ""),
        ("vllm", "profiler-config: '{}'", "profile.share['target_verify'] > 0.5", ""),
    ],
)
def test_a_condition_that_no_profile_could_answer(kind: str, flags: str, condition: str, said: str) -> None:
    """It would hold for certain, after two launches: it is refused while it costs nothing."""
    head = HEAD.replace("kind: llamacpp", f"kind: {kind}")
    text = f'search: {{stages: [{{name: s, when: "{condition}", flags: {{a: {{sweep: [1, 2]}}}}}}]}}\n'
    if flags:
        head = head.replace("  port: 18080\n", f"  port: 18080\n  flags: {{{flags}}}\n")
    found = problems(head + text + "profile: {method: engine}\n")
    assert [one.code for one in found] == (["E_CONFLICT"] if said else [])
    assert not said or said in found[0].message


def test_files_that_cannot_be_read_are_problems() -> None:
    """With the place that names them."""

    def missing(name: str) -> bytes:
        if name.startswith("builtin"):
            return b""
        if name == "b.py":
            raise AgentError("the file lies outside", "copy it", "E_PATH")
        raise FileNotFoundError(2, "No such file or directory")

    text = HEAD + "benchmark: {script: a.py}\nstates: {s: {after: probe, do: [{script: b.py}]}}\n"
    with pytest.raises(PlaybookError) as error:
        load_plan(text.encode(), "p.yaml", missing)
    found = [(one.code, one.line, one.column, one.found) for one in error.value.problems]
    assert found == [("E_FILE", 7, 21, "a.py"), ("E_PATH", 8, 42, "b.py")]


def test_repeats() -> None:
    """A number, or bounds with a goal for the variation."""
    for text, want in {
        "5": Repeats(min=5, max=5),
        "{until_cv: 2%}": Repeats(min=3, max=10, until_cv=0.02),
        "{min: 20, until_cv: 2%}": Repeats(min=20, max=20, until_cv=0.02),
        "{min: 2, max: 4}": Repeats(min=2, max=4),
    }.items():
        found = plan(HEAD + f"benchmark: {{repeats: {text}}}\n").benchmark
        assert found is not None
        assert found.repeats == want
    assert [one.code for one in problems(HEAD + "benchmark: {repeats: {min: 5, max: 3}}\n")] == ["E_RANGE"]


def test_directions_of_metrics() -> None:
    """Times go down, everything else up, unless it is said."""
    ways = {
        "output_tok_s": "up",
        "ttft_ms_mean": "down",
        "e2e_ms_p99": "down",
        "duration_s": "down",
        "accept_len": "up",
    }
    assert {name: plan(HEAD + f"goal: {{metric: {name}}}\n").goal.direction for name in ways} == ways
    assert plan(HEAD + "goal: {metric: ttft_ms_p99, direction: up}\n").goal.direction == "up"


def test_more_than_one_host_needs_a_name() -> None:
    """With one host it is that one."""
    two = HEAD.replace("{box: demo}", "{box: demo, other: local}")
    assert [(one.code, one.field) for one in problems(two)] == [("E_MISSING", "server.host")]
    assert plan(two + "  host: other\n").server.host == "other"
    assert [one.code for one in problems(two + "  host: othr\n")] == ["E_REF"]


def test_secrets_have_one_source() -> None:
    """And stand in one place."""
    assert [one.code for one in problems(HEAD + "  secrets: {A: {env: B, file: /c}}\n")] == ["E_CONFLICT"]
    assert [one.code for one in problems(HEAD + "  secrets: {A: {}}\n")] == ["E_CONFLICT"]
    assert [one.code for one in problems(HEAD + "  secrets: {A: {env: B}}\n  env: {A: c}\n")] == ["E_CONFLICT"]
    assert plan(HEAD + "  secrets: {A: {command: [pass, show, a]}}\n").secrets["A"].command == ("pass", "show", "a")


def test_the_lab_is_kept_as_it_is() -> None:
    """Its settings are its own."""
    assert plan(HEAD + "lab: {faults: [wedge], scale: 100, x: ~, y: '{{ }}'}\n").lab == {
        "faults": ["wedge"], "scale": 100, "x": None, "y": "{{ }}",
    }  # fmt: skip


def test_a_playbook_without_a_file() -> None:
    """Made by a program, it resolves to the same plan; what is wrong has a field, and no line."""
    parts = {"playbook": "x", "hosts": {"box": "demo"}, "server": {"kind": "llamacpp", "port": 18080}}
    parts["server"]["command"] = ("agent-llama-server",)  # type: ignore[index]
    assert resolve(Playbook.model_validate(parts), read=reader) == plan(HEAD)
    with pytest.raises(PlaybookError) as error:
        resolve(Playbook.model_validate({**parts, "states": {"a": {"after": "b", "do": ("probe",)}}}), read=reader)
    assert [(one.code, one.line, one.field) for one in error.value.problems] == [("E_GRAPH", 0, "states.a.after")]


def test_a_plan_is_frozen() -> None:
    """Nobody changes a plan on its way."""
    with pytest.raises(ValidationError):
        plan(HEAD).seed = 3
