"""Whether a server answers as the baseline did: fixed questions, their answers, and how near two answers are.

Greedy answers of two right servers differ where two tokens are almost equally likely: batch sizes and kernels round
differently. Such a near tie is no fault. What was said before it must be equal, what comes after it cannot be compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..workloads import COPY, FREE
from .benchmark.numbers import load_document, mapping, word
from .benchmark.tools import SCHEMA as TOOL_SCHEMA
from .benchmark.tools import read_tool

if TYPE_CHECKING:
    from ..plan import Accuracy, Server

SCHEMA = "agent-accuracy/1"
SCRIPT = "accuracy.py"
ANSWERS_MAX = 1000
CHARS_MAX = 4000

FACTS = (
    ("The capital of France is", "Paris"),
    ("The capital of Germany is", "Berlin"),
    ("The capital of Japan is", "Tokyo"),
    ("The capital of Italy is", "Rome"),
    ("The capital of Spain is", "Madrid"),
    ("2 + 2 =", "4"),
    ("Monday, Tuesday, Wednesday, Thursday, Friday,", "Saturday"),
    ("1, 2, 3, 4, 5, 6,", "7"),
)
QUESTIONS: tuple[Mapping[str, Any], ...] = (
    *({"prompt": prompt, "expect": [answer]} for prompt, answer in FACTS),
    *({"prompt": prompt} for prompt in (*COPY, *FREE)),
)
"""Half of them with an answer that a model of any size may know, half of them text that goes on."""


@dataclass(frozen=True)
class Token:
    """A token that was chosen, and the others that were nearly as likely: text and log probability."""

    text: str
    logprob: float
    others: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Answered:
    """One answer. ``right`` is None where nothing was expected."""

    question: str
    text: str | None
    right: bool | None
    tokens: tuple[Token, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Answers:
    """The answers of one launch, in the order of the questions; or, of a command, its metric."""

    answers: tuple[Answered, ...] = ()
    metric: float | None = None
    simulated: bool = False

    @property
    def right(self) -> int:
        """How many of those with an expected answer are right."""
        return sum(1 for answer in self.answers if answer.right)


def read_answers(text: str, accuracy: Accuracy) -> Answers | None:
    """Read what the script, or the command, printed; None when it is not that."""
    document = load_document(text)
    if document is None:
        return None
    if document.get("schema") == TOOL_SCHEMA:
        result = read_tool(document, {}, {"accuracy": accuracy.metric})
        failed = result is None or bool(result.errors)
        return None if result is None or failed else Answers(metric=result.given["accuracy"])
    rows = document.get("answers")
    if document.get("schema") != SCHEMA or not isinstance(rows, list) or not 1 <= len(rows) <= ANSWERS_MAX:
        return None
    answers = tuple(_answer(mapping(row)) for row in rows)
    return Answers(answers, simulated=document.get("simulated") is True)


def _answer(row: Mapping[str, Any]) -> Answered:
    question, said = word(row.get("prompt_sha256")), row.get("text")
    if row.get("ok") is not True or not isinstance(said, str):
        return Answered(question, None, None, error=word(row.get("error")) or "no reason given")
    text, wanted = said[:CHARS_MAX], row.get("expect")
    expected = [item.lower() for item in wanted if isinstance(item, str)] if isinstance(wanted, list) else []
    right = any(item in text.lower() for item in expected) if expected else None
    return Answered(question, text, right, _tokens(row.get("logprobs")))


def _tokens(found: Any) -> tuple[Token, ...]:
    """Read log probabilities: as our script lists them, or, in journals from before it did, as engines do."""
    table = mapping(found)
    tokens: list[Token] = []
    if isinstance(found, list):
        for row in found:
            if not isinstance(row, list) or len(row) != 3 or not isinstance(row[2], list):
                return ()
            pairs = [(pair[0], pair[1]) for pair in row[2] if isinstance(pair, list) and len(pair) == 2]
            tokens.append(_token(row[0], row[1], pairs))
        return tuple(tokens)
    if isinstance(table.get("content"), list):
        for item in map(mapping, table["content"]):
            rest = item.get("top_logprobs")
            pairs = (
                [(row.get("token"), row.get("logprob")) for row in map(mapping, rest)] if isinstance(rest, list) else []
            )
            tokens.append(_token(item.get("token"), item.get("logprob"), pairs))
    elif isinstance(table.get("tokens"), list) and isinstance(table.get("token_logprobs"), list):
        tops = table.get("top_logprobs")
        tops = tops if isinstance(tops, list) else []
        for place, (text, value) in enumerate(zip(table["tokens"], table["token_logprobs"], strict=False)):
            tokens.append(_token(text, value, list(mapping(tops[place] if place < len(tops) else None).items())))
    return tuple(tokens)


def _token(text: Any, value: Any, pairs: list[tuple[Any, Any]]) -> Token:
    def number(item: Any) -> float | None:
        return float(item) if isinstance(item, (int, float)) and not isinstance(item, bool) else None

    others = tuple((str(name), found) for name, item in pairs if (found := number(item)) is not None and name != text)
    return Token(word(text), number(value) or 0.0, others)


def agrees(one: Answered, reference: Answered, tie: float) -> bool:
    """Whether an answer is the reference's, or leaves it only at a near tie of the reference's own probabilities.

    ``tie``: how much less likely (in nats) a token may be that could as well have been chosen.
    """
    if one.text is None or reference.text is None:
        return False
    if one.text == reference.text:
        return True
    same = next(
        (place for place, pair in enumerate(zip(one.text, reference.text, strict=False)) if pair[0] != pair[1]),
        min(len(one.text), len(reference.text)),
    )
    start = 0
    for token in reference.tokens:
        end = start + len(token.text)
        if end > same:
            here = one.text[start:]
            return any(
                bool(text) and here.startswith(text) and token.logprob - value <= tie for text, value in token.others
            )
        start = end
    return False


def accuracy_command(
    accuracy: Accuracy, server: Server, *, reference: bool, request: Mapping[str, Any] | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line that asks the questions, and the job's files. ``reference``: probabilities as well.

    ``request``: fields that each of its requests has beside its own. A command has requests of its own.
    """
    if accuracy.command:
        runner = ("python3", "@job/bench_tool.py", "--tool", "command", "--port", str(server.port), "--")
        return (*runner, *accuracy.command), dict(accuracy.files)
    asked = ("--questions", json.dumps(list(QUESTIONS)))
    if "questions.json" in accuracy.files:
        asked = ("--questions-file", "@job/questions.json")
    argv = ("python3", f"@job/{SCRIPT}", "--port", str(server.port), "--api", server.kind)
    more: tuple[str, ...] = ("--logprobs",) if reference else ()
    more += ("--request", json.dumps(dict(request))) if request else ()
    return (*argv, "--tokens", str(accuracy.tokens), *more, *asked), dict(accuracy.files)
