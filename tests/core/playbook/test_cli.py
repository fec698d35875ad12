"""`agent check` and `agent schema`, as a person or an editor meets them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli.check import read_playbook, reader
from agent.cli.main import main
from agent.core.ladder import LADDER, guard_classes
from agent.core.playbook import Part, Playbook
from agent.core.schema import playbook_schema
from agent.errors import AgentError, PlaybookError

from . import HEAD

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference" / "playbook.md"


@pytest.fixture
def playbook(tmp_path: Path) -> Path:
    """Write a playbook that is right."""
    path = tmp_path / "p.yaml"
    path.write_text(HEAD)
    path.chmod(0o644)
    return path


def test_ok_is_one_line(playbook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A playbook that is right: exit 0 and a summary."""
    assert main(["check", str(playbook)]) == 0
    assert capsys.readouterr().out == "ok: x, llamacpp on demo, 0 stages, 9 states, finally stop\n"


def test_problems_have_places(playbook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A playbook that is wrong: exit 2, everything that is wrong, nothing on standard output."""
    playbook.write_text(HEAD + "sede: 1\nbudget: {time: 5}\n")
    assert main(["check", str(playbook)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{playbook}:7:1: E_UNKNOWN_FIELD: sede: no such key\n    did you mean `seed`?\n" in shown.err
    place, remedy = f"{playbook}:8:16: E_DURATION: budget.time", "write 5s or 5ms, whichever is meant"
    assert f"{place}: a duration has a unit (found 5)\n    {remedy}\n" in shown.err
    last = "2 problems, and more may follow: how values fit together can be checked only when these are right"
    assert shown.err.endswith(f"{last}; nothing was contacted\n")


@pytest.mark.parametrize(
    ("text", "unchecked"),
    [
        ("a: [\n", "keys and values"),
        ("sede: 1\n", "how values fit together"),
        ("benchmark: {warmup: 0}\n", "the rules of the engine"),
        ("  flags: {swa-full: true, ctx-checkpoints: 1}\n# agent: allow X\n", "the rules of the engine"),
    ],
)
def test_what_is_not_looked_at_yet_is_said(
    text: str, unchecked: str, playbook: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step that finds something is the last one, and says which step comes next."""
    playbook.write_text(HEAD + text)
    assert main(["check", str(playbook), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["unchecked"] == unchecked


def test_json(playbook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs: one document either way."""
    assert main(["check", str(playbook), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    playbook.write_text(HEAD + "seed: x\n")
    assert main(["check", str(playbook), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert [(one["code"], one["line"], one["field"]) for one in document["problems"]] == [("E_TYPE", 7, "seed")]


def test_a_playbook_that_others_can_change_is_refused(playbook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B31: who can write it decides what is run."""
    playbook.chmod(0o666)
    assert main(["check", str(playbook)]) == 2
    assert "E_PLAYBOOK_PERMS" in capsys.readouterr().err
    playbook.chmod(0o664)
    assert main(["check", str(playbook)]) == 0


def test_what_is_no_file(tmp_path: Path) -> None:
    """A missing file and a folder are problems with advice."""
    for path in (tmp_path / "nope.yaml", tmp_path):
        with pytest.raises(PlaybookError) as error:
            read_playbook(path)
        assert error.value.problems[0].code == "E_FILE"


def test_files_stay_in_the_folder(tmp_path: Path) -> None:
    """B26, B27: a symbolic link that leads out is seen through."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside.py").write_text("x")
    (tmp_path / "inside" / "link.py").symlink_to(tmp_path / "outside.py")
    (tmp_path / "inside" / "a.py").write_text("y")
    (tmp_path / "inside" / "b.py").symlink_to("a.py")
    read = reader(tmp_path / "inside")
    assert (read("a.py"), read("b.py")) == (b"y", b"y")
    assert b"agent-bench" in read("builtin")
    for name, code in (("link.py", "E_PATH"), ("../outside.py", "E_PATH"), ("c.py", "E_FILE")):
        with pytest.raises(AgentError) as error:
            read(name)
        assert error.value.code == code


def test_the_schema_in_the_repository_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """Editors see what the loader takes: `agent schema > playbooks/schema.json`."""
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == (ROOT / "playbooks" / "schema.json").read_text()


def test_the_schema_names_only_what_it_holds() -> None:
    """Every reference leads somewhere, and every key has a description."""
    schema = playbook_schema()
    text = json.dumps(schema)
    assert set(re.findall(r'"#/\$defs/([^"]+)"', text)) <= schema["$defs"].keys()
    assert all("description" in part for part in schema["properties"].values() if "$ref" not in part)
    assert "gpus_clean" in schema["$defs"]["Guard"]["anyOf"][0]["enum"]


def test_help_does_not_pay_for_playbooks() -> None:
    """`agent --help` imports neither the language nor its engines."""
    program = (
        "import sys, agent.cli.check, agent.cli.schema\n"
        "print([name for name in ('pydantic', 'yaml', 'cel_expr_python', 're2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def parts(model: type[Part]) -> set[type[Part]]:
    """Return every part of the language below ``model``."""
    found: set[type[Part]] = set()

    def look(kind: object) -> None:
        if isinstance(kind, type) and issubclass(kind, Part):
            if kind not in found:
                found.add(kind)
                for field in kind.model_fields.values():
                    look(field.annotation)
            return
        for member in getattr(kind, "__args__", ()):
            look(member)

    look(model)
    return found


def test_the_reference_mentions_every_key() -> None:
    """Under a heading for each part, a row for each key."""
    sections = dict(re.findall(r"^## `?([^`\n]+)`?\n(.*?)(?=^## |\Z)", REFERENCE.read_text(), re.MULTILINE | re.DOTALL))
    for part in parts(Playbook):
        assert part.__name__ in REFERENCE.read_text(), f"{part.__name__} has no section"
        (section,) = [text for text in sections.values() if f"<!-- {part.__name__} -->" in text]
        for name, field in part.model_fields.items():
            key = field.alias or name
            assert f"| `{key}` |" in section, f"{part.__name__}.{key} is not in the reference"


def test_the_reference_mentions_every_guard_and_state() -> None:
    """Both tables are those of the code."""
    text = REFERENCE.read_text()
    for name in (*guard_classes(), *(row[0] for row in LADDER)):
        assert f"\n| `{name}` |" in text, name


def test_examples_of_the_reference_are_right() -> None:
    """Every playbook in the reference loads."""
    from . import problems

    examples = re.findall(r"^```yaml\n(.*?)^```", REFERENCE.read_text(), re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        missing = next(HEAD.split(key)[0] for key in ("playbook:", "hosts:", "server:", "\0") if key in f"{example}\0")
        assert problems(missing + example) == (), example
