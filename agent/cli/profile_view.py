"""A profile for people: bars of where the time went, in a terminal and in a report, and two of them side by side."""

from __future__ import annotations

import html
from typing import Any

from agent.cli.text import one_line, safe

WIDTH = 40
BLOCKS = " ▏▎▍▌▋▊▉"
KERNELS_SHOWN = 8
ROWS = (("phases", "phase"), ("kernels", "work on the device"))
COLOURS = ("#2257c5", "#0a7d45", "#a15c00", "#8b3fb8", "#c02d26", "#0e8a9c", "#7a6a1f", "#5f6b7d", "#b8478a", "#3d7a2b")
IDLE = "#b9c0cb"
WAITING = ("idle", "host_wait", "launch_gap", "gap_unknown", "interpreter")


def bar(share: float, width: int = WIDTH) -> str:
    """Return a bar of ``share`` of the width, in eighths of a character."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    full, part = divmod(eighths, 8)
    return "█" * full + (BLOCKS[part] if part else "")


def tables(profile: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """Return what there is to show: phases and classes of kernels, or what else was sampled."""
    found = [(title, profile[name]) for name, title in ROWS if profile.get(name)]
    if not found and profile["shares"]:
        found = [("sampled" if profile["method"] == "perf" else "phase", profile["shares"])]
    return [
        (title, {name: share for name, share in _sorted(table) if share > 0 and not name.startswith("object:")})
        for title, table in found
    ]


def _sorted(table: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(table.items(), key=lambda item: (-item[1], item[0]))


def lines(profile: dict[str, Any]) -> list[str]:
    """Return the whole breakdown for a terminal."""
    out = [about(profile)] if about(profile) else []
    if profile["why"]:
        word = "phases are UNKNOWN" if profile["kernels"] else "UNKNOWN" if not profile["shares"] else "note"
        out.append(f"{word}: {one_line(profile['why'], 300)}")
    for title, table in tables(profile):
        out += ["", f"{title:<18} {'share':>7}"]
        out += [f"  {safe(name):<16} {share:>7.1%}  {bar(share)}" for name, share in table.items()]
    out += _ranks(profile["ranks"])
    if profile["top"]:
        out += ["", f"{'share':>7} {'calls':>8}  {'kind':<13} kernel (all ranks; what runs at once counts twice here)"]
        out += [
            f"{row['share']:>7.1%} {row['calls']:>8}  {safe(row['kind']):<13} {one_line(row['name'], 90)}"
            for row in profile["top"][:KERNELS_SHOWN]
        ]
    kept = [row for row in profile["traces"] if row["kept"]]
    if profile["traces"]:
        size = sum(row["bytes"] for row in kept) / 2**20
        folder = kept[0]["path"].rpartition("/")[0] if kept else ""
        out += ["", f"traces: {len(kept)} of {len(profile['traces'])} kept on the host, {size:.1f} MiB, in {folder}"]
    return out


def about(profile: dict[str, Any]) -> str:
    """Return in one line what was looked at."""
    parts = []
    if profile["ranks"]:
        window = max(row["window_us"] for row in profile["ranks"]) / 1000
        wanted = profile["ranks_wanted"] or len(profile["ranks"])
        parts.append(f"{len(profile['ranks'])} of {wanted} rank{'s' if wanted != 1 else ''}, {window:.1f} ms")
    if profile["busy"] is not None:
        parts.append(f"{'CPU' if profile['device'] == 'cpu' else 'GPU'} busy {profile['busy']:.1%}")
    if profile["stacks"]:
        parts.append("recorded with stacks, which slow the host down: waiting for it is overstated")
    if profile["samples"]:
        parts.append(f"{profile['samples']} samples of the CPU")
    if profile["simulated"]:
        parts.append("SIMULATED")
    return "; ".join(parts)


def _ranks(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line a rank, where there are several; who waits least in an all-reduce is waited for."""
    if len(rows) < 2:
        return []
    names = [name for name, _ in _sorted(rows[0]["phases"])][:4]
    heads = "".join(f"{safe(name)[:14]:>15}" for name in names)
    out = ["", f"{'rank':<12} {'busy':>7} {'all_reduce':>11} {'host_wait':>10}{heads}"]
    for row in rows:
        phases = "".join(f"{row['phases'].get(name, 0.0):>15.1%}" for name in names)
        reduce, wait = (row["classes"].get(name, 0.0) for name in ("all_reduce", "host_wait"))
        out.append(f"{safe(row['rank']):<12} {row['busy']:>7.1%} {reduce:>11.1%} {wait:>10.1%}{phases}")
    spread = [row["classes"].get("all_reduce", 0.0) for row in rows]
    if max(spread) - min(spread) > 0.05:
        last = min(rows, key=lambda row: row["classes"].get("all_reduce", 0.0))["rank"]
        out.append(f"  the others wait for {safe(last)} in their all-reduces: it is the last to come to them")
    return out


# ---------------------------------------------------------------- two of them


def changed(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """Return the two side by side, the largest change first."""
    out = []
    others = dict(tables(two))
    for title, old in tables(one):
        new = others.get(title)
        if new is None:
            continue
        rows = [(name, old.get(name, 0.0), new.get(name, 0.0)) for name in dict.fromkeys([*old, *new])]
        rows.sort(key=lambda row: (-abs(row[2] - row[1]), row[0]))
        out.append(f"{title:<18} {'A':>7} {'B':>7} {'B - A':>8}")
        out += [
            f"  {safe(name):<16} {a:>7.1%} {b:>7.1%} {(b - a) * 100:>+6.1f} pp  {_move(a, b)}" for name, a, b in rows
        ]
    return out


def _move(one: float, two: float) -> str:
    """Draw where it was (`|`) and where it went."""
    width = 30
    first, last = (round(share * width) for share in (one, two))
    cells = [" "] * (width + 1)
    for place in range(min(first, last), max(first, last)):
        cells[place] = "─"
    cells[first], cells[last] = "|", "●"
    return "".join(cells).rstrip()


# ---------------------------------------------------------------- a report


def picture(rows: list[dict[str, Any]]) -> str:
    """Draw the profiles of a run as stacked bars, one below the other; '' without any."""
    drawn: dict[str, list[tuple[str, dict[str, float]]]] = {}
    for row in rows:
        for title, table in tables(row):
            drawn.setdefault(title, []).append((row["trial"], table))
    out = []
    for title, series in drawn.items():
        names = list(dict.fromkeys(name for _, table in series for name, _ in _sorted(table)))
        names.sort(key=lambda name: (name in WAITING, -max(table.get(name, 0.0) for _, table in series), name))
        out.append(_stacked(title, series, names))
    return "".join(out)


def _stacked(title: str, series: list[tuple[str, dict[str, float]]], names: list[str]) -> str:
    colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    colour.update(dict.fromkeys(WAITING, IDLE))
    left, width, high = 170, 660, 30
    bars = []
    for line, (trial, table) in enumerate(series):
        at, y = float(left), 24 + line * high
        bars.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{_text(trial[:24])}</text>')
        for name in names:
            size = table.get(name, 0.0) * width
            if size <= 0:
                continue
            label = f"{name} {table[name]:.1%}"
            box = f'x="{at:.1f}" y="{y}" width="{max(size - 1, 0.3):.1f}" height="20"'
            bars.append(f'<rect {box} fill="{colour[name]}"><title>{_text(trial)}: {_text(label)}</title></rect>')
            if size > 7 * len(label):
                ink = "#1c2330" if name in WAITING else "#fff"
                bars.append(f'<text x="{at + 5:.1f}" y="{y + 14}" style="fill:{ink}">{_text(label)}</text>')
            at += size
    key = "".join(
        f'<span style="white-space:nowrap;margin-right:14px"><svg width="10" height="10"><rect width="10" height="10" '
        f'fill="{colour[name]}"/></svg> {_text(name)}</span>'
        for name in names
    )
    size = 28 + len(series) * high
    head = f'<text x="{left}" y="14">{_text(title)}, part of the time</text>'
    return (
        f'<svg viewBox="0 0 840 {size}" width="100%" role="img" aria-label="{_text(title)}">{head}{"".join(bars)}</svg>'
        f'<div class="dim">{key}</div>'
    )


def _text(value: str) -> str:
    return html.escape(safe(value))
