"""``agent diagram PLAYBOOK``: the state machine as mermaid, drawn from the very table that runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.core.plan import Plan


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("diagram", help="draw the state machine of a playbook (mermaid)")
    command.add_argument("playbook", type=Path)
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.loading import load

    _, plan, _ = load(args.playbook)
    print(mermaid(plan))
    return 0


def mermaid(plan: Plan) -> str:
    """Return the diagram. Retries and the operator's stop are edges of every state and are left out."""
    from agent.core.machine import Machine

    machine = Machine(plan)

    def name(state: str) -> str:
        return state.replace("-", "_")

    out = ["stateDiagram-v2", f"    [*] --> {name(machine.first)}"]
    joined: dict[tuple[str, str], list[str]] = {}
    for source, outcome, target in machine.edges:
        if outcome not in ("retry", "resumed") and (outcome, target) != ("stop", "finally"):
            joined.setdefault((source, target), []).append(outcome)
    out += [f"    {name(source)} --> {name(target)}: {', '.join(words)}" for (source, target), words in joined.items()]
    ends = {target for (_, target) in joined if target in ("done", "failed")}
    out += [f"    {end} --> [*]" for end in sorted(ends)]
    return "\n".join(out)
