"""The reduction of traces: what is known of a trace comes out exactly, and of a damaged one nothing comes out."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from agent.hosts.scripts import trace_events
from agent.hosts.scripts.trace_names import class_of, function_phase, span_phase
from agent.hosts.scripts.trace_ranks import merge
from agent.hosts.scripts.trace_reduce import CALLS, FUNCTIONS, GPU, SPANS, reduce_trace
from tests.support import traces

RECORDED = Path(__file__).parents[1] / "traces"


def reduced(tmp_path: Path, text: str, name: str = "TP-0.trace.json") -> dict[str, Any]:
    """Write a trace and reduce it."""
    return reduce_trace(traces.write(tmp_path / name, text))


def device(report: dict[str, Any]) -> dict[str, Any]:
    """Return the one device of a report that has one."""
    assert report["why"] == ""
    (found,) = report["devices"]
    assert isinstance(found, dict)
    return found


def sums_to_one(found: dict[str, Any]) -> None:
    """Both divisions of the window are whole."""
    assert sum(found["phases"].values()) == pytest.approx(1, abs=1e-4)
    assert sum(found["classes"].values()) == pytest.approx(1, abs=1e-4)


# ---------------------------------------------------------------- what is known


@pytest.mark.parametrize("how", [traces.SPANS, traces.STACKS])
def test_shares_that_are_known(tmp_path: Path, how: str) -> None:
    """By spans and by functions alike: each phase and each kind of work, exact within 0.1 %."""
    found = device(reduced(tmp_path, traces.made(400, how).text(), "t.trace.json.gz"))
    assert set(found["phases"]) == set(traces.SHARES)
    for name, share in traces.SHARES.items():
        assert found["phases"][name] == pytest.approx(share, abs=0.001)
    assert set(found["classes"]) == set(traces.CLASSES)
    for name, share in traces.CLASSES.items():
        assert found["classes"][name] == pytest.approx(share, abs=0.001)
    assert found["busy"] == pytest.approx(0.95, abs=0.001)
    assert found["overlap"] == 0.0
    sums_to_one(found)


def test_any_way_to_write_it_down(tmp_path: Path) -> None:
    """Kineto's layout, compact JSON, indented JSON, fields in another order, a bare list: the same breakdown."""
    text = traces.made(6).text()
    plain = json.loads(text)
    turned = {**plain, "traceEvents": [dict(reversed(event.items())) for event in plain["traceEvents"]]}
    behind = {"traceEvents": plain["traceEvents"], "deviceProperties": [{"id": 0}, {"id": 1}], "schemaVersion": 1}
    forms = [
        json.dumps(plain),
        json.dumps(plain, separators=(",", ":")),
        json.dumps(plain, indent=1),
        json.dumps(turned),
        json.dumps(behind),
        json.dumps(plain["traceEvents"]),
    ]
    wanted = device(reduced(tmp_path, text))
    for form in forms:
        assert device(reduced(tmp_path, form)) == wanted


@pytest.mark.parametrize("size", [97, 1000, 4096, 65536])
def test_however_it_is_cut_into_pieces(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a piece of the text ends does not matter."""
    text = traces.made(4).text()
    wanted = device(reduced(tmp_path, text))
    compact = json.dumps(json.loads(text)).replace("aten::empty", "aten::emptyé")
    monkeypatch.setattr(trace_events, "PIECE", size)
    assert device(reduced(tmp_path, text)) == wanted
    assert device(reduced(tmp_path, compact)) == wanted


def test_kernels_at_once_share_the_time(tmp_path: Path) -> None:
    """Two streams at once: each gets half of what they share, nothing counts twice, the busy time is the union."""
    maker = traces.Maker(how=traces.SPANS)
    maker.launch()
    maker.kernel(traces.GEMM, 100.0, start=100.0)
    maker.kernel(traces.REDUCE, 100.0, stream=20, start=150.0)
    maker.at = 110.0
    maker.phase("verify", 0.0)
    found = device(reduced(tmp_path, maker.text()))
    assert (found["window_us"], found["busy"]) == (150.0, 1.0)
    assert found["classes"] == {"all_reduce": 0.5, "gemm": 0.5}
    assert found["overlap"] == pytest.approx(50 / 150, abs=1e-5)
    assert found["phases"] == {"target_verify": 1.0}


def test_three_at_once_and_one_inside_another(tmp_path: Path) -> None:
    """A kernel inside two others: thirds while all three run."""
    maker = traces.Maker(how=traces.SPANS)
    maker.launch()
    maker.kernel(traces.GEMM, 90.0, start=0.0)
    maker.kernel(traces.MOE, 90.0, stream=8, start=0.0)
    maker.kernel(traces.REDUCE, 30.0, stream=9, start=30.0)
    found = device(reduced(tmp_path, maker.text()))
    assert found["classes"] == {"gemm": 0.444444, "moe": 0.444444, "all_reduce": 0.111111}


def test_spans_within_spans_count_once(tmp_path: Path) -> None:
    """A stage holds over the pass inside it, sampling over the stage, and a kernel belongs to one of them."""
    maker = traces.Maker(how=traces.SPANS)
    args: dict[str, Any] = {"External id": 1}
    for number in range(2):
        maker.at = at = 100.0 * number + 1
        maker.launch(took=1.0)
        maker.kernel(traces.GEMM, 50.0, start=at + 5)
        for name, since, length in (("draft_extend", 0.0, 10.0), ("step[DRAFT bs=1]", 0.5, 5.0)):
            maker.event("user_annotation", name, at + since - 0.6, length, args, 4711, 4711)
        maker.at = at + 60
        maker.launch(took=1.0)
        maker.kernel(traces.GEMM, 10.0, start=at + 70)
        for name in ("step[VERIFY bs=1]", "sampling", "execute_context_0(0)_generation_1(1)"):
            maker.event("user_annotation", name, at + 59, 10.0, args, 4711, 4711)
    found = device(reduced(tmp_path, maker.text()))
    assert found["running"] == {
        "draft_extend": pytest.approx(100 / 175, abs=1e-5),
        "sampling": pytest.approx(20 / 175, abs=1e-5),
    }


def test_waiting_has_two_causes(tmp_path: Path) -> None:
    """A gap is the host's until the next kernel has been launched; from then on it is the device's."""
    maker = traces.Maker(how="")
    maker.launch()
    maker.kernel(traces.GEMM, 100.0, start=0.0)
    maker.at = 124.0
    maker.launch(took=6.0)
    maker.kernel(traces.GEMM, 100.0, start=150.0)
    found = device(reduced(tmp_path, maker.text()))
    assert found["classes"] == {"gemm": 0.8, "host_wait": 0.12, "launch_gap": 0.08}
    assert found["phases"] == {"unattributed": 0.8, "idle": 0.2}


def test_the_first_cycle_is_left_out(tmp_path: Path) -> None:
    """An all-reduce that waited half a second for another rank's profiler to start is not where the time goes."""
    maker = traces.Maker(how=traces.SPANS)
    maker.launch()
    maker.kernel(traces.REDUCE, 500_000.0)
    maker.phase("draft", 0.0)
    for _ in range(10):
        maker.cycle()
    found = device(reduced(tmp_path, maker.text()))
    assert found["left_out_us"] > 500_000
    assert found["phases"]["target_verify"] == pytest.approx(0.8, abs=0.01)


def test_a_launch_that_is_not_in_the_trace(tmp_path: Path) -> None:
    """Then the device's own copy of the span says the phase; without one nothing does, and the reason is said."""
    maker = traces.made(5, "")
    plain = json.loads(maker.text())
    plain["traceEvents"] = [event for event in plain["traceEvents"] if event.get("cat") != "cuda_runtime"]
    bare = reduced(tmp_path, json.dumps(plain))
    assert set(device(bare)["phases"]) == {"unattributed", "idle"}
    assert "does not say what launched" in merge({Path("TP-0.trace.json"): bare})["why"]
    span = {
        "ph": "X",
        "cat": "gpu_user_annotation",
        "name": "verify",
        "pid": 0,
        "tid": 7,
        "ts": traces.BASE,
        "dur": 1e9,
    }
    plain["traceEvents"].append({**span, "args": {"device": 0}})
    assert device(reduced(tmp_path, json.dumps(plain)))["phases"]["target_verify"] > 0.9


def test_what_belongs_to_no_phase_is_said(tmp_path: Path) -> None:
    """A trace without any known name: the kinds of work are known, the phases are not, and none is made up."""
    report = reduced(tmp_path, traces.made(5, "").text())
    found = merge({Path("TP-0.trace.json"): report})
    assert found["shares"] == {}
    assert "neither spans nor functions" in found["why"]
    assert found["kernels"]["all_reduce"] == pytest.approx(0.2, abs=0.01)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("step[VERIFY bs=1]", "target_verify"),
        ("step[VERIFY bs=4 g_sq=12 forward_id=7]", "target_verify"),
        ("step[DRAFT bs=1]", "draft"),
        ("step[EXTEND bs=1 toks=512]", "extend"),
        ("step[DECODE bs=3]", "decode"),
        ("step[IDLE bs=0]", None),
        ("draft_extend", "draft_extend"),
        ("execute_context_0(0)_generation_2(8)", "target_verify"),
        ("execute_context_0(0)_generation_2(2)", "decode"),
        ("execute_context_1(300)_generation_0(0)", "extend"),
        ("execute_context_1(300)_generation_1(4)", "mixed"),
        ("execute_context_0(0)_generation_0(0)", None),
        ("execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq8sk900sqsq32sqsk3600)", "target_verify"),
        ("execute_300_context_1(sq300sk300sqsq90000sqsk90000)_generation_0(sq0sk0sqsq0sqsk0)", "extend"),
        ("gpu_model_runner: draft", "draft"),
        ("scheduler.run_batch", None),
        ("ProfilerStep#3", None),
    ],
)
def test_spans_of_engines(name: str, phase: str | None) -> None:
    """As SGLang 0.5.23 and vLLM 0.32 write them."""
    found = span_phase(name)
    assert (found[0] if found else None) == phase


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("sglang/srt/speculative/eagle_worker.py(691): verify", "target_verify"),
        ("/opt/venv/lib/python3.12/site-packages/sglang/srt/speculative/eagle_worker_v2.py(302): draft", "draft"),
        ("sglang/srt/speculative/eagle_info.py(216): verify", "sampling"),
        ("sglang/srt/speculative/eagle_worker.py(902): forward_draft_extend_after_decode", "draft_extend"),
        ("sglang/srt/model_executor/cuda_graph_runner.py(846): replay", "decode"),
        ("vllm/v1/worker/gpu_model_runner.py(4748): propose_draft_token_ids", "draft"),
        ("vllm/v1/worker/gpu/spec_decode/standalone_ar/speculator.py(352): propose", "draft"),
        ("vllm/v1/worker/gpu/model_runner.py(1592): sample", "sampling"),
        ("somewhere/else.py(1): verify", None),
        ("<built-in method verify of object at 0x7f>", None),
    ],
)
def test_functions_of_engines(name: str, phase: str | None) -> None:
    """As SGLang 0.5.3 and 0.5.9 name them, and vLLM 0.32."""
    found = function_phase(name)
    assert (found[0] if found else None) == phase


def test_the_worker_for_ngrams(tmp_path: Path) -> None:
    """It names no stage: a replayed graph within it verifies, and a pass without a graph is left unattributed."""
    maker = traces.Maker(how="")
    args: dict[str, Any] = {"Python id": 1}
    inner = (
        "sglang/srt/model_executor/cuda_graph_runner.py(846): replay",
        "sglang/srt/model_executor/model_runner.py(2307): forward_extend",
    )
    for number, name in enumerate(inner):
        maker.at = at = 1000.0 * number
        maker.launch()
        maker.kernel(traces.GEMM, 100.0, start=at + 10)
        outer = "sglang/srt/speculative/ngram_worker.py(216): forward_batch_generation"
        for function, early, length in ((outer, 3.0, 50.0), (name, 1.0, 40.0)):
            maker.event("python_function", function, at - early, length, args, 4711, 4711)
    found = device(reduced(tmp_path, maker.text()))
    assert set(found["running"]) == {"target_verify", "unattributed"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        (traces.REDUCE, "all_reduce"),
        (traces.FLASH, "attention"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<...>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        (traces.NORM, "norm"),
        (traces.GEMM, "gemm"),
        (traces.MOE, "moe"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape<...>>>", "moe"),
        ("void marlin::Marlin<__nv_bfloat16, 256, 1, 8>", "gemm"),
        (traces.VERIFY_TREE, "sampling"),
        (
            "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>",
            "elementwise",
        ),
        ("my_kernel", "other"),
    ],
)
def test_kinds_of_kernels(name: str, kind: str) -> None:
    """By their names."""
    assert class_of(name, "kernel") == kind


# ---------------------------------------------------------------- traces of real GPUs


@pytest.mark.parametrize("kind", ["spans", "stacks"])
@pytest.mark.parametrize("rank", [0, 1])
def test_two_h200(kind: str, rank: int) -> None:
    """Sums over kernels are torch's own; phases are what CUDA events said without a profiler, to 2 % of a cycle."""
    truth = json.loads((RECORDED / "h200.json").read_text())[f"{kind}-TP-{rank}"]
    path = RECORDED / f"h200-{kind}-TP-{rank}.trace.json.gz"
    spent: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for batch in trace_events.Trace(path, trace_events.Wanted(GPU | CALLS | SPANS, FUNCTIONS)).batches():
        for event in batch:
            if event["cat"] in GPU:
                spent[event["name"]] += event["dur"]
                calls[event["name"]] += 1
    for name, (us, count) in truth["averages"].items():
        if span_phase(name) is not None:
            continue  # torch sums up spans on the device as well
        assert (calls[name], spent[name]) == (count, pytest.approx(us, abs=0.01))
    report = reduce_trace(path)
    found = device(report)
    assert (report["rank"], report["world"], report["stacks"]) == (rank, 2, kind == "stacks")
    assert found["phases"]["target_verify"] == pytest.approx(truth["timed"]["target_verify"], abs=0.02)
    assert found["phases"]["draft"] == pytest.approx(truth["timed"]["draft"], abs=0.02)
    assert found["phases"]["draft_extend"] == pytest.approx(truth["timed"]["draft_extend"], abs=0.02)
    assert found["phases"].get("unattributed", 0.0) == 0.0
    assert found["unlaunched"] == 0
    assert 0.05 < found["classes"]["all_reduce"] < 0.15
    sums_to_one(found)


def test_a_rank_that_is_missing(tmp_path: Path) -> None:
    """Both ranks make a profile; one of them makes none, and it is said which one there is not."""
    paths = [RECORDED / f"h200-spans-TP-{rank}.trace.json.gz" for rank in (0, 1)]
    reports = {path: reduce_trace(path) for path in paths}
    both = merge(reports, ["TP-0", "TP-1"])
    assert both["why"] == ""
    assert both["shares"]["target_verify"] == pytest.approx(0.75, abs=0.01)
    assert [row["rank"] for row in both["ranks"]] == ["TP-0", "TP-1"]
    for wanted in (["TP-0", "TP-1"], None):  # by what the server said, and by what the trace itself says
        one = merge({paths[0]: reports[paths[0]]}, wanted)
        assert (one["shares"], one["kernels"], one["ranks_wanted"]) == ({}, {}, 2)
        assert "1 of 2 ranks" in one["why"]
    cut = traces.write(tmp_path / "x-TP-1.trace.json", gzip.decompress(paths[1].read_bytes()).decode()[:-9])
    broken = merge({paths[0]: reports[paths[0]], cut: reduce_trace(cut)}, ["TP-0", "TP-1"])
    assert (broken["shares"], broken["kernels"]) == ({}, {})
    assert "breaks off" in broken["why"]


def test_a_trace_of_a_cpu() -> None:
    """Of torch's own profiler: operators stand for kernels, each with its own time only."""
    report = reduce_trace(RECORDED / "cpu.trace.json.gz")
    found = device(report)
    assert report["on"] == "cpu"
    assert {"draft", "target_verify", "draft_extend"} <= set(found["phases"])
    assert found["classes"]["gemm"] > found["classes"]["attention"] > 0
    assert found["overlap"] == 0.0
    sums_to_one(found)


def test_names_that_conditions_may_ask_for() -> None:
    """What `agent check` lets a condition ask for is what a breakdown may hold, on a host that has no agent."""
    from agent.core.probes.trace import KERNELS
    from agent.core.probes.trace import PHASES as ASKED
    from agent.hosts.scripts.trace_names import _CLASSES, _FUNCTIONS, _NAMED, _OPERATORS, _STEPS, NGRAM
    from agent.hosts.scripts.trace_ranks import CLASSES, PHASES

    named = {phase for phase, _ in (*_STEPS.values(), *_NAMED.values(), *_FUNCTIONS.values())} - {NGRAM}
    assert set(ASKED) == set(PHASES) == named | {"mixed", "idle"}
    kinds = {kind for kind, _ in (*_CLASSES, *_OPERATORS)} | {"memcpy", "other", "interpreter"}
    assert set(KERNELS) == kinds | {"launch_gap", "host_wait", "gap_unknown"}
    assert set(CLASSES) <= set(KERNELS)
