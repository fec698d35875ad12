"""The playbook language: from bytes to a plan, or to problems with places."""

from __future__ import annotations

from agent.core.plan import Plan
from agent.core.resolve import load_plan
from agent.errors import PlaybookError, Problem

HEAD = """\
playbook: x
hosts: {box: demo}
server:
  kind: llamacpp
  port: 18080
  command: [agent-llama-server]
"""
"""The least that is a playbook; six lines."""


def reader(name: str) -> bytes:
    """Every file exists and holds its own name."""
    return name.encode()


def plan(text: str | bytes) -> Plan:
    """Load a playbook that is right."""
    raw = text if isinstance(text, bytes) else text.encode()
    return load_plan(raw, "p.yaml", reader)


def problems(text: str | bytes) -> tuple[Problem, ...]:
    """Load a playbook and return what is wrong with it; () when nothing is."""
    try:
        plan(text)
    except PlaybookError as error:
        return error.problems or (Problem("E_WITHOUT_PLACE", str(error)),)
    return ()
