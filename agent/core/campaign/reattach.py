"""What to do about a key, by what the journal has of it and what its host says: one table, looked up and no more.

Two rules are in every row. Nothing is started under a key that the host has heard of. What the host cannot tell leads
to a question, never to a start and never to a signal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ..observations import JOB_WORDS, JobState

Recorded = Literal["nothing", "intent", "answer"]
"""The journal has no request for the key, one whose answer never came, or one with its answer."""
Do = Literal["go on", "start", "wait", "attach", "ended", "lost", "anew", "orphan", "fenced", "ask"]
"""``attach``: the job is there, take it as it is. ``ended``, ``lost``: that is the answer. ``anew``: that start is
over, the next one gets another key. ``orphan``: the host knows a key that the record does not, whose end was lost.
"""
WORDS = (*JOB_WORDS, "FENCED")

_NOTHING: Mapping[str, Do] = {"ABSENT": "go on", "FENCED": "fenced"}
_INTENT: Mapping[str, Do] = {
    "ABSENT": "start",
    "STARTING": "wait",
    "LIVE": "attach",
    "ORPHANED": "attach",
    "EXITED": "ended",
    "LOST": "lost",
    "CONFLICT": "ask",
    "UNKNOWN": "ask",
    "FENCED": "fenced",
}
_ANSWER: Mapping[str, Do] = {
    "ABSENT": "start",  # its host lost the folder with it, or never made one: the answer then was a refusal
    "STARTING": "ask",
    "LIVE": "attach",
    "ORPHANED": "attach",
    "EXITED": "anew",
    "LOST": "anew",
    "CONFLICT": "ask",
    "UNKNOWN": "ask",
    "FENCED": "fenced",
}


def reattach(recorded: Recorded, word: str) -> Do:
    """Look up what is to be done; a word that is none of ``WORDS`` is UNKNOWN."""
    word = word if word in WORDS else "UNKNOWN"
    match recorded:
        case "nothing":
            return _NOTHING.get(word, "orphan" if word not in ("CONFLICT", "UNKNOWN") else "ask")
        case "intent":
            return _INTENT[word]
        case "answer":
            return _ANSWER[word]


def word_of(state: JobState | None) -> str:
    """Return the host's word; no answer is UNKNOWN."""
    return state.word if state is not None else "UNKNOWN"
