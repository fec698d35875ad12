"""`agent rules`, and `agent check` as a linter: hits at their places, set aside only with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.cli.main import main
from agent.core.servers.lint import FILES, every_rule, rules

HEAD = """\
playbook: x
hosts: {box: demo}
server:
  kind: sglang
  port: 18080
  tensor_parallel: 8
  command: [python3, -m, sglang.launch_server]
  flags:
    model-path: /m
"""
DRAFT = """\
    speculative-algorithm: EAGLE3
    speculative-draft-model-path: /d/eagle3
    speculative-eagle-topk: 1
    speculative-num-steps: 1
    speculative-num-draft-tokens: 16
    max-running-requests: 48
"""
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "rules.md"


def check(tmp_path: Path, text: str, *words: str) -> int:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    path.chmod(0o644)
    return main(["check", str(path), *words])


def test_an_error_has_its_place_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What would cost a start of 15 minutes is said with line and column."""
    assert check(tmp_path, HEAD + DRAFT) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{tmp_path}/p.yaml:14:5: SGL001: server.flags.speculative-num-draft-tokens: error: with topk 1" in shown.err
    assert "`agent rules SGL001` says more" in shown.err


def test_warnings_do_not_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are said, and the playbook is used."""
    assert check(tmp_path, HEAD + "    attention-backend: torch_native\n") == 0
    shown = capsys.readouterr()
    assert "p.yaml:10:5: SGL016: server.flags.attention-backend: warning:" in shown.err
    assert shown.out.endswith("; 1 warning\n")


def test_notes_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no fault is quiet by default."""
    text = (
        HEAD + "    speculative-algorithm: NEXTN\n    max-running-requests: 48\n    speculative-draft-model-path: /d\n"
    )
    assert check(tmp_path, text) == 0
    assert capsys.readouterr().err == ""
    assert check(tmp_path, text, "--notes") == 0
    assert "SGL014" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("search", "where"),
    [
        ("search:\n  base:\n    flags: {speculative-num-draft-tokens: 9}\n", "search.base.flags"),
        (
            "search:\n  stages:\n    - name: n\n      flags: {speculative-num-draft-tokens: {sweep: [2, 9]}}\n",
            "search.stages[0].flags",
        ),
    ],
)
def test_trials_known_beforehand_are_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], search: str, where: str
) -> None:
    """A sound baseline does not excuse the candidates."""
    assert check(tmp_path, HEAD + DRAFT.replace("16", "2") + search) == 2
    shown = capsys.readouterr().err
    assert f"SGL001: {where}.speculative-num-draft-tokens: error:" in shown
    assert "(trial " in shown


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs: place, id and level of every hit."""
    assert check(tmp_path, HEAD + DRAFT + "    attention-backend: torch_native\n", "--json") == 2
    document = json.loads(capsys.readouterr().out)
    assert [(one["code"], one["line"]) for one in document["problems"]] == [("SGL001", 14)]
    assert [(one["code"], one["line"]) for one in document["hints"]] == [("SGL016", 16)]


def test_set_aside_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A comment allows a rule; without a reason, or without a rule, it is a fault of its own."""
    allowed = DRAFT.replace("16\n", "16  # agent: allow SGL001 because the override is what we study\n")
    assert check(tmp_path, HEAD + allowed) == 0
    for comment, said in (
        ("# agent: allow SGL001", "without a reason"),
        ("# agent: allow SGL001 because", "without a reason"),
        ("# agent: allow everything because I say so", "allows no rule"),
        ("# agent: allow SGL999 because it is new", "there is no rule SGL999"),
    ):
        capsys.readouterr()
        assert check(tmp_path, HEAD + comment + "\n") == 2
        assert said in capsys.readouterr().err, comment


def test_an_override_that_a_guard_allows_is_no_fault(tmp_path: Path) -> None:
    """What is allowed by the flag's name need not be allowed again by a comment."""
    guards = "[alive, ready, {guard: effective_config, allow_overrides: [speculative-num-draft-tokens]}]"
    assert check(tmp_path, f"{HEAD}{DRAFT}states: {{health-wait: {{guards: {guards}}}}}\n") == 0


def test_the_list_and_one_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    """Every rule says what happens, what helps, and where that is known from."""
    assert main(["rules"]) == 0
    shown = capsys.readouterr().out
    assert all(rule.id in shown for rule in every_rule())
    assert main(["rules", "sgl001"]) == 0
    one = capsys.readouterr().out
    assert main(["check", "--explain", "SGL001"]) == 0
    assert capsys.readouterr().out == one
    assert "source" in one
    assert "# agent: allow SGL001 because" in one
    assert main(["rules", "--json", "--kind", "vllm"]) == 0
    assert {item["id"] for item in json.loads(capsys.readouterr().out)} == {rule.id for rule in rules("vllm")}
    assert main(["rules", "SGL01"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_there_are_enough_and_all_are_complete() -> None:
    """At least 25, each with versions, remedy and source; their texts stand in the reference."""
    found = every_rule()
    assert len(found) >= 25
    reference = REFERENCE.read_text()
    for rule in found:
        assert rule.versions, rule.id
        assert rule.remedy, rule.id
        assert rule.source, rule.id
        assert f"| `{rule.id}` | {rule.level} | {rule.happens} | {rule.remedy} |" in reference, rule.id
    assert {name for files in FILES.values() for name in files} == {"sglang", "vllm", "llamacpp", "nccl", "bench"}
