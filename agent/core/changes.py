"""Changes to what lies on a host: files, a commit, a package. Each is taken back by the key of its job.

What a change does is in ``agent/hosts/scripts/change.py``, which runs on the host; here it is described, made into
jobs, and their answers are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from .actions import Job
from .values import Value

SCRIPTS = ("change.py", "change_files.py", "change_text.py", "change_trees.py")
"""What the job's folder holds; a plan has their digests under these names."""
CONTENT = "content"
"""What the file of a ``put`` or a ``patch`` is called in the job's folder."""


class Put(Value):
    """A whole file. ``was`` is the SHA-256 of what has to be there before, or ``absent``; None = whatever it is."""

    kind: Literal["put"] = "put"
    path: str
    file: str
    sha256: str = ""
    was: str | None = None
    mode: str | None = None
    """Of a file that was not there before, in octal digits."""


class Patch(Value):
    """A unified diff, applied below ``root`` with ``strip`` steps of its names left out. No fuzz."""

    kind: Literal["patch"] = "patch"
    root: str
    file: str
    sha256: str = ""
    strip: int = 1


class Edit(Value):
    """Values of a JSON or YAML file by path (``a.b[0]``); the rest of the text stays. ``was``: values before."""

    kind: Literal["json", "yaml"]
    path: str
    set: dict[str, Any]
    was: dict[str, Any] = {}
    python: str = "python3"
    """The interpreter on the host; for YAML it needs PyYAML."""


class Checkout(Value):
    """A commit of a repository whose tree is clean."""

    kind: Literal["git"] = "git"
    repo: str
    checkout: str


class Package(Value):
    """The version of a package in the virtual environment of ``python``. ``wheels``: a folder instead of the index."""

    kind: Literal["package"] = "package"
    python: str
    name: str
    version: str
    wheels: str | None = None


HostChange = Annotated[Put | Patch | Edit | Checkout | Package, Field(discriminator="kind")]


def place(change: HostChange) -> str:
    """Say what a change is about, in a few words."""
    match change:
        case Put():
            return f"put {change.path}"
        case Patch():
            return f"patch {change.file} in {change.root}"
        case Edit():
            values = ", ".join(f"{name} = {json.dumps(value)}" for name, value in change.set.items())
            return f"{change.path}: {values}"
        case Checkout():
            return f"{change.repo} at {change.checkout}"
        case Package():
            return f"{change.name} {change.version} in {change.python}"


def cost(change: HostChange) -> int:
    """Return a rank: what takes longer to make and to take back costs more."""
    return {"git": 2, "package": 3}.get(change.kind, 1)


def spec(change: HostChange, seen: Mapping[str, str | None] | None = None) -> str:
    """Return the change as the script reads it. ``seen``: digests that its files have to have still."""
    document = change.model_dump(mode="json", exclude={"sha256", "python"} if isinstance(change, Edit) else {"sha256"})
    if isinstance(change, (Put, Patch)):
        document["file"] = f"{CONTENT}-{change.sha256[:16]}"
    if seen:
        document["seen"] = dict(seen)
    return json.dumps(document, sort_keys=True)


def job(verb: str, tools: Mapping[str, str], words: Sequence[str], changes: Sequence[HostChange] = ()) -> Job:
    """Return the job for a verb of the script; ``changes`` say which files it needs, and which interpreter."""
    files = {name: tools[name] for name in SCRIPTS}
    files |= {f"{CONTENT}-{one.sha256[:16]}": one.sha256 for one in changes if isinstance(one, (Put, Patch))}
    python = next((one.python for one in changes if isinstance(one, Edit)), "python3")
    return Job(role="change", argv=(python, "@job/change.py", verb, *words), files=files)


# ---------------------------------------------------------------- answers


@dataclass(frozen=True)
class DryRun:
    """What a change would do. ``refused`` '' = it fits; ``same`` = everything is so already."""

    refused: str = ""
    wanted: str = ""
    same: bool = False
    seen: Mapping[str, str | None] = field(default_factory=dict)
    """Digests of what is there now, by path; None = nothing."""


def _document(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _files(answer: Any) -> list[dict[str, Any]]:
    rows = answer.get("files") if isinstance(answer, dict) else None
    return [row for row in rows if isinstance(row, dict) and "path" in row] if isinstance(rows, list) else []


def read_check(text: str | None) -> list[DryRun] | None:
    """Read the answer of ``check``, one for each change; None when it cannot be read."""
    rows = _document(text).get("changes")
    if not isinstance(rows, list):
        return None
    found = []
    for row in rows:
        if not isinstance(row, dict):
            return None
        if row.get("ok") is not True:
            found.append(DryRun(str(row.get("refused") or "refused"), str(row.get("wanted") or "")))
            continue
        seen = {str(item["path"]): item.get("before") for item in _files(row)}
        found.append(DryRun(same=row.get("same") is True, seen=seen))
    return found


def read_apply(text: str | None) -> tuple[bool | None, list[dict[str, Any]], str]:
    """Read the answer of ``apply``: whether it was done (None: nobody knows), its files, and why it was refused."""
    answer = _document(text)
    if answer.get("ok") is True:
        return True, _files(answer), ""
    if answer.get("ok") is False and "refused" in answer:
        return False, [], f"{answer['refused']}; wanted: {answer.get('wanted') or 'what the change was made for'}"
    return None, [], ""


def read_revert(text: str | None) -> tuple[frozenset[str], tuple[str, ...]] | None:
    """Read the answer of ``revert``: keys whose changes are gone, and what is in the way of the others."""
    answer = _document(text)
    done, left = answer.get("reverted"), answer.get("left")
    if not isinstance(done, list) or not isinstance(left, list):
        return None
    keys = frozenset(str(item.get("job")) for item in done if isinstance(item, dict))
    return keys, tuple(str(item.get("why")) for item in left if isinstance(item, dict))


def read_look(text: str | None) -> list[dict[str, str]] | None:
    """Read the answer of ``look``: job, path and word of each file."""
    rows = _document(text).get("files")
    if not isinstance(rows, list):
        return None
    return [{name: str(row.get(name)) for name in ("job", "path", "is")} for row in rows if isinstance(row, dict)]
