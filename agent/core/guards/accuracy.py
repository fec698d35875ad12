"""A guard on what a server says: a faster server that answers otherwise than the baseline is not a better one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..probes.accuracy import Answered, Answers, agrees, read_answers
from ..values import Finding, Verdict
from .base import Guard, failed, passed, unknown, waiting

if TYPE_CHECKING:
    from ..evidence import Evidence
    from ..plan import Accuracy as Asked

_WRONG = "do not use this setting: it changes what is answered. Where that is meant, say so with `accuracy`"


class Accuracy(Guard):
    """The server answers the questions of `accuracy` as the baseline did, up to near ties; its limits stand there."""

    guard: Literal["accuracy"] = "accuracy"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        asked = evidence.plan.accuracy
        if asked is None or (evidence.trial is not None and evidence.trial.role == "warm"):
            return passed("no questions are asked")
        if not evidence.answered:
            if evidence.latest("accuracy") is None:
                return waiting("the questions are not asked yet")
            return unknown("the questions were not answered", "answers", Finding.LOST)
        found = read_answers(evidence.answered, asked)
        if found is None:
            return unknown("what was answered cannot be read", "a document of a known form")
        own = evidence.answered == evidence.reference
        if not own and not evidence.reference:
            return unknown("the baseline has no answers to compare with", "answers of the baseline")
        reference = read_answers(evidence.reference, asked) if not own else found
        if reference is None:
            return unknown("the baseline's answers cannot be read", "answers of the baseline")
        if asked.command:
            return _measured(found, reference, asked)
        lost = [answer for answer in found.answers if answer.text is None]
        if lost:
            saw = f"{len(lost)} of {len(found.answers)} questions got no answer: {lost[0].error[:120]}"
            return failed(Finding.INCOMPLETE_RUN, saw, "an answer to each", "ask one of them by hand")
        if own:
            return self._first(found)
        return _compared(found, reference, asked)

    def _first(self, found: Answers) -> Verdict:
        texts = {answer.text for answer in found.answers}
        if len(found.answers) > 3 and (len(texts) == 1 or not any(text and text.strip() for text in texts)):
            saw = f"{len(found.answers)} questions got one answer: {next(iter(texts)) or ''!r:.60}"
            return failed(Finding.BAD_OUTPUT, saw, "an answer to each", "look at the weights and the prompt format")
        expected = sum(answer.right is not None for answer in found.answers)
        return passed(f"{found.right} of {expected} answers are right; later launches are compared with these")


def _measured(found: Answers, reference: Answers, asked: Asked) -> Verdict:
    value, before = found.metric, reference.metric
    if value is None or before is None:
        return unknown("the command told no accuracy", "a number")
    least = before * (1 - asked.drop)
    if value < least:
        return failed(Finding.BAD_OUTPUT, f"accuracy {value:g}", f"at least {least:g} (baseline {before:g})", _WRONG)
    return passed(f"accuracy {value:g}, baseline {before:g}")


def _compared(found: Answers, reference: Answers, asked: Asked) -> Verdict:
    before = {answer.question: answer for answer in reference.answers}
    pairs = [(answer, before[answer.question]) for answer in found.answers if answer.question in before]
    if len(pairs) < len(found.answers):
        return unknown("the baseline was asked other questions", "the same questions")
    known = [(one, other) for one, other in pairs if other.right]
    missed = [one for one, _ in known if not one.right]
    if len(missed) > max(1, int(asked.drop * len(known))):
        saw = f"{len(missed)} of the {len(known)} questions that the baseline answered right are answered wrong"
        return failed(Finding.BAD_OUTPUT, f"{saw}: {_shown(missed[0])}", f"at most {asked.drop:.0%}", _WRONG)
    other_texts = [one for one, reference_ in pairs if not agrees(one, reference_, asked.tie)]
    share = 1 - len(other_texts) / len(pairs)
    if share < asked.agree:
        saw = f"{share:.0%} of the answers agree with the baseline's; another one: {_shown(other_texts[0])}"
        return failed(Finding.BAD_OUTPUT, saw, f"at least {asked.agree:.0%}", _WRONG)
    return passed(f"{len(known) - len(missed)} of {len(known)} right, {share:.0%} agree with the baseline's answers")


def _shown(answer: Answered) -> str:
    return f"{(answer.text or '').strip()[:60]!r}"
