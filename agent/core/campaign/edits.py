"""Changes on hosts as the journal tells them: what was asked for, what became of it, what is in place."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import changes


@dataclass(slots=True)
class HostEdit:
    """A change on the host that this run asked for. ``asked``: nobody knows yet whether it is in place."""

    key: str
    spec: str
    """The change as the host's script read it."""
    word: Literal["asked", "made", "refused", "reverted"] = "asked"
    files: list[dict[str, Any]] = field(default_factory=list)
    """Path, digest before and digest after of each file, once it is made."""
    why: str = ""
    """Why it was refused, or what is in the way of its revert."""

    def plain(self) -> str:
        """Return the change without what it expected to find: the text by which it is the playbook's."""
        made = json.loads(self.spec)
        made.pop("seen", None)
        return json.dumps(made, sort_keys=True)


@dataclass(slots=True)
class Edits:
    """All of them, with what the first look said of changes that may be made."""

    made: list[HostEdit] = field(default_factory=list)
    """In the order in which they were asked for."""
    dry: dict[str, changes.DryRun] = field(default_factory=dict)
    """By the change's text."""
    asked_dry: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def in_place(self) -> list[HostEdit]:
        """Return the changes that are in place, or may be, in the order in which they were made."""
        return [edit for edit in self.made if edit.word in ("asked", "made")]

    def requested(self, key: str, argv: tuple[str, ...]) -> None:
        """Take note of a job that is to change something, or to try it on paper."""
        match argv:
            case [_, _, "apply", spec]:
                self.made.append(HostEdit(key, spec))
            case [_, _, "check", *specs]:
                self.asked_dry[key] = tuple(specs)

    def learnt(self, role: str, key: str, text: str | None) -> None:
        """Keep what became of it; an answer that does not tell leaves it open."""
        if role == "survey":
            self.dry |= dict(zip(self.asked_dry.get(key, ()), changes.read_check(text) or (), strict=False))
        elif role == "apply":
            done, files, why = changes.read_apply(text)
            for edit in self._of([key] if done is not None else []):
                edit.word, edit.files, edit.why = ("made" if done else "refused"), files, why
        elif (gone := changes.read_revert(text)) is not None:
            for edit in self._of(gone[0]):
                edit.word = "reverted"

    def _of(self, keys: Iterable[str]) -> list[HostEdit]:
        wanted = frozenset(keys)
        return [edit for edit in self.made if edit.key in wanted]
