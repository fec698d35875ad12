"""The part of the HTML report that a debug campaign has: what was believed, predicted, tested and found, as a tree."""

from __future__ import annotations

import html
from typing import Any

from agent.cli.text import safe
from agent.core.debugreport import edit_lines

STYLE = """
.tree { border-left:2px solid var(--line); margin:14px 0 0 8px; padding-left:22px }
.node { position:relative; padding:2px 0 14px } .node::before { content:""; position:absolute; left:-29px; top:9px;
  width:12px; height:12px; border-radius:50%; background:var(--line); border:2px solid var(--paper) }
.node.supported::before { background:var(--good) } .node.refuted::before { background:var(--bad) }
.node.undecided::before { background:var(--warn) } .node h3 { margin:0 0 4px; font-size:15px }
.node dl { display:grid; grid-template-columns:88px 1fr; gap:2px 12px; margin:0 } .node dt { color:var(--dim) }
.node dd { margin:0; overflow-wrap:anywhere } .chip { font-size:12px; font-weight:700; margin-left:8px }
"""
_TONE = {"supported": "good", "refuted": "bad", "undecided": "warn"}


def text(value: Any) -> str:
    """Return a text of any origin for HTML."""
    return html.escape(safe(str(value)))


def section(report: dict[str, Any]) -> list[str]:
    """Return the tree and the changes on the host; nothing for a campaign that optimizes."""
    found = report.get("inquiry")
    if not found:
        return []
    out = ["<h2>Believed, predicted, tested, found</h2>"]
    if found["healthy"]:
        out.append(f"<p>A healthy server: <b>{text(found['healthy'])}</b>. This one: {text(found['baseline'])}.</p>")
    if found["observed"]:
        items = "".join(f"<li>{text(item)}</li>" for item in found["observed"])
        out.append(f'<p class="dim">Also seen on it:</p><ul>{items}</ul>')
    out.append('<div class="tree">')
    out += [_node(row) for row in found["hypotheses"]]
    if found["points"]:
        out.append(f"<p>The fault is: <b>{text(found['bad'])}</b></p>")
        out += [_point(row) for row in found["points"]]
    out.append("</div><h2>Changed on the host</h2>")
    rows = edit_lines(report["edits"])
    body = text("\n".join(rows)) if rows else ""
    out.append(f"<pre>{body}</pre>" if rows else '<p class="dim">Nothing.</p>')
    return [*out, *_gathered(report["gathered"])]


def _gathered(items: list[dict[str, Any]]) -> list[str]:
    """Return what was gathered of each launch, folded."""
    out = ["<h2>Evidence gathered</h2>"] if items else []
    for item in items:
        parts = "".join(
            f"<details><summary>{text(name)} <span class=dim>{len(body.splitlines())} lines</span></summary>"
            f"<pre>{text(body)}</pre></details>"
            for name, body in item["parts"].items()
        )
        head = f'<span class="dim mono">{item["seq"]}</span> {text(item["request"])}'
        out.append(f"<details><summary>{head}</summary><div>{parts}</div></details>")
    return out


def _node(row: dict[str, Any]) -> str:
    tone = _TONE.get(row["verdict"], "dim")
    launch = f' <span class="dim">{text(row["launch"])}</span>' if row["launch"] not in ("", "-") else ""
    facts = [("believed", [row["because"]]), ("change", row["change"]), ("predicted", [row["predicts"]])]
    found = "since" if row["verdict"] == "not tested" else "found"
    facts += [(found, [row["saw"]] if row["saw"] else []), ("host", [row["host"]] if row["host"] else [])]
    body = "".join(
        f"<dt>{name}</dt><dd>{'<br>'.join(text(v) for v in values)}</dd>" for name, values in facts if values
    )
    return (
        f'<div class="node {text(row["verdict"]).replace(" ", "-")}"><h3>{text(row["name"])}{launch}'
        f'<span class="chip {tone}">{text(row["verdict"].upper())}</span></h3><dl>{body}</dl></div>'
    )


def _point(row: dict[str, Any]) -> str:
    there = "refuted" if row["saw"].startswith("the fault is there") else "supported"
    there = "undecided" if row["saw"].startswith("not testable") else there
    launch = f'<span class="dim">{text(row["launch"])}</span>'
    return f'<div class="node {there}"><h3>{text(row["name"])} {launch}</h3>{text(row["saw"])}</div>'
