"""What the HTML report does with figures and long lists."""

from __future__ import annotations

from typing import Any

import pytest

from agent.cli.report_html import _lists, _number


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(79.3, 4, "79.30"), (94.0, 4, "94.00"), (1234.0, 4, "1234"), (0.13351, 2, "0.13"), (None, 4, "")],
)
def test_figures_of_a_column_have_the_same_digits(value: float | None, digits: int, text: str) -> None:
    """A last zero is a digit that was measured."""
    assert _number(value, digits) == text


def test_a_list_that_nobody_reads_as_a_whole_is_folded() -> None:
    """All of it is there, behind its number of entries; a short one stands open."""
    order: dict[str, Any] = {"wall_ns": 0, "order": "note", "text": "<b>", "by": "me", "seq": 1}
    nothing: dict[str, Any] = {key: [] for key in ("overrides", "signals", "starts", "controllers", "edits")}
    report = {**nothing, "inquiry": True, "playbook_text": "", "orders": [order]}
    assert "<details>" not in "".join(_lists(report))
    whole = "".join(_lists({**report, "orders": [order] * 100}))
    assert "<summary>100 entries</summary>" in whole
    assert whole.count("&lt;b&gt; (by me") == 100
