"""What the documents say is so: links, files, tests, commands, options, guards, kinds; and the tutorial really runs."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from agent.cli.diagram import mermaid
from agent.cli.loading import load
from agent.cli.main import parser
from agent.core.events import DERIVED, INPUTS
from agent.core.ladder import guard_classes
from agent.core.resolve import load_plan
from agent.core.values import Finding
from agent.errors import Exit
from agent.journal.views import VIEWS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REFERENCE = ROOT / "docs" / "reference"


def name_of(page: Path) -> str:
    """Name a page in test output."""
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    """Return a page without its blocks of code, in which brackets are no links."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors that a page's headings make."""
    heads = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return every command with its parser."""
    (action,) = [item for item in parser()._actions if isinstance(item, argparse._SubParsersAction)]
    return dict(action.choices)


def sections(page: Path, level: str) -> dict[str, str]:
    """Return what stands under each heading of that level."""
    parts = re.split(rf"^{level} (.+)$", page.read_text(), flags=re.MULTILINE)
    return {head: body.split("\n## ")[0] for head, body in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file or a heading of ours leads there."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)}: {target}"
        if anchor:
            assert anchor in anchors(file.read_text()), f"{name_of(page)}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    """A file of the repository that a page names is there."""
    text = page.read_text()
    for word in re.findall(r"`((?:agent|docs|playbooks|tests|scripts|benchmarks)/[\w./-]+)", text):
        assert (ROOT / word).exists(), f"{name_of(page)}: {word}"
    for word in re.findall(r"\bplaybooks/[\w-]+\.yaml", text):
        assert (ROOT / word).exists(), f"{name_of(page)}: {word}"


def test_tests_that_are_named_exist() -> None:
    """Each test that a promise rests on is there under that name."""
    file = Path()
    named = re.findall(r"`(tests/[\w/]+\.py)?::(\w+)`", (ROOT / "docs/explanation/promises.md").read_text())
    assert len(named) > 20
    for path, test in named:
        file = ROOT / path if path else file
        assert re.search(rf"^(?:async )?def {test}\(", file.read_text(), re.MULTILINE), f"{file}: {test}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_are_shown_are_understood(page: Path) -> None:
    """Each `agent …` line of a page's blocks parses: command, options, values."""
    known = commands()
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            words = line.removeprefix("$ ").split(" #")[0].rstrip(" &").split(">")[0].split("|")[0]
            if not words.startswith("agent ") or words.split()[1] not in known:
                continue
            parser().parse_args(shlex.split(words)[1:])


def test_every_command_and_option_is_in_the_reference() -> None:
    """The reference has exactly the commands there are, and names every option of each."""
    found = {head.strip("`").split()[1]: body for head, body in sections(REFERENCE / "commands.md", "###").items()}
    assert set(found) == set(commands())
    for command, sub in commands().items():
        told = set(re.findall(r"(--[a-z-]+)", found[command])) - {"--lab"} - {"--plan"}
        have = {option for action in sub._actions for option in action.option_strings if option.startswith("--")}
        assert told <= have, f"{command}: docs/reference/commands.md names options that there are not"
        assert have - {"--help", "--lab"} <= told, f"{command}: docs/reference/commands.md leaves out options"


def test_exit_codes_are_in_the_reference() -> None:
    """Every exit code is told, in the reference and in the README."""
    for page in (REFERENCE / "commands.md", ROOT / "README.md"):
        told = {
            int(code)
            for row in re.findall(r"^\| ([\d, ]+) \|", page.read_text(), re.MULTILINE)
            for code in row.split(",")
        }
        assert told == {int(code) for code in Exit}, name_of(page)


def test_every_guard_and_option_is_in_the_reference() -> None:
    """The table has each guard with its options, and every class that its own code can give."""
    rows = {
        cells[1].strip("` "): cells
        for line in (REFERENCE / "guards.md").read_text().splitlines()
        if len(cells := re.split(r"(?<!\\)\|", line)) == 6 and cells[1].strip().startswith("`")
    }
    results = {"PASS", "WAIT", "UNKNOWN", "FAIL"}
    assert set(rows) - results == set(guard_classes())
    for name, guard in guard_classes().items():
        options = {
            str(field.serialization_alias or field.alias or key).strip("_"): field
            for key, field in guard.model_fields.items()
            if key != "guard"
        }
        told = dict(re.findall(r"`(\w+)`\s*(\([^)]*\))?", rows[name][4]))
        assert set(options) <= set(told), f"{name}: docs/reference/guards.md"
        for option, field in options.items():
            if field.is_required():
                assert told[option] == "(needed)", f"{name}.{option}"
            elif isinstance(default := field.default, (int, float)) and not isinstance(default, bool):
                assert told[option].strip("()") in default_texts(default), f"{name}.{option}: {told[option]}"
        given = set(re.findall(r"Finding\.([A-Z_]+)", inspect.getsource(guard)))
        assert given <= set(re.findall(r"[A-Z_]{4,}", rows[name][3])), f"{name}: docs/reference/guards.md"


def default_texts(value: float) -> set[str]:
    """Return the ways in which a page may write a number: plain, seconds, percent."""
    return {f"{value:g}", f"{value:.0f}", f"{value:g}s", f"{value * 100:g}%"}


def test_every_class_is_explained() -> None:
    """The list of classes is closed; each stands in the table."""
    rows = re.findall(r"^\| ([A-Z_]+) \|", (REFERENCE / "guards.md").read_text(), re.MULTILINE)
    assert rows == [finding.value for finding in Finding]


def test_every_kind_and_field_is_in_the_reference() -> None:
    """The page has each kind of entry with all its fields, told apart as inputs and derived."""
    found = sections(REFERENCE / "journal.md", "###")
    heads: dict[str, type[BaseModel]] = {f"`{kind.model_fields['kind'].default}` (input)": kind for kind in INPUTS}
    heads.update((f"`{kind.model_fields['kind'].default}` (derived)", kind) for kind in DERIVED)
    assert set(found) == set(heads)
    for head, kind in heads.items():
        (line,) = re.findall(r"^- fields: (.+)$", found[head], re.MULTILINE)
        assert re.findall(r"`(\w+)`", line) == list(kind.model_fields), f"{head}: docs/reference/journal.md"


def test_every_view_is_in_the_reference() -> None:
    """The views of the journal are the ones that are told."""
    body = sections(REFERENCE / "journal.md", "##")["Views"]
    assert set(re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE)) == set(VIEWS)


def test_decisions_are_listed() -> None:
    """The index has every record."""
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    assert all(f"({path.name})" in index for path in folder.glob("[0-9]*.md"))


def test_the_diagram_is_the_table_that_runs() -> None:
    """The picture in the README is what `agent diagram` draws today."""
    text = (ROOT / "README.md").read_text()
    playbook, picture = re.findall(r"<!-- diagram (\S+) -->\n```mermaid\n(.*?)\n```", text, re.DOTALL)[0]
    assert picture == mermaid(load(ROOT / playbook)[1])


def test_the_playbook_of_the_readme_can_be_used() -> None:
    """The small playbook is a whole one."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert load_plan(text.encode(), "README.md", lambda name: b"").states
    assert len(text.splitlines()) <= 15


# ---------------------------------------------------------------- the tutorial


def tutorial() -> list[tuple[str, int, list[str]]]:
    """Return the tutorial's commands, each with its exit code and words of its output."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    steps: list[tuple[str, int, list[str]]] = []
    for note, block in re.findall(r"(?:<!-- (.+?) -->\n)?```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        code, _, words = note.removeprefix("exit ").partition(":")
        lines = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
        expected = [word.strip() for word in words.split(",") if word.strip()]
        steps += [(line, -1, list[str]()) for line in lines[:-1]]
        steps += [(line, int(code or 0), expected) for line in lines[-1:]]
    return steps


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """Make a folder that looks like the checkout to the tutorial's commands; end labs that are left."""
    from agent.lab import stop

    (tmp_path / "playbooks").symlink_to(ROOT / "playbooks")
    yield tmp_path
    for lab in tmp_path.glob("runs/*/lab"):
        stop(lab)


@pytest.mark.real
@pytest.mark.timeout(560)  # two campaigns as a reader sees them: minutes, and more where others use the machine
def test_the_tutorial_runs(checkout: Path) -> None:
    """Every command of the tutorial, one after another in one shell: exit codes, and what it should say."""
    steps = tutorial()
    assert len(steps) > 8
    script = "\n".join(f'{command}\necho "@@{place} $?"' for place, (command, _, _) in enumerate(steps))
    env = {key: value for key, value in os.environ.items() if not key.startswith("AGENT_")}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "XDG_STATE_HOME": str(checkout / "state")}
    done = subprocess.run(
        ["bash", "-c", script], cwd=checkout, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, timeout=500, check=False,
    )  # fmt: skip
    rest = done.stdout
    for place, (command, code, words) in enumerate(steps):
        said, mark, rest = rest.partition(f"@@{place} ")
        assert mark, f"{command}: the shell ended\n{said[-3000:]}"
        status, _, rest = rest.partition("\n")
        assert code in (-1, int(status)), f"{command}: exit {status}, wanted {code}\n{said[-3000:]}"
        for word in words:
            assert word in said, f"{command}: {word!r} is missing\n{said[-3000:]}"
