"""A faster server that answers otherwise is refused; one that only rounds otherwise is not."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import pytest

from agent.core.plan import Accuracy, Extract
from agent.core.probes.accuracy import Answered, Token, agrees, read_answers
from agent.core.redact import Redactor
from agent.core.values import Finding, Result, Verdict
from agent.hosts.scripts import bench

from .scene import Scene

sys.modules["bench"] = bench  # as it lies beside the script in a job's folder
chosen = importlib.import_module("agent.hosts.scripts.accuracy").chosen

RIGHT = [
    *(("q1", " Paris.", "paris"), ("q2", " Rome.", "rome"), ("q3", " Berlin.", "berlin"), ("q4", " Madrid.", "madrid")),
    *(("q5", " once upon a time there", ""), ("q6", " and they lived", "")),
]


def document(rows: list[tuple[str, str, str]] | None = None, **changes: Any) -> str:
    """Return what the script prints: a question, its answer, and what is expected in it."""
    answers = [
        {"prompt_sha256": question, "ok": True, "text": text, "expect": [expected] if expected else []}
        for question, text, expected in (RIGHT if rows is None else rows)
    ]
    return json.dumps({"schema": "agent-accuracy/1", "answers": answers, **changes})


def changed(**texts: str) -> str:
    """Return the same with other answers to some questions."""
    return document([(question, texts.get(question, text), expected) for question, text, expected in RIGHT])


def judged(answered: str, reference: str | None = None, **limits: Any) -> Verdict:
    """Judge a launch's answers against the baseline's."""
    scene = Scene()
    scene.more |= {"answered": answered, "reference": document() if reference is None else reference}
    scene.more["plan"] = {"accuracy": Accuracy(**limits).model_dump()}
    return scene.judge("accuracy")


def test_nothing_is_asked_where_nothing_is_to_be() -> None:
    """Without questions there is nothing to hold against it; with them, no answers are no proof."""
    assert Scene().judge("accuracy").result is Result.PASS
    assert judged("").result is Result.WAIT
    assert judged("{}").result is Result.UNKNOWN
    assert judged(changed(q1=" x"), reference="").result is Result.UNKNOWN
    assert judged(document([("other", " x", "")])).result is Result.UNKNOWN


def test_the_baseline_is_what_others_are_compared_with() -> None:
    """It passes by itself, unless it says the same to everything."""
    verdict = judged(document())
    assert verdict.result is Result.PASS
    assert "4 of 4" in verdict.saw
    broken = document([(question, "!!!!", expected) for question, _, expected in RIGHT])
    assert judged(broken, broken).finding is Finding.BAD_OUTPUT


def test_answers_that_were_right_stay_right() -> None:
    """One may be lost, since a near tie may decide it; a second one is refused."""
    assert judged(changed(q1=" the")).result is Result.PASS
    verdict = judged(changed(q1=" the", q2=" the"))
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.BAD_OUTPUT)
    assert "2 of the 4" in verdict.saw
    assert judged(changed(q1=" the", q2=" the"), drop=0.5).result is Result.PASS


def test_texts_are_the_baselines() -> None:
    """At least the share that the playbook wants."""
    other = changed(q1=" Paris!", q2=" Rome!", q5=" long ago")
    assert judged(other).result is Result.PASS
    verdict = judged(other, agree=0.51)
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.BAD_OUTPUT)
    assert "50%" in verdict.saw


def test_a_question_without_an_answer() -> None:
    """What was refused was not answered."""
    rows = [{"prompt_sha256": "q1", "ok": False, "error": "HTTP 500"}]
    verdict = judged(json.dumps({"schema": "agent-accuracy/1", "answers": rows}))
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.INCOMPLETE_RUN)


TOKENS = (Token(" once", -0.7, ((" long", -0.9),)), Token(" upon", -0.1, ((" in", -3.0),)))
REFERENCE = Answered("q", " once upon", None, TOKENS)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (" once upon", True),
        (" long ago", True),  # 0.2 nats less likely: it could as well have been chosen
        (" lonely", False),  # another token that begins like it… is not it
        (" once in", False),  # 2.9 nats less likely: no tie
        (" once", False),
        ("", False),
        (None, False),
    ],
)
def test_near_ties(text: str | None, same: bool) -> None:
    """An answer may leave the baseline's where another token was almost as likely, and nowhere else."""
    assert agrees(Answered("q", text, None), REFERENCE, 0.5) is same


def test_without_probabilities_there_are_no_ties() -> None:
    """Then only equal texts agree."""
    plain = Answered("q", " once upon", None)
    assert agrees(Answered("q", " once upon", None), plain, 0.5)
    assert not agrees(Answered("q", " long ago", None), plain, 0.5)


@pytest.mark.parametrize(
    "logprobs",
    [
        {"tokens": [" a"], "token_logprobs": [-0.5], "top_logprobs": [{" a": -0.5, " b": -0.6}]},
        {"content": [{"token": " a", "logprob": -0.5, "top_logprobs": [{"token": " b", "logprob": -0.6}]}]},
    ],
)
def test_both_forms_of_probabilities(logprobs: dict[str, Any]) -> None:
    """VLLM and SGLang answer in columns, llama.cpp in a list."""
    row = {"prompt_sha256": "q", "ok": True, "text": " a", "logprobs": logprobs}
    found = read_answers(json.dumps({"schema": "agent-accuracy/1", "answers": [row]}), Accuracy())
    assert found is not None
    assert found.answers[0].tokens == (Token(" a", -0.5, ((" b", -0.6),)),)


TOKEN = "token"  # as engines call it, and as a secret is called


@pytest.mark.parametrize(
    "logprobs",
    [
        {
            "tokens": [" million", " Shin"],
            "token_logprobs": [-0.5, -1],
            "top_logprobs": [{" million": -0.5, " mil": -1.5}],
        },
        {
            "content": [
                {
                    TOKEN: " million",
                    "logprob": -0.5,
                    "top_logprobs": [{TOKEN: " million", "logprob": -0.5}, {TOKEN: " mil", "logprob": -1.5}],
                },
                {TOKEN: " Shin", "logprob": -1, "top_logprobs": []},
            ]
        },
    ],
)
def test_tokens_are_no_secrets(logprobs: dict[str, Any]) -> None:
    """Both forms reach the record whole: a masked token would be no near tie, and right answers would be refused."""
    row = {"prompt_sha256": "q", "ok": True, "text": " million Shin", "logprobs": chosen(logprobs)}
    text = json.dumps({"schema": "agent-accuracy/1", "answers": [row]})
    assert Redactor(b"k" * 32).clean(text.encode()).decode() == text
    found = read_answers(text, Accuracy())
    assert found is not None
    assert found.answers[0].tokens == (Token(" million", -0.5, ((" mil", -1.5),)), Token(" Shin", -1.0))


@pytest.mark.parametrize("found", [None, [], "x", {}, {"content": [1]}, {"tokens": ["a"]}, {"content": [{}]}])
def test_other_forms_of_probabilities_are_none(found: Any) -> None:
    """Nothing raises in the job, and nothing is made up of it."""
    row = {"prompt_sha256": "q", "ok": True, "text": " a", "logprobs": chosen(found)}
    answers = read_answers(json.dumps({"schema": "agent-accuracy/1", "answers": [row]}), Accuracy())
    assert answers is not None
    assert not any(token.text or token.others for token in answers.answers[0].tokens)


def test_a_command_with_a_metric() -> None:
    """It may lose a little; where it fails there is no number."""

    def said(value: float, status: int = 0) -> str:
        return json.dumps({"schema": "agent-tool/1", "tool": "command", "status": status, "out": f"acc = {value}\n"})

    limits = {"command": ("lm_eval",), "metric": Extract(pattern=r"acc = ([0-9.]+)"), "drop": 0.02}
    assert judged(said(0.70), said(0.70), **limits).result is Result.PASS
    assert judged(said(0.69), said(0.70), **limits).result is Result.PASS
    verdict = judged(said(0.68), said(0.70), **limits)
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.BAD_OUTPUT)
    assert judged(said(0.70, status=1), said(0.70), **limits).result is Result.UNKNOWN


EMPTY = '{"schema": "agent-accuracy/1"'


@pytest.mark.parametrize("text", ["", "[]", EMPTY + "}", EMPTY + ', "answers": [1]}'])
def test_what_is_no_answer(text: str) -> None:
    """Nothing raises; what was not said is not an answer."""
    found = read_answers(text, Accuracy())
    assert found is None or found.answers[0].text is None
