"""Guards on the life of a server, fed with what a watch on its host reports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.core.guards.output import degenerate
from agent.core.values import Finding, Result

from .scene import Scene, processes, sockets

UP = "[2026-02-14 13:15:04] The server is fired up and ready to roll!"
LIVE = (1.0, "state LIVE 4000 500 10")


@pytest.mark.parametrize(
    ("text", "result", "finding"),
    [
        ("LIVE 4000 500 10", Result.PASS, None),
        ("ORPHANED 4000 500 10", Result.PASS, None),
        ("STARTING", Result.WAIT, None),
        ("EXITED 1 20", Result.FAIL, Finding.CRASH),
        ("LOST died", Result.FAIL, Finding.LOST),
        ("ABSENT", Result.UNKNOWN, None),
        ("nonsense \x1b[0m", Result.UNKNOWN, None),
    ],
)
def test_alive_by_the_answer_to_a_start_and_by_watch(text: str, result: Result, finding: Finding | None) -> None:
    """Both sources say the same; words that are not known prove nothing."""
    assert (v := Scene().started(text).judge("alive")).result is result
    assert v.finding is finding
    assert Scene().watch((1.0, f"state {text}")).judge("alive").result is result
    assert Scene().judge("alive").result is Result.UNKNOWN


def test_a_death_is_classified_by_the_first_cause_in_its_log() -> None:
    """What follows the first exception are cascades."""
    lines = (
        "[2026-02-14 09:14:42 TP3] Scheduler hit an exception: Traceback (most recent call last):",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "ValueError: something else",
        "[2026-02-14 09:14:42] Received sigquit from a child process. It usually means the child failed.",
    )
    verdict = Scene().started("EXITED 137 20").log(*lines).judge("alive")
    assert (verdict.finding, verdict.also) == (Finding.GPU_OOM, (Finding.CONFIG_INVALID,))


@pytest.mark.parametrize(
    ("status", "last", "remedy"),
    [
        (127, "cmd: 2: exec: /opt/nowhere/serve: not found", "look at server.command"),
        (126, "cmd: 2: exec: /opt/serve: Permission denied", "look at its permissions"),
        (139, "", "SIGSEGV"),
        (1, "see the other file for details", "read the end of its log"),
    ],
)
def test_a_death_that_no_line_explains_is_told_with_its_last_words(status: int, last: str, remedy: str) -> None:
    """The end of its output stands in the verdict, known or not, and the exit status is put into words."""
    said = [(1.0, f"said {last}")] if last else []
    verdict = Scene().watch(*said, (1.0, f"state EXITED {status} 5")).judge("alive")
    assert verdict.finding is Finding.CRASH
    assert last in verdict.saw
    assert remedy in verdict.remedy


def test_ready_needs_health_and_the_logs_own_word() -> None:
    """Neither alone is enough, and the log may lag a moment."""
    log = (9.0, f"log 0 {UP}")
    assert Scene(now=10.0).watch(LIVE, (9.0, "health 503"), log).judge("ready").result is Result.WAIT
    assert Scene(now=10.0).watch(LIVE, log, (9.5, "health 200")).judge("ready").result is Result.PASS
    early = Scene(now=3.0).watch(LIVE, (2.0, "health 200"))
    assert early.judge("ready").result is Result.WAIT
    early.now = 10.0
    assert early.judge("ready").finding is Finding.FOREIGN_SERVER, "an old server answers at once"
    dead = Scene(now=10.0).watch((1.0, "state EXITED 1 5"), (2.0, "health 200"), log)
    assert dead.judge("ready").result is Result.FAIL


def test_refusals_during_long_prefills_are_waited_out() -> None:
    """503 with prefill lines is work; 503 and silence is a hang after a while."""
    up = [LIVE, (2.0, f"log 0 {UP}"), (2.5, "health 200"), (30.0, "health 503")]
    busy = Scene(now=200.0).watch(*up, (31.0, "log 0 [2026-02-14 18:10:11 TP0] Prefill batch, #new-seq: 1"))
    assert (v := busy.judge("ready")).result is Result.WAIT
    assert v.finding is Finding.BUSY_PREFILL
    assert Scene(now=60.0).watch(*up).judge("ready").result is Result.WAIT
    assert Scene(now=200.0).watch(*up).judge("ready").finding is Finding.HANG


def test_progress_is_a_new_phase_and_not_a_growing_log() -> None:
    """Each phase has its own patience; repeated lines do not renew it."""
    begin = (10.0, "log 0 [2026-02-14 13:00:21 TP0] Init torch distributed begin.")
    assert Scene(now=500.0).watch(LIVE, begin).judge("progressing").result is Result.PASS
    assert Scene(now=700.0).watch(LIVE, begin).judge("progressing").finding is Finding.HANG
    again = (650.0, "log 0 [2026-02-14 13:11:00 TP0] Init torch distributed begin.")
    assert Scene(now=700.0).watch(LIVE, begin, again).judge("progressing").finding is Finding.HANG
    other = (650.0, "log 0 [2026-02-14 13:11:00 TP0] Load weight begin. avail mem=93.90 GB")
    assert Scene(now=700.0).watch(LIVE, begin, other).judge("progressing").result is Result.PASS
    limit = {"limits": {"NCCL_INIT": "1m"}}
    assert Scene(now=80.0).watch(LIVE, begin).judge("progressing", **limit).finding is Finding.HANG


def test_a_long_capture_is_patiently_waited_for() -> None:
    """15 minutes of graph capture are normal, and so is a draft that loads after it."""
    lines = [
        (10.0, "log 0 [2026-02-14 13:00:21 TP0] Capture cuda graph begin. This can take up to several minutes."),
        (1350.0, "log 0 [2026-02-14 13:22:21 TP0] Capture cuda graph end. Time elapsed: 1334.3 s."),
        (1360.0, "log 0 [2026-02-14 13:22:31 TP0] Load weight begin. avail mem=6 GB"),
    ]
    verdict = Scene(now=1300.0).watch(LIVE, lines[0]).judge("progressing")
    assert verdict.result is Result.PASS
    assert "DRAFT_INIT" in Scene(now=1400.0).watch(LIVE, *lines).judge("progressing").saw


def test_words_that_programs_survive_do_not_condemn_a_start() -> None:
    """A warning with an exception's name in it is not the end; the end of an argument parser is."""
    harmless = (
        "Ignore import error when loading sglang.srt.models.x: ImportError: no y",
        "[2026-02-14 13:00:21 TP0] Setup Custom allreduce failed with CUDA error: peer access. To silence this warning",
        "ValueError: caught and printed",
    )
    scene = Scene(now=20.0).watch(LIVE, *((10.0, f"log 0 {line}") for line in harmless))
    assert scene.judge("progressing").result is Result.PASS
    refused = "launch_server.py: error: argument --speculative-algorithm: invalid choice: 'EAGLE-3'"
    scene = Scene(now=20.0).watch(LIVE, (10.0, f"log 0 {refused}"))
    assert scene.judge("progressing").finding is Finding.CONFIG_INVALID


def test_workers_are_counted_and_a_missing_rank_is_named() -> None:
    """Fewer than before is a dead rank; fewer than expected from the start is not there yet."""
    scene = Scene(gpus=2, now=20.0)
    assert scene.watch(LIVE, (1.0, "workers 2")).judge("workers").result is Result.WAIT
    assert scene.watch(LIVE, (1.0, "workers 4")).judge("workers").result is Result.PASS
    assert scene.watch(LIVE, (1.0, "workers 4"), (9.0, "workers 3")).judge("workers").finding is Finding.DEAD_RANK
    falling = Scene(gpus=2, now=10.0).watch(LIVE, (1.0, "workers 4"), (9.0, "workers 1"))
    assert falling.judge("workers").result is Result.WAIT, "it may be ending, and will say why"
    falling.log("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert falling.judge("workers").finding is Finding.GPU_OOM
    rows = ((4000, 1, 4000, "sh run"), (4001, 4000, 4000, "sglang::scheduler_TP0"))
    ranks = Scene(gpus=2).launched().watch(LIVE, (1.0, "workers 9")).look("inspect", processes=processes(*rows))
    verdict = ranks.judge("workers")
    assert (verdict.finding, verdict.saw[:6]) == (Finding.DEAD_RANK, "rank 1")
    assert Scene().judge("workers").result is Result.UNKNOWN


def test_a_rank_that_dies_while_it_loads_is_found_although_helpers_hide_the_number() -> None:
    """The job has more processes than ranks; helpers end without harm, a rank does not come back."""
    begin = (5.0, "log 0 [2026-02-14 13:00:21 TP0] Load weight begin. avail mem=93.90 GB")
    rise = [LIVE, (1.0, "workers 2"), (3.0, "workers 13"), begin]
    helpers = [*rise, (30.0, "workers 17"), (60.0, "workers 13")]
    assert Scene(gpus=8, now=200.0).watch(*helpers).judge("workers").result is Result.PASS
    dead = [*rise, (60.0, "workers 12")]
    assert Scene(gpus=8, now=100.0).watch(*dead).judge("workers").result is Result.PASS
    assert Scene(gpus=8, now=125.0).watch(*dead).judge("workers").finding is Finding.DEAD_RANK
    goes_on = (110.0, "log 0 [2026-02-14 13:02:21 TP0] Load weight end. elapsed=100 s, type=X")
    assert Scene(gpus=8, now=125.0).watch(*dead, goes_on).judge("workers").result is Result.PASS


def test_the_listener_must_belong_to_the_launched_job() -> None:
    """By the session that our supervisor leads, and only while it is our supervisor."""
    rows = ((4000, 1, 4000, "sh run"), (4001, 4000, 4000, "server"), (77, 1, 77, "old server"))
    look = {"processes": processes(*rows)}
    ours = Scene().launched().look("inspect", sockets=sockets((30000, 4001)), **look)
    assert ours.judge("server_is_ours").result is Result.PASS
    other = Scene().launched().look("inspect", sockets=sockets((30000, 77)), **look)
    assert other.judge("server_is_ours").finding is Finding.FOREIGN_SERVER
    reused = Scene().launched(start=499).look("inspect", sockets=sockets((30000, 4001)), **look)
    assert reused.judge("server_is_ours").finding is Finding.FOREIGN_SERVER
    hidden = Scene().launched().look("inspect", sockets=sockets((30000, None)), **look)
    assert hidden.judge("server_is_ours").result is Result.UNKNOWN
    closed = Scene().launched().look("inspect", sockets=sockets(), **look)
    assert closed.judge("server_is_ours").finding is Finding.SERVER_NOT_READY
    assert Scene().launched().judge("server_is_ours").result is Result.WAIT


def answer(text: object, code: int = 200) -> tuple[int, str]:
    """Return the section of the fixed question."""
    return 0, f"{json.dumps({'text': text, 'meta_info': {'completion_tokens': 96, 'spec_verify_ct': 40}})}\nHTTP {code}"


@pytest.mark.parametrize(
    ("section", "result", "finding"),
    [
        (answer(" one, two, three, four"), Result.PASS, None),
        (answer(""), Result.FAIL, Finding.BAD_OUTPUT),
        (answer("!" * 60), Result.FAIL, Finding.BAD_OUTPUT),
        (answer("the the the the the the the the the the the the the"), Result.FAIL, Finding.BAD_OUTPUT),
        (answer("x", 503), Result.FAIL, Finding.SERVER_NOT_READY),
        (answer(7), Result.UNKNOWN, None),
        ((0, "{broken\nHTTP 200"), Result.UNKNOWN, None),
    ],
)
def test_answers_are_judged_as_text(section: tuple[int, str], result: Result, finding: Finding | None) -> None:
    """Health 200 proves one token; an answer proves that it can speak."""
    verdict = Scene().look("inspect", answer=section).judge("answers")
    assert (verdict.result, verdict.finding) == (result, finding)


def test_nan_in_the_log_is_bad_output_whatever_the_answer_looks_like() -> None:
    """The engine says it itself."""
    scene = Scene().look("inspect", answer=answer("one two")).log("Detected errors during sampling! NaN in the logits.")
    assert scene.judge("answers").finding is Finding.BAD_OUTPUT


@pytest.mark.parametrize("text", ["one, two, three", "a", "ja ja ja", "0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9"])
def test_ordinary_text_is_not_called_a_loop(text: str) -> None:
    """Short and repetitive is not broken."""
    assert degenerate(text) == ""


def test_log_patterns() -> None:
    """A line that must not be there fails; a line that must be there is waited for until the server is up."""
    scene = Scene().log("KV cache pool is full. Retract requests.").watch(LIVE)
    assert scene.judge("log_lacks", pattern="Retract requests").result is Result.FAIL
    assert scene.judge("log_lacks", pattern="never").result is Result.PASS
    assert scene.judge("log_has", pattern="Retract").result is Result.PASS
    assert Scene().watch(LIVE).judge("log_has", pattern="x").result is Result.WAIT
    assert Scene().watch(LIVE, (2.0, "health 200")).judge("log_has", pattern="x").result is Result.FAIL


def test_remote_text_in_a_verdict_is_shown_and_not_obeyed() -> None:
    """Escape sequences, direction marks and the like become visible escapes."""
    scene = Scene().log("bad \x1b]52;c;x\x07 \u202e line").watch(LIVE)
    assert scene.judge("log_lacks", pattern="bad").saw == r"the log says: bad \x1b]52;c;x\x07 \u202e line"


MODELS: list[tuple[str, str, dict[str, Any], dict[str, Any], Result]] = [
    ("sglang: its path", "sglang", {"model-path": "/m/a"}, {"model_info": {"model_path": "/m/a/"}}, Result.PASS),
    ("sglang: another path", "sglang", {"model-path": "/m/a"}, {"model_info": {"model_path": "/m/b"}}, Result.FAIL),
    ("sglang: not a word", "sglang", {"model-path": "/m/a"}, {}, Result.UNKNOWN),
    ("vllm: by its root", "vllm", {"model": "o/a", "served-model-name": "x"},
     {"models": {"data": [{"id": "x", "root": "o/a"}]}}, Result.PASS),
    ("vllm: the name of another", "vllm", {"model": "o/a", "served-model-name": "x"},
     {"models": {"data": [{"id": "o/a"}]}}, Result.FAIL),
    ("vllm: one of its names", "vllm", {"model": "o/a", "served-model-name": ("x", "y")},
     {"models": {"data": [{"id": "y"}]}}, Result.PASS),
    ("vllm: the model's own name", "vllm", {"model": "o/a"}, {"models": {"data": [{"id": "o/b"}]}}, Result.FAIL),
    ("llamacpp: the file", "llamacpp", {"m": "/m/a.gguf"}, {"models": {"data": [{"id": "a.gguf"}]}}, Result.PASS),
    ("llamacpp: another file", "llamacpp", {"m": "/m/a.gguf"}, {"props": {"model_path": "/m/b.gguf"}}, Result.FAIL),
    ("llamacpp: an alias", "llamacpp", {"m": "/m/a.gguf", "alias": "chat"},
     {"models": {"data": [{"id": "chat"}]}}, Result.PASS),
    ("command: nobody asked", "command", {"model": "a"}, {"models": {"data": [{"id": "b"}]}}, Result.PASS),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "flags", "bodies", "result"), [row[1:] for row in MODELS], ids=[r[0] for r in MODELS])
def test_a_healthy_server_with_another_model(
    kind: str, flags: dict[str, Any], bodies: dict[str, Any], result: Result
) -> None:
    """By its path and by its names; a server that says neither has not shown what it serves."""
    scene = Scene(kind).ask(flags=flags).launched()
    told = {name: (0, json.dumps(body) + "\nHTTP 200") for name, body in bodies.items()}
    look = {"processes": processes((4000, 1, 4000, "sh run"), (4001, 4000, 4000, "server")), **told}
    verdict = scene.look("inspect", sockets=sockets((30000, 4001)), **look).judge("server_is_ours")
    assert verdict.result is result, verdict
    assert verdict.finding is (Finding.FOREIGN_SERVER if result is Result.FAIL else None)


def test_the_model_of_vllm_serve_is_a_word_of_its_command() -> None:
    """It is compared like a flag."""
    scene = Scene("vllm", command=("vllm", "serve", "o/a")).ask(flags={})
    assert scene.trial is not None
    assert scene.evidence().kind.model(scene.server, scene.trial) == "o/a"
