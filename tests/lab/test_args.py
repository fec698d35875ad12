"""Flags are taken, refused and silently changed as the real engine does it."""

from __future__ import annotations

from typing import Any

import pytest

from agent.lab.box_files.sglang import args, nccl


def resolve(line: str, env: dict[str, str] | None = None) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration after resolution, and the warnings."""
    config = vars(args.parser().parse_args(["--model-path", "/m", *line.split()]))
    warnings = args.resolve(config, env or {})
    return config, warnings


SPEC = "--speculative-algorithm EAGLE3 --speculative-draft-model-path /d "


def test_one_branch_forces_the_number_of_draft_tokens() -> None:
    """One branch forces the number of draft tokens."""
    config, warnings = resolve(
        SPEC + "--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16"
    )
    assert config["speculative_num_draft_tokens"] == 2
    assert (
        "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
        in warnings
    )
    assert config["max_running_requests"] == 48
    assert warnings[0].startswith("Max running requests is reset to 48 for speculative decoding.")
    assert config["disable_overlap_schedule"] is True


def test_more_branches_keep_it() -> None:
    """More branches keep it."""
    config, warnings = resolve(
        SPEC + "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16"
    )
    assert config["speculative_num_draft_tokens"] == 16
    assert not any("adjusted" in warning for warning in warnings)


def test_nothing_given_is_chosen_by_the_engine() -> None:
    """Nothing given is chosen by the engine."""
    config, _ = resolve(SPEC)
    assert [config[f"speculative_{name}"] for name in ("num_steps", "eagle_topk", "num_draft_tokens")] == [3, 1, 4]


@pytest.mark.parametrize(
    ("line", "error"),
    [("--speculative-eagle-topk 1", AssertionError), ("--speculative-num-steps 2", TypeError)],
)
def test_half_given_is_an_error_without_words(line: str, error: type[Exception]) -> None:
    """Half given is an error without words."""
    with pytest.raises(error):
        resolve(SPEC + line)


def test_nextn_is_eagle() -> None:
    """Nextn is eagle."""
    assert (
        resolve("--speculative-algorithm NEXTN --speculative-draft-model-path /d")[0]["speculative_algorithm"]
        == "EAGLE"
    )


def test_spec_v2_turns_the_overlap_schedule_on_and_refuses_branches() -> None:
    """Spec v2 turns the overlap schedule on and refuses branches."""
    v2 = {"SGLANG_ENABLE_SPEC_V2": "True"}
    config, warnings = resolve(SPEC + "--disable-overlap-schedule", v2)
    assert config["disable_overlap_schedule"] is False
    assert any("overlap schedule is turned on" in warning for warning in warnings)
    with pytest.raises(ValueError, match="topk = 1"):
        resolve(SPEC + "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8", v2)


def test_mixed_chunk_goes() -> None:
    """Mixed chunk goes."""
    config, warnings = resolve(SPEC + "--enable-mixed-chunk")
    assert config["enable_mixed_chunk"] is False
    assert any("Mixed chunked prefill is disabled" in warning for warning in warnings)


def test_without_speculation_nothing_is_said() -> None:
    """Without speculation nothing is said."""
    config, warnings = resolve("--tp 8")
    assert warnings == []
    assert (config["max_running_requests"], config["tp_size"]) == (None, 8)


def test_abbreviations_and_repeats_are_taken() -> None:
    """Abbreviations and repeats are taken."""
    config, _ = resolve("--speculative-num-st 3 --port 1 --port 2 --tensor-parallel-size 4")
    assert (config["speculative_num_steps"], config["port"], config["tp_size"]) == (3, 2, 4)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "--speculative-algorithm EAGLE-3",
            "argument --speculative-algorithm/--speculative-algo: invalid choice: 'EAGLE-3'",
        ),
        ("--no-such-flag 1", "unrecognized arguments: --no-such-flag 1"),
        ("--speculative-num 3", "ambiguous option: --speculative-num"),
        ("--port x", "argument --port: invalid int value: 'x'"),
    ],
)
def test_wrong_flags_end_with_status_2(line: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong flags end with status 2."""
    with pytest.raises(SystemExit) as ended:
        resolve(line)
    assert ended.value.code == 2
    assert f"launch_server.py: error: {text}" in capsys.readouterr().err


def test_the_log_line_names_every_argument() -> None:
    """The log line names every argument."""
    config, _ = resolve("--tp 8")
    line = args.server_args(config)
    assert line.startswith("server_args=ServerArgs(model_path='/m', ")
    assert ", tp_size=8" in line


def test_nccl_takes_what_it_knows_and_nothing_else() -> None:
    """Nccl takes what it knows and nothing else."""
    env = {
        "NCCL_IB_DISABLE": "1", "NCCL_BUFFSIZE": "8M", "NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "sys",
        "NCCL_MIN_NCHANELS": "16",        "NCCL_MIN_NCHANNELS": "eight", "PATH": "x",
    }  # fmt: skip
    assert nccl.applied(env) == {
        "NCCL_IB_DISABLE": "1", "NCCL_BUFFSIZE": "8", "NCCL_PROTO": "LL", "NCCL_MIN_NCHANNELS": "0",
    }  # fmt: skip
    assert nccl.applied({"NCCL_P2P_LEVEL": "SYS"}) == {"NCCL_P2P_LEVEL": "SYS"}
    assert nccl.applied({"NCCL_P2P_LEVEL": "4"}) == {"NCCL_P2P_LEVEL": "SYS"}


@pytest.mark.parametrize("value", ["LL", "ll128", "Simple", "^LL128", "LL,LL128,Simple"])
def test_protocols_in_any_case(value: str) -> None:
    """Protocols in any case."""
    assert nccl.applied({"NCCL_PROTO": value}) == {"NCCL_PROTO": value}


def test_an_unknown_protocol_is_refused() -> None:
    """An unknown protocol is refused."""
    with pytest.raises(nccl.InvalidUsageError, match='Unrecognized element token "LL64"'):
        nccl.applied({"NCCL_PROTO": "LL64"})


def test_lines_come_only_where_nccl_is_told_to_speak() -> None:
    """Lines come only where nccl is told to speak."""
    taken = {"NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "8"}
    said = nccl.lines({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING"}, taken, 41, 3, "box")
    assert "box:41:41 [3] NCCL INFO NCCL_PROTO set by environment to LL" in said
    assert "box:41:41 [3] NCCL INFO NCCL_BUFFSIZE set by environment to 8." in said
    assert not any(
        "set by" in line for line in nccl.lines({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT"}, taken, 1, 0, "b")
    )
    assert nccl.lines({}, taken, 1, 0, "b") == []
