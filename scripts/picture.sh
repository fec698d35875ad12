#!/bin/bash
# A picture of a run as SVG, on standard output: what its live view shows, made from the journal alone.
#   scripts/picture.sh RUN [SEQ] > docs/images/run.svg        SEQ: as it stood after that entry; else at its end
# Its width in characters is 96, or $WIDTH.
set -eu
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
exec .venv/bin/python - "$@" <<'PYTHON'
import io
import os
import re
import sys
from pathlib import Path

from rich.terminal_theme import MONOKAI

from agent.cli.folder import find
from agent.cli.live import make_console
from agent.cli.picture import Seen, render
from agent.core.campaign import Campaign, evolve
from agent.journal.store import Journal

run = find(Path("runs"), sys.argv[1])
last = int(sys.argv[2]) if len(sys.argv) > 2 else None
width = int(os.environ.get("WIDTH", "96"))
campaign, seen = Campaign(), Seen()
with Journal.open_reader(run.journal) as journal:
    for entry in journal.entries():
        if last is not None and entry.seq > last:
            break
        whole = journal.hydrate(entry)
        evolve(campaign, whole)
        seen.take(whole, campaign)
lines = list(seen.happened)[-6:] if campaign.concluded is None else []
seen.happened.clear()
seen.happened.extend(lines)
console = make_console(io.StringIO(), record=True, width=width, force_terminal=True, color_system="truecolor")
console.print(render(campaign, width, None, seen=seen))
svg = console.export_svg(title=f"agent run {campaign.plan.name}.yaml", theme=MONOKAI, unique_id="run")
svg = re.sub(r"\s*<!-- Generated with.*?-->", "", svg)
# Fonts come from the reader's machine, not from a network.
svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
svg = svg.replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace")
print(svg)
PYTHON
