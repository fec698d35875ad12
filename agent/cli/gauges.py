"""Gauges for terminals: a bar, GPUs, the interval of a decision. Pure; everything fits the width it is given."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from agent.cli.text import one_line
from agent.core.events import Concluded
from agent.core.plan import Goal
from agent.core.probes.gpu import Gpu, GpuTable
from agent.core.values import duration_text

FAINT = "dim"
"""Not a colour: in some themes the grey one is that of the background."""
GPU_CELLS = 39
SCALE_CELLS = 48


def bar(share: float, cells: int, style: str) -> Text:
    """Return a bar of ``cells`` cells; anything above 0 shows at least one."""
    share = min(1.0, max(0.0, share))
    full = max(round(share * cells), 1 if share > 0 else 0)
    return Text.assemble(("━" * full, style), ("─" * (cells - full), FAINT))


def gpu_lines(table: GpuTable | None, age_s: float, width: int) -> list[Text]:
    """Return a line that sums the GPUs up, then a bar for each, in as many columns as fit."""
    if table is None:
        return []
    used = [gpu.used_mib for gpu in table.gpus if gpu.used_mib is not None]
    loads = [gpu.util for gpu in table.gpus if gpu.util is not None]
    line = Text.assemble((f"GPUs {len(table.gpus)}", "bold"))
    line.append(f"  memory {_span([value / 1024 for value in used], '.1f')} GiB" if used else "  memory unknown")
    line.append(f"  load {_span(loads, '.0f')} %" if loads else "")
    line.append(f"  probed {duration_text(round(max(0.0, age_s)))} ago", style=FAINT)
    lines = [line]
    if table.problem:
        lines.append(Text(f"  {one_line(table.problem, 200)}", style="red"))
    columns = max(1, width // (GPU_CELLS + 1))
    for first in range(0, len(table.gpus), columns):
        row = Text()
        for gpu in table.gpus[first : first + columns]:
            row.append_text(_gpu(gpu))
        lines.append(row)
    return lines


def _span(values: Sequence[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low}–{high}"


def _gpu(gpu: Gpu) -> Text:
    line = Text(f"{gpu.index:>3} ")
    if gpu.used_mib is None or not gpu.total_mib:
        line.append("memory ?".ljust(24), style="yellow")
    else:
        share = gpu.used_mib / gpu.total_mib
        line.append_text(bar(share, 10, "green" if share < 0.9 else "yellow"))
        line.append(f" {gpu.used_mib / 1024:5.1f}/{gpu.total_mib / 1024:.0f}G ".ljust(13))
    if gpu.util is None:
        line.append("load ?", style="yellow")
    else:
        line.append_text(bar(gpu.util / 100, 5, "cyan")).append(f" {gpu.util:3d} %")
    line.truncate(GPU_CELLS, pad=True)
    return line.append(" ")


def interval_line(decision: Concluded, goal: Goal, width: int) -> Text:
    """Return the interval on a scale that also has 'no change' (0) and the goal on it."""
    assert decision.ratio is not None, "a decision without a ratio has no interval"
    assert decision.low is not None, "a decision without an interval has no scale"
    assert decision.high is not None, "a decision without an interval has no scale"
    wanted = 1 + goal.improve if goal.direction == "up" else 1 - goal.improve
    points = [decision.low, decision.ratio, decision.high, wanted, 1.0]
    low, high = min(points), max(points)
    cells = max(8, min(SCALE_CELLS, width - 24))
    step = (high - low) / (cells - 1) or 1.0

    def place(value: float) -> int:
        return max(0, min(cells - 1, round((value - low) / step)))

    signs, styles = ["·"] * cells, [FAINT] * cells
    for at in range(place(decision.low), place(decision.high) + 1):
        signs[at], styles[at] = "─", "green" if decision.low > 1 or goal.direction == "down" else "yellow"
    for value, sign, style in (
        (1.0, "0", ""),
        (wanted, "◎", "bold"),
        (decision.low, "├", styles[place(decision.low)]),
        (decision.high, "┤", styles[place(decision.high)]),
        (decision.ratio, "●", "bold"),
    ):
        signs[place(value)], styles[place(value)] = sign, style
    line = Text("  ")
    for sign, style in zip(signs, styles, strict=True):
        line.append(sign, style=style)
    return line.append("  0 no change, ◎ goal", style=FAINT)
