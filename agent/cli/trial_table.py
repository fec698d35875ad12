"""The trials of a run as a table for terminals: as many as fit, the newest and the best always among them. Pure."""

from __future__ import annotations

import re2 as re
from rich.text import Text

from agent.cli.gauges import FAINT
from agent.cli.text import one_line
from agent.core.campaign import Campaign
from agent.core.campaign.parts import Record

NAME_CELLS_MAX = 20
VALUE_CELLS = 15
TRIED = ("base", "candidate", "hypothesis")
NARROW = 50
"""Below this the number of repeats is left out."""


def percent(ratio: float | None) -> str:
    """Write a ratio as a change."""
    return "?" if ratio is None else f"{(ratio - 1) * 100:+.1f} %"


def best_of(campaign: Campaign) -> Record | None:
    """Return the winner, or as long as nothing is decided the best of the exploration, if it is better than the
    baseline. None otherwise: the best of what did not win is no winner.
    """
    goal, decision = campaign.plan.goal, campaign.concluded
    if campaign.plan.debug is not None:
        return None  # what is looked for is a cause, not the fastest
    valid = [
        record
        for record in campaign.history
        if record.trial.role in TRIED
        and record.scored is not None
        and record.scored.valid
        and goal.metric in record.scored.values
        and not goal.broken(record.scored.values)
    ]
    if decision is not None:
        won = decision.winner if decision.word in ("goal met", "improved") else ""
        return next((record for record in valid if record.trial.id == won), None)
    sign = 1 if goal.direction == "up" else -1
    best = max(valid, key=lambda record: sign * _value(record, goal.metric), default=None)
    ratio = ratio_of(campaign, best) if best is not None else None
    return best if ratio is not None and sign * (ratio - 1) > 0 else None


def _value(record: Record, metric: str) -> float:
    assert record.scored is not None
    return record.scored.values[metric]


def ratio_of(campaign: Campaign, record: Record) -> float | None:
    """Return a trial's value over the baseline's, both of the exploration; None where one is missing."""
    base = next((other for other in campaign.history if other.trial.role == "baseline"), None)
    return _ratio(campaign, record, base)


def _ratio(campaign: Campaign, record: Record, base: Record | None) -> float | None:
    values = [
        other.scored.values.get(campaign.plan.goal.metric)
        for other in (record, base)
        if other is not None and other.scored is not None and other.scored.valid
    ]
    return values[0] / values[1] if len(values) == 2 and values[0] is not None and values[1] else None


def _change(campaign: Campaign, record: Record) -> float | None:
    """Return a row's change: of a candidate against the baseline, of a confirmation against the other of its pair."""
    trial = record.trial
    if trial.role in TRIED:
        return ratio_of(campaign, record)
    if trial.role == "confirm" and trial.id.endswith("-winner"):
        name = trial.id.removesuffix("-winner") + "-baseline"
        return _ratio(campaign, record, next((other for other in campaign.history if other.trial.id == name), None))
    return None


def trial_lines(campaign: Campaign, width: int, rows: int) -> list[Text]:
    """Return at most ``rows`` lines: a heading, then the trials in their order."""
    records = campaign.history
    if rows < 1 or not records:
        return []
    head = rows > 3
    chosen = _chosen(campaign, rows - head)
    names = min(NAME_CELLS_MAX, max(10, *(len(record.trial.id) for record in records)))
    if width < NARROW:
        names = min(names, max(8, width - VALUE_CELLS - 12))
    best = best_of(campaign)
    lines = [_row(campaign, records[place], width, names, best) for place in chosen]
    if head:
        hidden = len(records) - len(chosen)
        title = f"{len(records)} trials" + (f", {hidden} not shown" if hidden else "")
        line = Text(f"  {title}".ljust(names + 3), style=FAINT)
        metric = one_line(campaign.plan.goal.metric, VALUE_CELLS)
        lines.insert(
            0,
            line.append(f"{metric:>{VALUE_CELLS}}", style=FAINT).append(
                "  change" if width < NARROW else "   n  change", style=FAINT
            ),
        )
    return lines


def _chosen(campaign: Campaign, rows: int) -> list[int]:
    """Return which trials are shown: the newest, the best, the baseline, then the newest of the others."""
    records = campaign.history
    best = best_of(campaign)
    first = [len(records) - 1]
    first += [place for place, record in enumerate(records) if record is best]
    first += [place for place, record in enumerate(records) if record.trial.role == "baseline"]
    order = dict.fromkeys([*first, *range(len(records) - 1, -1, -1)])
    return sorted(list(order)[:rows])


def _row(campaign: Campaign, record: Record, width: int, names: int, best: Record | None) -> Text:
    trial, scored = record.trial, record.scored
    metric = campaign.plan.goal.metric
    current = campaign.visit is not None and record is campaign.record and not campaign.over
    if record is best:
        line = Text.assemble(("★ ", "bold green"))
    elif current:
        line = Text.assemble(("▶ ", "bold cyan"))
    else:
        line = Text.assemble(("◆ " if trial.role == "confirm" else "  ", "cyan"))
    style = "bold" if record is best or current else ""
    line.append(one_line(trial.id, names).ljust(names + 1), style=style)
    if scored is None:
        word = "stays running" if trial.role == "final" else record.finding or ("measuring" if current else "-")
        line.append(f"{word:>{VALUE_CELLS}}", style=FAINT if not record.finding else "red")
        label = _label(record, width - line.cell_len - 15)
        return line.append(f"{'':15}{label}" if label else "", style=FAINT)
    if scored.verdict:
        tone = {"supported": "green", "refuted": "red"}.get(scored.verdict, "yellow")
        line.append(f"{scored.verdict:>{VALUE_CELLS}}  ", style=tone)
        return line.append(one_line(scored.because, max(8, width - line.cell_len)), style=FAINT)
    if not scored.valid or metric not in scored.values:
        line.append(f"{one_line(scored.finding or 'no numbers', 20):>{VALUE_CELLS}}", style="red")
        label = _label(record, width - line.cell_len - 15)
        return line.append(f"{'':15}{label}" if label else "", style=FAINT)
    spread = scored.deviations.get(metric)
    value = f"{scored.values[metric]:.4g}" + (f" ± {spread:.2g}" if spread is not None else "")
    line.append(f"{value:>{VALUE_CELLS}}", style=style)
    line.append("  " if width < NARROW else f" {scored.repeats:>3}  ", style=FAINT)
    ratio = _change(campaign, record)
    line.append(f"{percent(ratio) if ratio is not None else '':<9}", style="green" if record is best else "")
    return line.append(_label(record, width - line.cell_len), style=FAINT)


def _label(record: Record, room: int) -> str:
    """Say what a trial changes, in the cells that are left; its values stand at the end, so that is what stays.

    What is cut is cut before a word: half of one reads like the name of another flag.
    """
    trial = record.trial
    words = one_line(trial.of if trial.role == "final" else trial.label(), 200)
    if room < 8 or words == trial.id or trial.role == "confirm":
        return ""
    if len(words) <= room:
        return words
    kept = words[-(room - 1) :]
    word = re.search(r"[-_, ]([A-Za-z])", kept)
    return "…" + (kept[word.start(1) :] if word is not None and "=" in kept[word.start(1) :] else kept)
