"""Every case through the product's own probes and guards: the verdict, the class, and what was read on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.core.diagnose import Diagnosis, diagnose, guess
from agent.core.servers import kind_of

HERE = Path(__file__).parent
CASES = sorted(folder.name for folder in HERE.iterdir() if (folder / "expect.json").is_file())

NAMES = {"duration_s": "duration", "p99_e2e_ms": "p99_e2e_latency_ms", "total_mib_each": None}
"""Names of the cases to names here; None: the test has a line of its own."""
INPUTS = {
    "requested",
    "requested_env",
    "allowed_overrides",
    "recorded_run",
    "our_gpus",
    "baseline_mib",
    "engine_version",
}
INPUTS |= {"expected_gpu_count", "expected_tp", "process_rc", "state_before"}
OUTPUTS = ("unknown_gpus", "dirty_gpus", "kill_set", "protected", "live_ranks", "dead_ranks", "phase", "ranks_seen")
OUTPUTS += ("memory_balanced", "engine", "repeat_count", "root_rank", "applied", "not_applied", "wrong_value")


def load(name: str) -> tuple[str, dict[str, Any], dict[str, Any], Diagnosis]:
    """Return the text of a case, its whole file, what it expects, and the diagnosis."""
    case = json.loads((HERE / name / "expect.json").read_text())
    text = (HERE / name / "input.txt").read_text()
    expect = case["expect"]
    context = {key: value for key, value in expect.items() if key in INPUTS}
    return text, case, expect, diagnose(case["kind"], text, context)


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_and_its_class(name: str) -> None:
    """What a case expects is what the guards say."""
    _, _, expect, found = load(name)
    assert (expect["verdict"], expect.get("class")) == (
        found.verdict.result,
        found.verdict.finding if "class" in expect else None,
    ), found.verdict


@pytest.mark.parametrize("name", CASES)
def test_what_was_read(name: str) -> None:
    """Numbers and lists are read as the case says; none is left out silently."""
    _, case, expect, found = load(name)
    tolerances = case.get("context", {}).get("tolerances", {})
    wanted = {**expect.get("parsed", {}), **{key: expect[key] for key in OUTPUTS if key in expect}}
    for key, value in wanted.items():
        here = NAMES.get(key, key)
        if here is None or key in SPECIAL:
            continue
        assert here in found.parsed, key
        got = found.parsed[here]
        if isinstance(value, float):
            assert value == pytest.approx(got, abs=tolerances.get(key, 1e-3)), key
        else:
            assert value == got, key


SPECIAL = {"ready_at", "start_at", "target_type", "draft_type", "min_gb", "local_gb"}


def test_the_course_of_a_healthy_start() -> None:
    """Times and models of case 12, and the cause of case 14, as the log writes them."""
    healthy = load("12-log-healthy-start-full-timeline")[3].parsed
    assert healthy["stamps"]["READY"] == "2026-02-14 13:15:04"
    assert healthy["stamps"]["ARGUMENTS"] == "2026-02-14 13:00:05"
    assert healthy["models"] == ["KimiK25ForConditionalGeneration", "LlamaForCausalLMEagle3"]
    memory = load("14-log-memory-unbalanced-after-long-capture")[3].parsed["memory_gb"]
    assert memory["min_per_gpu_memory"] == pytest.approx(5.1103515625)
    assert memory["local_gpu_memory"] == pytest.approx(6.0203515625)


def test_total_memory_of_every_gpu() -> None:
    """The total is on every row."""
    assert load("01-gpu-clean-with-display-residual")[3].parsed["total_mib"] == [97887] * 8


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("11-", "20-"))])
def test_overrides_and_effective_values(name: str) -> None:
    """Every override is found, also of a flag that nobody asked for."""
    text, _, expect, found = load(name)
    kind = kind_of("sglang")
    for key, value in expect["effective"].items():
        assert value == found.parsed["effective"][kind.canonical(key)], key  # type: ignore[attr-defined]
    wanted = [{key: item[key] for key in ("field", "requested", "effective")} for item in expect["overrides"]]
    assert sorted(map(str, wanted)) == sorted(map(str, found.parsed["overrides"]))
    for item in expect["overrides"]:
        named = f"{item['field']}: asked" in found.verdict.saw
        assert named is (item["requested"] is not None and not item.get("benign")), item
    assert text


def test_must_not_touch_bystanders() -> None:
    """Neither a colleague's job, nor an editor, nor our own shell is ever on the list."""
    found = load("07-ps-orphans-and-bystanders")[3]
    assert not {51877, 90417, 90455, 1102, 1490, 2210} & set(found.parsed["kill_set"])


def test_must_not_take_the_first_line_of_an_appended_file() -> None:
    """The newest run is the last line, and a longer accept length is not a higher speed."""
    partial = load("21-bench-sglang-jsonl-appended-partial")[3]
    assert (partial.parsed["tag"], partial.parsed["request_rate"]) == ("steps2-r2", "inf")
    assert partial.parsed["result"].accept_len is None, "an average over the server's life is no run's"
    good = load("31-bench-sglang-jsonl-good")[3].parsed["result"]
    assert (good.output_tok_s, good.accept_len) == (pytest.approx(93.9989, abs=0.01), 2.2133)


def test_must_not_take_zero_latency_for_a_record() -> None:
    """A run before the server was ready has no result at all."""
    found = load("23-bench-text-ran-before-ready")[3]
    assert found.verdict.result == "FAIL"
    assert found.parsed["result"].requested == 200


def test_must_not_take_a_warm_latency_between_chunks_for_time_per_token() -> None:
    """With speculation a chunk carries several tokens: the result has time per token, not per chunk."""
    result = load("25-bench-text-sglang-good")[3].parsed["result"]
    assert result.tpot_ms_mean == 10.24
    between = {name for name, value in result.metrics().items() if value == 22.64}
    assert between <= {"mean_itl_ms"}, "under the tool's own name, if at all"


@pytest.mark.parametrize("name", CASES)
def test_the_kind_of_input_is_recognised(name: str) -> None:
    """A person who pastes output need not say what it is."""
    text, case, *_ = load(name)
    assert case["kind"] == (guess(text) or "server_log"), "what is nothing else is read as a log"


@pytest.mark.parametrize(
    "kind", ["gpu_csv", "ps", "server_log", "server_info", "bench_json", "bench_text", "http", "?"]
)
@pytest.mark.parametrize(
    "text", ["", "\n", "#== \n", "#== gpu rc=0 cmd: x\n", "{" * 5000, "\x00\x1b[31m\udcff", "a" * 10**5]
)
def test_garbage_is_never_a_pass(kind: str, text: str) -> None:
    """Whatever is pasted, nothing raises and nothing passes."""
    assert diagnose(kind, text, {"expected_gpu_count": 8}).verdict.result != "PASS"


def _padded(text: str) -> str:
    """Return the text as a terminal pads it; JSON of one line is left as it is."""
    return "\n".join(line if line.startswith("{") else f"{line}  " for line in text.split("\n"))


@pytest.mark.parametrize("name", CASES)
def test_how_a_text_was_copied_changes_nothing(name: str) -> None:
    """Ends of lines of another system, a mark of its encoding, empty lines around it, blanks at the ends of lines."""
    text, case, expect, found = load(name)
    context = {key: value for key, value in expect.items() if key in INPUTS}
    for copied in (text.replace("\n", "\r\n"), f"\ufeff{text}", f"\n\n{text}\n\n", _padded(text), text.rstrip("\n")):
        again = diagnose(case["kind"], copied, context).verdict
        assert (again.result, again.finding) == (found.verdict.result, found.verdict.finding), copied[:60]
        assert (guess(copied) or "server_log") == case["kind"]


@pytest.mark.parametrize("name", [name for name in CASES if name.split("-")[1] == "log"])
@pytest.mark.parametrize(
    "carried",
    ["2026-02-14T12:15:20.123456789Z {}", "Feb 14 12:15:20 box python3[4021]: {}", "sglang-1  | {}", "> {}",
     "2026-02-14T12:15:20.1+01:00 stderr F {}", "\x1b[32m{}\x1b[0m"],
)  # fmt: skip
def test_what_carried_a_log_here_changes_nothing(name: str, carried: str) -> None:
    """Logs of docker, of a pod, of compose, of the journal, quoted in a message, and in colours."""
    text, case, expect, found = load(name)
    context = {key: value for key, value in expect.items() if key in INPUTS}
    again = diagnose(case["kind"], "\n".join(line and carried.format(line) for line in text.split("\n")), context)
    assert (again.verdict.result, again.verdict.finding) == (found.verdict.result, found.verdict.finding)
