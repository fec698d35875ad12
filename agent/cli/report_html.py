"""The report of a run as one HTML file: no script, nothing loaded from elsewhere, every text escaped.

Text from hosts is made harmless for a terminal first (control and direction marks written out), then for HTML.
"""

from __future__ import annotations

import html
import math
from itertools import groupby
from typing import Any

from agent.cli import report_debug
from agent.cli.front import front
from agent.cli.profile_view import lines, picture
from agent.cli.report_lines import controller_line, order_line, setting, signal_lines, start_line
from agent.cli.show import interval
from agent.cli.text import safe
from agent.core.debugreport import edit_lines

DIFFERS = 16
"""The finding that a replay differs: either the record, or this version of the program, is another one."""

LIST_CHARS_MAX = 3000
"""A longer list is folded: it is there for whoever looks for something in it."""

_STYLE = """
:root { --ink:#1c2330; --dim:#667085; --line:#dfe3ea; --paper:#fff; --wash:#f6f7f9; --good:#0a7d45; --bad:#c02d26;
  --warn:#a15c00; --blue:#2257c5; }
@media (prefers-color-scheme: dark) { :root { --ink:#e6e9ef; --dim:#98a2b3; --line:#343b48; --paper:#14181f;
  --wash:#1c222c; --good:#4cc38a; --bad:#ff7b72; --warn:#e3a341; --blue:#79a8ff; } }
* { box-sizing:border-box } html { background:var(--paper); color:var(--ink); }
body { font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif; max-width:1060px;
  margin:0 auto; padding:28px 24px 64px; }
h1 { font-size:22px; margin:0 0 2px; overflow-wrap:anywhere } h2 { font-size:16px; margin:36px 0 10px; }
.dim { color:var(--dim) } .mono,code,pre { font-family:ui-monospace,"DejaVu Sans Mono",Menlo,monospace; font-size:13px }
.rehearsal { background:#a15c00; color:#fff; padding:8px 14px; border-radius:6px; margin-bottom:20px;
  font-weight:600 }
.card { border:1px solid var(--line); border-radius:8px; padding:16px 18px; background:var(--wash); margin-top:18px }
.word { font-size:26px; font-weight:700; letter-spacing:.02em } .good { color:var(--good) } .bad { color:var(--bad) }
.warn { color:var(--warn) } table { border-collapse:collapse; width:100% }
.scroll { overflow-x:auto } th { text-align:left; font-weight:600; color:var(--dim); font-size:13px }
th,td { padding:5px 10px 5px 0; border-bottom:1px solid var(--line); vertical-align:top; overflow-wrap:break-word }
td > .good, td > .bad, td > .warn { white-space:nowrap }
td.num,th.num { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap }
.num + :not(.num) { padding-left:16px }
details { border-bottom:1px solid var(--line) } summary { cursor:pointer; padding:5px 0; overflow-wrap:anywhere }
details > div { padding:2px 0 12px 20px } ul { margin:0; padding-left:20px } li { margin:3px 0; overflow-wrap:anywhere }
.tag { display:inline-block; min-width:70px; font-size:12px; font-weight:700 }
pre { background:var(--wash); border:1px solid var(--line); border-radius:6px; padding:12px; overflow-x:auto }
svg text { fill:var(--dim); font:12px system-ui,"DejaVu Sans",sans-serif }
@media print { details > div { display:block } }
"""
_TONE = {
    "PASS": "good", "validated": "good", "goal met": "good", "improved": "good", "found": "good",
    "FAIL": "bad", "refuted": "bad", "invalid": "bad", "failed": "bad", "not found": "bad",
}  # fmt: skip


def text(value: Any) -> str:
    """Return a text of any origin for HTML."""
    return html.escape(safe(str(value)))


def page(report: dict[str, Any]) -> str:
    """Return the whole file."""
    rehearsal = report.get("rehearsal", "")
    mark = f"REHEARSAL ({rehearsal}): all numbers are simulated" if rehearsal else ""
    first = f"<!doctype html>{f'<!-- {_comment(mark)} -->' if mark else ''}"
    title = f"{'REHEARSAL: ' if mark else ''}{report['run']}"
    body = [f'<div class="rehearsal">{text(mark)}</div>'] if mark else []
    body += _head(report)
    if "steps" in report:
        body += [
            *_decision(report),
            *report_debug.section(report),
            *_trials(report),
            *_profiles(report),
            *_assumptions(report),
            *_steps(report),
            *_lists(report),
        ]
    body += _record(report)
    return (
        f'{first}\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<style>{_STYLE}{report_debug.STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _comment(value: str) -> str:
    """Return text that cannot end a comment."""
    return text(value).replace("--", "- -")


def _head(report: dict[str, Any]) -> list[str]:
    if report["condition"] == "empty":
        return [f"<h1>{text(report['run'])}</h1>", "<p>Nothing was recorded.</p>"]
    hosts = ", ".join(f"{name} ({address})" for name, address in report["hosts"].items())
    counts = f"{report['entries']} entries · {report['campaign_s']:.0f} s · {report['resumes']} resumes"
    facts = f"{report['playbook']} · {hosts} · {counts}"
    ok, findings = report["record"]["ok"], {item["finding"] for item in report["record"]["findings"]}
    state = "the record holds" if ok else f"THE RECORD DOES NOT HOLD: finding {report['record']['finding']}"
    if findings == {DIFFERS}:
        state = "the chain holds, but what this version derives from it differs: finding 16"
    return [
        f"<h1>{text(report['run'])}</h1>",
        f'<div class="dim">{text(facts)}</div>',
        f'<div class="{"good" if ok else "bad"}">{text(state)}</div>',
    ]


def _tone(word: str) -> str:
    return _TONE.get(word, "warn")


def _decision(report: dict[str, Any]) -> list[str]:
    decision, goal = report["decision"], report["goal"]
    wanted = f"goal: {goal['metric']} {'+' if goal['direction'] == 'up' else '-'}{goal['improve']:.1%}"
    if decision is None:
        word = f'<div class="word warn">{text(report["condition"])}</div>'
        why = f"<div>{text(report['because'])}</div>" if report["because"] else ""
        return [f'<div class="card">{word}{why}<div class="dim">{text(wanted)}; no decision yet</div></div>']
    out = [f'<div class="card"><div class="word {_tone(decision["word"])}">{text(decision["word"].upper())}</div>']
    if decision["ratio"] is not None:
        what = f"{decision['winner']} against {decision['baseline']}: {decision['metric']} {interval(decision)}"
        out += [f"<div>{text(what)}</div>", _scale(decision, 1 + goal["improve"])]
    out += [f"<div>{text(line)}</div>" for line in front(decision)]
    said = decision["because"] if report["aim"] == "debug" else f"{wanted}; {decision['because']}"
    out.append(f"<div>{text(said)}</div>")
    out.append(f'<div class="dim">entry {report["decision_entry"]}; at the end: {text(report["finally"])}</div></div>')
    return out


def _scale(decision: dict[str, Any], goal: float) -> str:
    """Draw the interval on a line with 'no change' and the goal on it."""
    low, ratio, high = decision["low"], decision["ratio"], decision["high"]
    points = [1.0, goal, low, ratio, high]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in points):
        return ""
    least, most = min(points), max(points)
    room = (most - least) * 0.08 or 0.01
    left, width = least - room, most - least + 2 * room

    def x(value: float) -> float:
        return float(20 + 660 * (value - left) / width)

    marks = [(1.0, "no change")] + ([(goal, "goal")] if abs(goal - 1) > 1e-9 else [])
    ticks = "".join(
        f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="20" y2="52" stroke="var(--dim)" stroke-dasharray="3 3"/>'
        f'<text x="{x(at):.1f}" y="{(66, 16)[number]}" text-anchor="middle">{name} {(at - 1) * 100:+.1f} %</text>'
        for number, (at, name) in enumerate(marks)
    )
    size = f'x="{x(low):.1f}" y="32" width="{max(2.0, x(high) - x(low)):.1f}" height="8" rx="4"'
    bar = f'<rect {size} fill="var(--blue)" opacity=".45"/>'
    dot = f'<circle cx="{x(ratio):.1f}" cy="36" r="6" fill="var(--blue)"/>'
    axis = '<line x1="20" x2="680" y1="36" y2="36" stroke="var(--line)"/>'
    return f'<svg viewBox="0 0 700 72" width="100%" role="img" aria-label="interval">{axis}{ticks}{bar}{dot}</svg>'


def _table(heads: list[tuple[str, bool]], rows: list[list[str]]) -> str:
    """Return a table of cells that are escaped already; the flag says which columns hold numbers."""

    def cells(tag: str, values: list[str]) -> str:
        kinds = [' class="num"' if number else "" for _, number in heads]
        return "".join(f"<{tag}{kind}>{value}</{tag}>" for kind, value in zip(kinds, values, strict=True))

    head = cells("th", [text(name) for name, _ in heads])
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _number(value: float | None, digits: int = 4) -> str:
    """Write a figure with all its digits, also where the last ones are zeros: columns are read downwards."""
    return "" if value is None else f"{value:#.{digits}g}".rstrip(".")


def _bar(value: float | None, most: float) -> str:
    """Draw a value as a bar against the greatest of its column."""
    if value is None or not most > 0 or not math.isfinite(value):
        return ""
    width = f'width="{max(1.0, 90 * value / most):.1f}" height="9" rx="2"'
    return f'<svg width="92" height="10" aria-hidden="true"><rect {width} fill="var(--blue)" opacity=".55"/></svg>'


def _trials(report: dict[str, Any]) -> list[str]:
    metric = report["trials"][0]["metric"] if report["trials"] else "value"
    heads = [
        ("trial", False),
        ("launch", False),
        (metric, True),
        ("", False),
        ("± within launch", True),
        ("repeats", True),
        ("verdict", False),
        ("what", False),
    ]
    most = max((row["value"] for row in report["trials"] if row["valid"] and row["value"]), default=0.0)
    rows = []
    for row in report["trials"]:
        verdict = "valid" if row["valid"] else row["finding"] or ("left running" if row["role"] == "final" else "–")
        tone = "good" if row["valid"] else "bad" if row["finding"] else "dim"
        if row["verdict"]:  # a hypothesis: whether its numbers count is not what one wants to know
            verdict, tone = row["verdict"], {"supported": "good", "refuted": "bad"}.get(row["verdict"], "dim")
        rows.append(
            [
                text(row["trial"]),
                text(row["launch"]),
                _number(row["value"]),
                _bar(row["value"], most) if row["valid"] else "",
                _number(row["deviation"], 2),
                str(row["repeats"] or ""),
                f'<span class="{tone}">{text(verdict)}</span>',
                text(row["because"] if row["verdict"] else row["label"]),
            ]
        )
    return ["<h2>Trials</h2>", _table(heads, rows)]


def _profiles(report: dict[str, Any]) -> list[str]:
    """Where the time of each profiled trial went, as bars, with the whole of each below."""
    rows = report["profiles"]
    if not rows:
        return []
    out = ["<h2>Where the time went</h2>", picture(rows)]
    for row in rows:
        shown = "\n".join(lines(row))
        label = "" if row["label"] == row["trial"] else f" {text(row['label'])}"
        out.append(f"<details><summary>{text(row['trial'])}{label}</summary><pre>{text(shown)}</pre></details>")
    return out


def _assumptions(report: dict[str, Any]) -> list[str]:
    out = ["<h2>Assumptions</h2>"]
    if not report["assumptions"]:
        return [*out, '<p class="dim">The playbook states none.</p>']
    rows = []
    for item in report["assumptions"]:
        verdict = item["verdict"]
        wanted = setting(item["guard"])
        saw = f"{text(verdict['saw'])}<br>{_read(verdict)}" if verdict else "–"
        fate = f'<span class="{_tone(item["fate"])}">{text(item["fate"])}</span>'
        rows.append([text(item["name"]), fate, text(wanted), saw])
    return [*out, _table([("assumption", False), ("fate", False), ("checked by", False), ("observation", False)], rows)]


def _read(verdict: dict[str, Any]) -> str:
    read = [
        f"{text(item['do'])} {text(item['request'])} (entry {item['entry'] or 'not answered'})"
        for item in verdict["read"]
    ]
    return f'<span class="dim mono">entry {verdict["entry"]} read: {"; ".join(read) or "nothing"}</span>'


def _steps(report: dict[str, Any]) -> list[str]:
    """Return every move, those of a trial on a launch together; where a guard did not pass it stands open."""
    out = ["<h2>Every step, with its guards and what they read</h2>"]
    for (trial, launch), steps in groupby(report["steps"], key=lambda step: (step["trial"], step["launch"])):
        inner, bad, guards = [], False, 0
        for step in steps:
            shown, wrong = _step(step)
            inner.append(shown)
            bad, guards = bad or wrong, guards + len(step["verdicts"])
        where = f"{trial or '-'} on {launch or '-'}"
        what = f"{len(inner)} steps, {guards} verdicts" + ("" if bad else ", every guard passed")
        out.append(
            f'<details{" open" if bad else ""}><summary><b>{text(where)}</b> <span class="dim">{what}</span></summary>'
            f"<div>{''.join(inner)}</div></details>"
        )
    return out


def _step(step: dict[str, Any]) -> tuple[str, bool]:
    """Return a move with its verdicts and signals, and whether a guard was in its way."""
    head = f"{step['source'] or 'start'} ─{step['outcome']}→ {step['state']}"
    inner = [_verdict(verdict) for verdict in step["verdicts"]]
    inner += [f'<li class="warn">{text(signal_lines(signal)[0])}</li>' for signal in step["signals"]]
    bad = any(verdict["result"] != "PASS" and verdict["gates"] for verdict in step["verdicts"])
    attempt = f' <span class="dim">attempt {step["attempt"]}</span>' if step["attempt"] > 1 else ""
    return (
        f'<details{" open" if bad else ""}><summary><span class="dim mono">{step["entry"]}</span> '
        f"<b>{text(head)}</b>{attempt} {text(step['because'])}</summary>"
        f"<div><ul>{''.join(inner) or '<li class=dim>nothing to guard</li>'}</ul></div></details>"
    ), bad


def _verdict(verdict: dict[str, Any]) -> str:
    wanted = f" (wanted: {text(verdict['wanted'])})" if verdict["wanted"] else ""
    found = f" {text(verdict['finding'])}" if verdict["finding"] and verdict["gates"] else ""
    tone, word = (_tone(verdict["result"]), verdict["result"]) if verdict["gates"] else ("dim", "seen")
    return (
        f'<li><span class="tag {tone}">{text(word)}{found}</span> '
        f"<b>{text(verdict['guard'])}</b>: {text(verdict['saw'])}{wanted}<br>{_read(verdict)}</li>"
    )


def _lists(report: dict[str, Any]) -> list[str]:
    allowed = [f"{item['what']} (by {item['by'] or 'unknown'}; entry {item['seq']})" for item in report["overrides"]]
    changed = [] if report["inquiry"] else [line.strip() for line in edit_lines(report["edits"])]
    lists = [
        ("Processes signalled", ["\n".join(signal_lines(item)) for item in report["signals"]], "None."),
        ("What was started on hosts", [start_line(item) for item in report["starts"]], "Nothing."),
        ("Files changed on hosts, and put back", changed, "None."),
        ("What was allowed, and by whom", allowed, "Nothing beyond the defaults."),
        ("Orders and notes", [order_line(item) for item in report["orders"]], "None."),
        ("Who worked on it", [controller_line(item) for item in report["controllers"]], "Nobody."),
    ]
    out = []
    for title, items, none in lists:
        if report["inquiry"] and items is changed:
            continue  # they stand with the hypotheses that asked for them
        out.append(f"<h2>{title}</h2>")
        if not items:
            out.append(f'<p class="dim">{none}</p>')
            continue
        rows = (f"<li>{'<br>'.join(text(line) for line in item.splitlines())}</li>" for item in items)
        whole = f"<ul>{''.join(rows)}</ul>"
        # What nobody reads as a whole does not stand between what everybody reads.
        long = sum(map(len, items)) > LIST_CHARS_MAX
        out.append(f"<details><summary>{len(items)} entries</summary><div>{whole}</div></details>" if long else whole)
    return [*out, "<h2>The playbook as it was given</h2>", f"<pre>{text(report['playbook_text'])}</pre>"]


def _record(report: dict[str, Any]) -> list[str]:
    record = report["record"]
    head = record["head"]
    lines = "".join(f"<li>{text(line.strip())}</li>" for line in record["said"])
    shown = f"head: {head['campaign']} {head['seq']} {head['hash']}"
    return [
        "<h2>The record</h2>",
        f'<ul class="{"good" if record["ok"] else "bad"}">{lines}</ul>',
        f'<p class="mono">{text(shown)}</p>',
    ]
