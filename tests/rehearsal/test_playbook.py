"""The playbook that is read first: it spells out the standard ladder, and what it brings along is sound."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from agent.cli.check import read_playbook, reader
from agent.core import ladder
from agent.core.plan import Plan
from agent.core.resolve import load_plan

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
EAGLE3 = PLAYBOOKS / "eagle3-tune.yaml"


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Give the plan of the playbook."""
    return load_plan(read_playbook(EAGLE3), str(EAGLE3), reader(PLAYBOOKS))


def test_its_states_are_the_standard_ladder_and_a_soak(plan: Plan) -> None:
    """Whoever reads them reads what a playbook without any states would do."""
    soak = next(state for state in plan.states if state.name == "soak")
    assert soak.do == ("script", "watch", "inspect")
    assert plan.states == ladder.insert(ladder.standard(plan.server, plan.search), soak, "health-wait")


def test_they_are_spelled_out_in_full() -> None:
    """Every key of every state stands in the file."""
    text = EAGLE3.read_text()
    for name in (*ladder.NAMES, "soak"):
        body = text.split(f"\n  {name}:\n")[1].split("\n\n")[0]
        assert all(f"    {key}:" in body for key in ("do", "guards", "on", "timeout")), name


@pytest.mark.parametrize("name", ["benchmark_eagle3.py", "soak.py"])
def test_its_scripts_need_nothing(name: str) -> None:
    """They run on a host with an old Python and nothing installed."""
    tree = ast.parse((PLAYBOOKS / name).read_text(), feature_version=(3, 8))
    plain = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    roots = {alias.name.split(".")[0] for node in plain for alias in node.names}
    roots |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert roots <= set(sys.stdlib_module_names)
