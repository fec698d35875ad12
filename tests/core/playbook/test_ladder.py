"""The standard ladder: its guards are wired, its graph is sound, and what a playbook may do to it."""

from __future__ import annotations

import pytest

from agent.core import ladder
from agent.core.machine import Machine
from agent.core.plan import Axis, Search, Server, Stage, State

from . import HEAD, plan, problems

GPU = Server(kind="sglang", host="box", port=8000, gpus=8, command=("x",), env={"NCCL_PROTO": "LL"})
CPU = Server(kind="llamacpp", host="box", port=8000, gpus=0, command=("x",))


def guards(states: tuple[State, ...]) -> dict[str, list[str]]:
    """Name each state's guards."""
    return {state.name: [guard.guard for guard in state.guards] for state in states}


def test_guards_of_a_server_on_gpus() -> None:
    """Everything that GPUs, several workers and NCCL call for."""
    assert guards(ladder.standard(GPU)) == {
        "probe": ["gpu_count"],
        "kill": [],
        "verify-clean": ["gpus_clean", "no_process", "port_free"],
        "launch": ["alive"],
        "health-wait": [
            "alive", "progressing", "ready", "server_is_ours", "effective_config", "answers", "workers",
            "gpus_balanced", "env_applied",
        ],
        "benchmark": ["bench_valid", "drafting", "accuracy", "gpus_steady"],
        "profile": [],
        "decide": [],
        "finally": [],
    }  # fmt: skip


def test_guards_of_a_server_without_gpus() -> None:
    """No GPU guard where there is no GPU."""
    found = guards(ladder.standard(CPU))
    assert found["probe"] == []
    assert found["verify-clean"] == ["no_process", "port_free"]
    assert found["health-wait"] == ["alive", "progressing", "ready", "server_is_ours", "effective_config", "answers"]


def test_a_sweep_over_nccl_is_read_back() -> None:
    """The environment of a trial counts as much as the server's own."""
    axis = Axis(target="env", key="NCCL_ALGO", values=("Ring", None))
    search = Search(stages=(Stage(name="a", axes=(axis,)),))
    assert "env_applied" in guards(ladder.standard(CPU, search))["health-wait"]
    assert "env_applied" in guards(ladder.standard(CPU, Search(env={"NCCL_ALGO": "Ring"})))["health-wait"]


def test_the_ladder_is_sound() -> None:
    """It has no flaw of its own, and the table that runs takes it."""
    states = ladder.standard(GPU)
    assert ladder.flaws(states) == []
    assert tuple(state.name for state in states) == ladder.NAMES
    table = Machine(plan(HEAD))
    assert table.step("finally", "leave", {}) == "done"
    assert table.step("launch", "timeout", {}) == "hold"


def test_every_word_of_the_ladder_is_in_the_language() -> None:
    """Whoever spells the ladder out in a playbook gets the same table."""
    rows = []
    for state in ladder.standard(CPU):
        names = ", ".join(guard.guard for guard in state.guards)
        edges = ", ".join(f"{outcome}: {target}" for outcome, target in state.on.items())
        text = f"{{do: [{', '.join(state.do)}], guards: [{names}], timeout: {state.timeout_s:g}s, on: {{{edges}}}}}"
        rows.append(f"  {state.name}: {text}\n")
    assert plan(HEAD + "states:\n" + "".join(rows)).states == plan(HEAD).states == ladder.standard(plan(HEAD).server)


def test_one_field_of_one_state() -> None:
    """What is not named stays as it is."""
    changed = plan(
        HEAD + "states: {launch: {attempts: 3}, verify-clean: {guards: [port_free]}, probe: {on: {fail: failed}}}\n"
    )
    standard = plan(HEAD)
    assert changed.state("launch") == standard.state("launch").model_copy(update={"attempts": 3})
    assert guards((changed.state("verify-clean"),)) == {"verify-clean": ["port_free"]}
    assert changed.state("probe").on == {**standard.state("probe").on, "fail": "failed"}
    assert [state.name for state in changed.states] == [state.name for state in standard.states]


def test_states_are_put_in_behind_others() -> None:
    """In the order of the file; what they lead to follows from where they stand."""
    text = """states:
      second: {after: first, do: [probe], guards: [alive], timeout: 1m}
      first: {after: health-wait, do: [{script: a.py, args: [x], requests: 150, fast: true, slow: false}]}
      third: {after: first, do: [{script: b.py}], on: {fail: skip-trial, unknown: hold}}
    """
    found = plan(HEAD + text)
    names = [state.name for state in found.states]
    assert names[names.index("health-wait") : names.index("benchmark") + 1] == [
        "health-wait",
        "first",
        "second",
        "third",
        "benchmark",
    ]
    assert found.state("health-wait").on["pass"] == "first"
    ends = {"fail": "decide", "unknown": "decide", "timeout": "decide"}
    assert found.state("second").on == {"pass": "third", **ends, "lost": "kill"}
    assert found.state("third").on == {"pass": "benchmark", **ends, "unknown": "hold", "lost": "kill"}
    early = plan(HEAD + "states:\n  early: {after: probe, do: [probe], guards: [port_free]}\n")
    assert early.state("early").on == {"pass": "kill", **ends}, "before a launch there is no server to be lost"
    first = found.state("first")
    assert (first.do, first.script, first.args) == (("script",), "a.py", ("x", "--requests", "150", "--fast"))
    assert found.files.keys() == {"a.py", "b.py", "builtin", "builtin:accuracy"}
    assert first.sha256 == found.files["a.py"]


def test_an_own_graph() -> None:
    """A playbook that names states of its own without `after` has spelled out all of them."""
    text = "states: {look: {do: [probe], on: {pass: choose}}, choose: {do: [decide], on: {next: look, finish: done}}}\n"
    found = plan(HEAD + text)
    assert [state.name for state in found.states] == ["look", "choose"]
    assert found.state("look").on == {"fail": "hold", "unknown": "hold", "timeout": "hold", "pass": "choose"}
    assert found.state("choose").on == {"next": "look", "finish": "done"}


@pytest.mark.parametrize(
    ("states", "message", "place"),
    [
        (
            "{a: {after: b, do: [probe]}, b: {after: a, do: [probe]}}",
            "no such state stands before it",
            "states.a.after",
        ),
        ("{a: {after: decide, do: [probe]}}", "`decide` has no outcome `pass`", "states.a.after"),
        ("{a: {after: probe}}", "`do` is missing", "states.a"),
        ("{probe: {after: kill}}", "a state of the ladder stays where it is", "states.probe.after"),
        ("{a: {do: [probe]}}", "`on` is missing", "states.a"),
        ("{a: {after: probe, do: [probe, probe]}}", "a state does each thing once", "states.a.do"),
        ("{a: {after: probe, do: [probe], on: {pass: a}}}", "a cycle without a bound", "states.a"),
        ("{launch: {on: {pass: decide}}}", "no state leads here", "states"),
    ],
)
def test_unsound(states: str, message: str, place: str) -> None:
    """Each flaw is named where it stands."""
    found = problems(HEAD + f"states: {states}\n")
    assert found
    assert message in found[0].message
    assert found[0].field == place
    assert found[0].code in ("E_GRAPH", "E_CONFLICT")


def test_every_guard_of_the_union_can_be_named() -> None:
    """A guard without a needed field goes by its name alone."""
    for name, guard in ladder.guard_classes().items():
        needed = [key for key, field in guard.model_fields.items() if field.is_required()]
        codes = [problem.code for problem in problems(HEAD + f"assumptions: {{a: {name}}}\n")]
        assert codes == ["E_MISSING"] * len(needed), name
