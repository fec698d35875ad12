"""``agent schema``: the JSON Schema of playbooks, for editors. Made from the models, never by hand."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("schema", help="print the JSON Schema of playbooks")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.core.schema import playbook_schema

    print(json.dumps(playbook_schema(), indent=2, ensure_ascii=False))
    return 0
