"""No module of the agent imports itself over others, also inside a function; imports for types alone are free."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def name_of(path: Path) -> str:
    """Return a file's module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in (ROOT / "agent").rglob("*.py")}


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from statements(child)


def imported(module: str) -> set[str]:
    """Return the modules of the agent that a module imports."""
    path, found = MODULES[module], set[str]()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for one in statements(ast.parse(path.read_text())):
        if isinstance(one, ast.Import):
            found |= {alias.name for alias in one.names}
            continue
        above = package.split(".")[: len(package.split(".")) - one.level + 1] if one.level else []
        base = ".".join([*above, *([one.module] if one.module else [])])
        found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in one.names}
    return found & MODULES.keys() - {module}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return one circle of a graph; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_circle_of_imports() -> None:
    """What two modules need stands in a third, below both."""
    assert circle({module: imported(module) for module in MODULES}) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
