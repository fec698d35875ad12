"""Random edits, cuts and roll-backs: the short form of ``tests/journal/tamper.py``."""

from __future__ import annotations

from pathlib import Path

from tamper import rounds


def test_nothing_that_was_changed_goes_unnoticed(tmp_path: Path) -> None:
    """Every change of what is recorded is found; what was rechained, by the heads that were kept elsewhere."""
    scores = rounds(tmp_path, 60, seed=7)
    assert {name: score.missed for name, score in scores.items() if score.missed} == {}
    for name in ("edit", "edit_rechained", "drop", "drop_rechained", "swap", "roll_back"):
        assert sum(scores[name].found.values()) == scores[name].tried > 0
    assert set(scores["roll_back"].found) == {12}
    assert 13 in scores["edit_rechained"].found
