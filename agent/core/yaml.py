"""Strict YAML: bytes in, plain data with the place of every value out. Nothing here knows what a playbook is.

libyaml tokenises (the pure parser stands in where it is missing); scalars are resolved here by the core schema of
YAML 1.2, so ``no`` and ``on`` are words and ``22:22`` is not a number. Tags, merges, duplicate keys and whatever
could grow without limit are refused. Everything that can be found in one pass is reported, not just the first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml as pyyaml

from ..errors import PlaybookError, Problem
from .wording import Path, field_name, shown

SIZE_MAX = 1 << 20
DEPTH_MAX = 50
ALIASES_MAX = 32
NODES_MAX = 10_000
VALUES = "keys and values"
"""What is not looked at while the file is not YAML."""
PROBLEMS_MAX = 100
INT_MAX = 2**63

_NULL = re.compile(r"|~|null|Null|NULL")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_OCT = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OLD_OCTAL = re.compile(r"[-+]?0[0-9]+")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")


class _PureParser(pyyaml.reader.Reader, pyyaml.scanner.Scanner, pyyaml.parser.Parser):
    """The parser without libyaml: same events, slower."""

    def __init__(self, stream: str) -> None:
        pyyaml.reader.Reader.__init__(self, stream)
        pyyaml.scanner.Scanner.__init__(self)
        pyyaml.parser.Parser.__init__(self)


def _parser(text: str) -> Any:
    try:
        from yaml.cyaml import CParser  # type: ignore[attr-defined]
    except ImportError:
        return _PureParser(text)
    return CParser(text)


@dataclass(slots=True)
class Node:
    """A value and where it stands. ``size`` and ``height`` count what it holds with aliases expanded."""

    line: int
    column: int
    value: Any = None
    text: str = ""
    """A scalar as it is written, without quotes."""
    plain: bool = False
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    children: dict[str | int, Node] = field(default_factory=dict)
    size: int = 1
    height: int = 0
    open: bool = True


@dataclass(slots=True)
class Document:
    """A document's data, the way back to its text, and what was wrong with it."""

    file: str
    data: Any
    root: Node
    problems: list[Problem] = field(default_factory=list)

    def node(self, path: Path) -> Node | None:
        """Return the node at ``path``, or None."""
        node: Node | None = self.root
        for step in path:
            node = node.children.get(step) if node else None
        return node

    def at(self, path: Path) -> tuple[int, int]:
        """Return line and column of the value at ``path``; an empty value stands where its key does.

        A path that leads nowhere is placed at the key of the nearest part that exists.
        """
        node, place = self.root, (self.root.line, self.root.column)
        owner = place
        for step in path:
            child = node.children.get(step)
            if child is None:
                return node.keys.get(str(step), owner)
            key = node.keys.get(str(step), (child.line, child.column))
            place = key if child.value is None and not child.text else (child.line, child.column)
            node, owner = child, key
        return place

    def key_at(self, path: Path) -> tuple[int, int]:
        """Return line and column of the key that ``path`` ends with."""
        parent = self.node(path[:-1]) if path else None
        return parent.keys.get(str(path[-1]), self.at(path)) if parent else self.at(path)

    def written(self, path: Path) -> str:
        """Return the scalar at ``path`` as it is written; '' for anything else."""
        node = self.node(path)
        return node.text if node is not None else ""


class _StopReadingError(Exception):
    """A problem after which nothing that follows can be believed."""


class _Composer:
    """Makes nodes of events, one document, depth first."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.parser = _parser(text)
        self.anchors: dict[str, Node] = {}
        self.aliases = 0
        self.nodes = 0
        self.path: list[str | int] = []

    def complain(self, code: str, message: str, place: tuple[int, int], remedy: str = "", found: str = "") -> None:
        if len(self.problems) < PROBLEMS_MAX:
            name = field_name(tuple(self.path))
            self.problems.append(Problem(code, message, self.file, *place, name, found, remedy))

    def stop(self, code: str, message: str, place: tuple[int, int], remedy: str = "", found: str = "") -> Exception:
        self.complain(code, message, place, remedy, found)
        return _StopReadingError()

    def events(self) -> Iterator[Any]:
        while (event := self.parser.get_event()) is not None:
            yield event

    def compose(self) -> Node | None:
        """Return the first document's top, or None when there is none; refuse a second one."""
        top: Node | None = None
        events = self.events()
        for event in events:
            if not isinstance(event, pyyaml.DocumentStartEvent):
                continue
            place = _place(event)
            if top is not None:
                remedy = "put the second into a file of its own"
                raise self.stop("E_YAML_MULTIDOC", "a playbook is one document", place, remedy)
            if event.version not in (None, (1, 2)):
                self.complain("E_YAML_VERSION", "only YAML 1.2 is read", place, "leave the %YAML line out")
            if event.tags:
                self.complain("E_YAML_TAG", "tags are not allowed", place, "leave the %TAG line out")
            top = self.compose_node(next(events), events, 0)
        return top

    def compose_node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        place = _place(event)
        if isinstance(event, pyyaml.AliasEvent):
            return self.follow(event.anchor, place, depth)
        self.count(1, place)
        if depth > DEPTH_MAX:
            raise self.stop("E_YAML_DEPTH", f"nested more than {DEPTH_MAX} levels deep", place, "nest less")
        node = Node(*place)
        if event.anchor:
            self.anchors[event.anchor] = node
        if event.tag is not None:
            self.complain("E_YAML_TAG", "tags are not allowed", place, "leave the tag out", shown(event.tag))
        if isinstance(event, pyyaml.ScalarEvent):
            node.text, node.plain = event.value, event.style is None or event.style == ""
            node.value = self.scalar(node, place) if node.plain and event.tag is None else event.value
            self.check_control(event.value, place)
        elif isinstance(event, pyyaml.SequenceStartEvent):
            self.sequence(node, events, depth)
        else:
            self.mapping(node, events, depth)
        node.open = False
        return node

    def sequence(self, node: Node, events: Iterator[Any], depth: int) -> None:
        node.value = []
        for event in events:
            if isinstance(event, pyyaml.SequenceEndEvent):
                return
            index = len(node.value)
            self.path.append(index)
            self.adopt(node, index, self.compose_node(event, events, depth + 1))
            self.path.pop()

    def mapping(self, node: Node, events: Iterator[Any], depth: int) -> None:
        node.value = {}
        for event in events:
            if isinstance(event, pyyaml.MappingEndEvent):
                return
            key = self.compose_node(event, events, depth + 1)
            name = self.key(key, node)
            self.path.append(shown(key.text, 40) if name is None else name)
            value = self.compose_node(next(events), events, depth + 1)
            if name is not None:
                node.keys[name] = (key.line, key.column)
                self.adopt(node, name, value)
            self.path.pop()

    def adopt(self, parent: Node, step: str | int, child: Node) -> None:
        parent.children[step] = child
        if isinstance(step, int):
            parent.value.append(child.value)
        else:
            parent.value[step] = child.value
        parent.size += child.size
        parent.height = max(parent.height, child.height + 1)

    def key(self, key: Node, parent: Node) -> str | None:
        """Return the key as a string, or None (with a problem) when it cannot be one here."""
        place = (key.line, key.column)
        if not isinstance(key.value, str):
            written = key.text or type(key.value).__name__
            self.complain("E_KEY_TYPE", "a key is a word", place, f'quote it: "{shown(key.text, 40)}"', shown(written))
            return None
        if key.plain and key.value == "<<":
            self.complain("E_YAML_MERGE", "merge keys are not allowed", place, "write the keys out")
            return None
        if key.value in parent.keys:
            line, column = parent.keys[key.value]
            message = f"the key stands here twice, first at {line}:{column}"
            self.path.append(key.value)
            self.complain("E_YAML_DUPKEY", message, place, "keep one of the two", shown(key.value))
            self.path.pop()
            return None
        return key.value

    def follow(self, anchor: str | None, place: tuple[int, int], depth: int) -> Node:
        self.aliases += 1
        if self.aliases > ALIASES_MAX:
            raise self.stop("E_YAML_EXPANSION", f"more than {ALIASES_MAX} aliases", place, "write the values out")
        target = self.anchors.get(anchor or "")
        if target is None:
            raise self.stop(
                "E_YAML_ALIAS", "no anchor of that name stands before it", place, found=f"*{shown(anchor or '')}"
            )
        if target.open:
            raise self.stop(
                "E_YAML_CYCLE", "a value contains itself", place, "remove the alias", f"*{shown(anchor or '')}"
            )
        self.count(target.size, place)
        if depth + target.height > DEPTH_MAX:
            raise self.stop("E_YAML_DEPTH", f"nested more than {DEPTH_MAX} levels deep", place, "nest less")
        return target

    def count(self, nodes: int, place: tuple[int, int]) -> None:
        self.nodes += nodes
        if self.nodes > NODES_MAX:
            message = f"more than {NODES_MAX:,} values once aliases are expanded"
            raise self.stop("E_YAML_EXPANSION", message, place, "write less, or a list of sweeps")

    def check_control(self, text: str, place: tuple[int, int]) -> None:
        if match := _CONTROL.search(text):
            found = f"U+{ord(match[0]):04X}"
            self.complain("E_CONTROL", "a control character in a value", place, "remove it", found)

    def scalar(self, node: Node, place: tuple[int, int]) -> Any:
        """Resolve a plain scalar by the core schema of YAML 1.2."""
        text = node.text
        if _NULL.fullmatch(text):
            return None
        if _BOOL.fullmatch(text):
            return text[0] in "tT"
        if _OLD_OCTAL.fullmatch(text):
            written, octal = text[:40], f"0o{text.lstrip('+-0') or '0'}"[:40]
            remedy = f"write '{written}'" + (f" or {octal}" if _OCT.fullmatch(octal) else "")
            self.complain("E_OCTAL", "a number with a leading zero", place, remedy, written)
            return text
        if _NOT_FINITE.fullmatch(text):
            self.complain("E_NUMBER", "not a finite number", place, "write a number", text)
            return 0.0
        for pattern, base in ((_INT, 10), (_OCT, 8), (_HEX, 16)):
            if pattern.fullmatch(text):
                return self.integer(text, base, place)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number) or len(text) > 40:
                self.complain("E_NUMBER", "a number out of range", place, "write fewer digits", shown(text, 24))
                return 0.0
            return number
        return text

    def integer(self, text: str, base: int, place: tuple[int, int]) -> int:
        number = int(text.replace("0o", "").replace("0x", ""), base) if len(text) <= 40 else INT_MAX
        if not -INT_MAX <= number < INT_MAX:
            remedy = "whole numbers have up to 18 digits"
            self.complain("E_NUMBER", "a number out of range", place, remedy, shown(text, 24))
            return 0
        return number


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _decode(raw: bytes, file: str) -> str:
    """Return the text of UTF-8 bytes (a BOM is dropped); refuse other encodings and control characters."""
    if len(raw) > SIZE_MAX:
        problem = Problem("E_YAML_SIZE", "a playbook has at most 1 MiB", file, 1, 1, found=f"{len(raw):,} bytes")
        raise _refuse(problem, remedy="split it, or move data into a file beside it")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in raw[:4]:
        problem = Problem("E_ENCODING", "not UTF-8", file, 1, 1, found="UTF-16 or UTF-32")
        raise _refuse(problem, remedy="save the file as UTF-8")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8")
        place = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        problem = Problem("E_ENCODING", "not UTF-8", file, *place, found=f"byte 0x{raw[error.start]:02x}")
        raise _refuse(problem, remedy="save the file as UTF-8") from None
    text = text.removeprefix("\ufeff")
    if match := _CONTROL.search(text):
        at = match.start()
        place = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
        problem = Problem("E_CONTROL", "a control character", file, *place, found=f"U+{ord(match[0]):04X}")
        raise _refuse(problem, remedy="remove it")
    return text


def _refuse(problem: Problem, remedy: str = "") -> PlaybookError:
    done = Problem(**{**_fields(problem), "remedy": remedy or problem.remedy})
    return PlaybookError("the file cannot be read as YAML", problems=(done,), unchecked=VALUES)


def _fields(problem: Problem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in Problem.__dataclass_fields__}


def _syntax(error: pyyaml.error.MarkedYAMLError, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    said = shown(error.problem or "not YAML", 120)
    if "nesting depth" in said:
        return Problem("E_YAML_DEPTH", f"nested more than {DEPTH_MAX} levels deep", file, *place, remedy="nest less")
    if "undefined tag handle" in said:
        return Problem("E_YAML_TAG", "tags are not allowed", file, *place, remedy="leave the tag out")
    remedy = "indent with spaces, quote values that hold ': ' or begin with one of {[*&!|>%@`"
    if "duplicate %" in said or "directive" in said:
        remedy = "leave lines that begin with % out"
    return Problem("E_YAML_SYNTAX", said, file, *place, remedy=remedy)


def compose(text: bytes, file: str) -> Document:
    """Read one document. Problems that leave the rest readable are kept in it; others raise PlaybookError."""
    composer = _Composer(_decode(text, file), file)
    try:
        top = composer.compose()
    except _StopReadingError:
        raise PlaybookError(
            "the file cannot be read as YAML", problems=tuple(composer.problems), unchecked=VALUES
        ) from None
    except (pyyaml.error.MarkedYAMLError, pyyaml.reader.ReaderError) as error:
        last = (
            _syntax(error, file)
            if isinstance(error, pyyaml.error.MarkedYAMLError)
            else Problem("E_CONTROL", "a character that YAML does not allow", file, 1, 1, remedy="remove it")
        )
        raise PlaybookError("the file is not YAML", problems=(*composer.problems, last), unchecked=VALUES) from None
    if top is None or not isinstance(top.value, dict):
        found = "nothing" if top is None or top.value is None else type(top.value).__name__
        place = (top.line, top.column) if top is not None else (1, 1)
        remedy = "begin with `playbook: NAME`"
        problem = Problem("E_SCHEMA_TOP", "the top of a playbook is a mapping", file, *place, "", found, remedy)
        raise PlaybookError("not a playbook", problems=(*composer.problems, problem), unchecked=VALUES)
    return Document(file, top.value, top, composer.problems)


def load(text: bytes, file: str) -> Document:
    """Read one document; raise PlaybookError with everything that is wrong with it."""
    document = compose(text, file)
    if document.problems:
        raise PlaybookError("the file is not strict YAML", problems=tuple(document.problems), unchecked=VALUES)
    return document
