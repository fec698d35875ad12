"""The reattach table, cell by cell, and what must hold in all of it."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from agent.core.campaign.reattach import WORDS, Recorded, reattach

TABLE = {
    # what the journal has:  nothing      an intent   an answer
    "ABSENT": ("go on", "start", "start"),
    "STARTING": ("orphan", "wait", "ask"),
    "LIVE": ("orphan", "attach", "attach"),
    "ORPHANED": ("orphan", "attach", "attach"),
    "EXITED": ("orphan", "ended", "anew"),
    "LOST": ("orphan", "lost", "anew"),
    "CONFLICT": ("ask", "ask", "ask"),
    "UNKNOWN": ("ask", "ask", "ask"),
    "FENCED": ("fenced", "fenced", "fenced"),
}
CELLS = [
    (recorded, word, row[column])
    for (column, recorded), (word, row) in itertools.product(enumerate(get_args(Recorded)), TABLE.items())
]


def test_there_is_a_cell_for_everything() -> None:
    """Three by nine."""
    assert set(TABLE) == set(WORDS)
    assert len(CELLS) == 27


@pytest.mark.parametrize(("recorded", "word", "do"), CELLS)
def test_each_cell(recorded: Recorded, word: str, do: str) -> None:
    """As reliability wants it: a key is started only where the host never heard of it."""
    assert reattach(recorded, word) == do
    assert (do == "start") <= (word == "ABSENT")


@pytest.mark.parametrize("recorded", get_args(Recorded))
def test_a_word_that_is_none_is_not_guessed_at(recorded: Recorded) -> None:
    """Garbage, an empty answer, a word of a later version: a question."""
    for word in ("", "live", "GONE", "LIVE 1 2 3"):
        assert reattach(recorded, word) == "ask"
