"""Finds what is wrong with a playbook's text, value by value, and says where: types, words that must not stand there.

Checks that need several values together live in ``agent.core.resolve``.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import PlaybookError, Problem
from .wording import Path, did_you_mean, field_name, has_secret, mask, shown
from .yaml import PROBLEMS_MAX, Document

# ---------------------------------------------------------------- collecting


class Findings:
    """The problems of one document: at most one a place and 100 in all, masked, in the order of the file."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._problems: dict[Path, Problem] = {}

    def add(
        self, code: str, path: Path, message: str, remedy: str, *, found: str | None = None, key: bool = False
    ) -> None:
        """Add a problem at ``path``; the first one at a place stays. ``key``: the place is the key itself."""
        if path in self._problems or self.full():
            return
        line, column = self.document.key_at(path) if key else self.document.at(path)
        seen = self.document.written(path) if found is None and not key else (found or "")
        self._problems[path] = Problem(
            code, mask(message), self.document.file, line, column, field_name(path), shown(seen), mask(remedy)
        )

    def full(self) -> bool:
        """Say whether there are so many that no more are taken."""
        return len(self) >= PROBLEMS_MAX

    def has(self, path: Path) -> bool:
        """Say whether something is wrong at ``path`` or below it."""
        return any(known[: len(path)] == path for known in self._problems)

    def __len__(self) -> int:
        return len(self._problems) + len(self.document.problems)

    def all(self) -> tuple[Problem, ...]:
        """Return every problem, by place."""
        own = {(problem.line, problem.column) for problem in self.document.problems}
        rest = [problem for problem in self._problems.values() if (problem.line, problem.column) not in own]
        found = sorted([*self.document.problems, *rest], key=lambda problem: (problem.line, problem.column))
        if self.full():
            message = f"there may be more than these {len(found)}"
            found.append(Problem("E_MORE", message, self.document.file, found[-1].line, found[-1].column))
        return tuple(found)

    def stop(self, unchecked: str = "") -> None:
        """Raise PlaybookError if anything was found; ``unchecked``: what was not looked at for it."""
        if problems := self.all():
            raise PlaybookError("the playbook cannot be used", problems=problems, unchecked=unchecked)


# ---------------------------------------------------------------- shapes


def read(model: type[BaseModel], data: Any, findings: Findings, base: Path = ()) -> Any:
    """Read ``data`` strictly as ``model``; None when it does not fit, with a problem for each value that is wrong."""
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        explain(error, data, model, findings, base)
        return None


def explain(error: ValidationError, data: Any, model: type[BaseModel], findings: Findings, base: Path = ()) -> None:
    """Turn pydantic's errors into problems at the places of their values."""
    rows = [(_real_path(row["loc"], data), row) for row in error.errors(include_url=False)]
    paths = {path for path, _ in rows}
    for path, row in rows:
        if findings.full():
            return
        if row["type"] == "too_short" and any(other[: len(path)] == path and other != path for other in paths):
            continue
        _explain_one(base + path, path, row, model, findings)


def _real_path(loc: tuple[int | str, ...], data: Any) -> Path:
    """Return ``loc`` without the labels that pydantic puts in for members of unions."""
    path: list[int | str] = []
    for index, step in enumerate(loc):
        last = index == len(loc) - 1
        inside: Any = data if isinstance(data, dict) else dict(enumerate(data)) if isinstance(data, list) else {}
        if step in inside:
            data = inside[step]
        elif not (last and isinstance(data, dict) and step != "[key]"):
            continue
        path.append(step)
    return tuple(path)


_TYPES = {"string": "a word", "int": "a whole number", "float": "a number", "bool": "true or false"}


def _explain_one(place: Path, path: Path, row: Any, model: type[BaseModel], findings: Findings) -> None:
    kind, context, value = row["type"], row.get("ctx") or {}, row.get("input")
    at_key = row["loc"][-1:] == ("[key]",)
    if kind.startswith("E_"):
        findings.add(kind, place, row["msg"], context.get("remedy", ""), key=at_key)
    elif kind == "extra_forbidden":
        remedy = did_you_mean(str(path[-1]), siblings(model, path))
        findings.add("E_UNKNOWN_FIELD", place, "no such key", remedy, found="", key=True)
    elif kind == "missing":
        name = str(path[-1]) if path else ""
        findings.add("E_MISSING", place, "this key is needed", f"write `{name}: …`", found="")
    elif kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context.get("expected", ""))
        remedy = did_you_mean(value, choices) if isinstance(value, str) else "known: " + ", ".join(choices)
        findings.add("E_VALUE", place, "not one of the words known here", remedy, key=at_key)
    elif kind.startswith(("greater_than", "less_than")):
        limits = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
        wanted = ", ".join(f"{words} {context[name]}" for name, words in limits.items() if name in context)
        findings.add("E_RANGE", place, "out of range", f"write {wanted}")
    elif kind in ("too_short", "string_too_short"):
        findings.add("E_VALUE", place, "it is empty", "write something, or leave the key out", found="")
    elif kind in ("too_long", "string_too_long"):
        findings.add("E_RANGE", place, "too many or too long", "write less", found="")
    elif kind == "string_pattern_mismatch":
        findings.add("E_VALUE", place, "not of the right form", f"it must match {context.get('pattern')}")
    elif kind in ("value_error", "assertion_error"):
        said = row["msg"].partition(", ")[2] or row["msg"]
        code = "E_DURATION" if "duration" in said else "E_VALUE"
        findings.add(code, place, said, "see the reference of this key")
    else:
        message, remedy = _type_advice(kind, value, row["loc"], findings.document.written(place))
        findings.add(
            "E_TYPE", place, message, remedy, found=None if not isinstance(value, (dict, list)) else _form(value)
        )


def _form(value: Any) -> str:
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)


def _type_advice(kind: str, value: Any, loc: tuple[int | str, ...], written: str) -> tuple[str, str]:
    """Return what was wanted and what to write."""
    if loc[-1:] and loc[-1] in ("bool", "int", "float", "str"):
        return "a single value was wanted", "write a word, a number, true or false"
    wanted = _TYPES.get(kind.partition("_")[0])
    if wanted == "a word" and not isinstance(value, (dict, list)):
        return "a word was wanted", f'quote it: "{shown(written, 40)}"'
    if wanted == "true or false":
        return "true or false was wanted", "write true or false (yes, no, on and off are words)"
    if wanted:
        return f"{wanted} was wanted", "write digits, without quotes" if "number" in wanted else f"write {wanted}"
    if kind in ("tuple_type", "list_type"):
        return "a list was wanted", f"write [{shown(written, 40)}]" if written else "write [a, b]"
    return "a mapping was wanted", "write keys and values: {key: value}"


@lru_cache(maxsize=32)
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True)


def siblings(model: type[BaseModel], path: Path) -> set[str]:
    """Return the keys that may stand where ``path`` ends, by walking the model's schema."""
    schema = _schema(model)
    nodes: list[dict[str, Any]] = [schema]
    for step in path[:-1]:
        nodes = [child for node in nodes for child in _children(node, step, schema)]
    return {name for node in nodes for form in _forms(node, schema) for name in form.get("properties", {})}


def _forms(node: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in node:
        yield from _forms(schema["$defs"][node["$ref"].rsplit("/", 1)[1]], schema)
        return
    choices = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    for choice in choices:
        yield from _forms(choice, schema)
    if not choices:
        yield node


def _children(node: dict[str, Any], step: int | str, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for form in _forms(node, schema):
        if isinstance(step, int):
            yield form.get("items", {})
        elif step in form.get("properties", {}):
            yield form["properties"][step]
        elif isinstance(form.get("additionalProperties"), dict):
            yield form["additionalProperties"]


# ---------------------------------------------------------------- words

_TEMPLATE = re.compile(r"\{\{|\}\}|\{%|%\}")
_EXPANSION = re.compile(_TEMPLATE.pattern + r"|\$\(|\$\{|`")
_SECRET_REFERENCE = re.compile(r"\$\{\s*secrets?[.:]")
_START = r"(?:^|[;&|(`]\s*|\bsudo\s+(?:-\S+\s+)*|\bxargs\s+(?:-\S+\s+)*)(?:\S*/)?"
_KILL_PID = re.compile(r"(?:^|[\s;&|(/])kill\s+(?:-\S+\s+)*?(?:--\s+-?)?\d+(?=\s|$|[;&|)])")
_KILL_SHELL = re.compile(_START + r"(?:pkill|killall|skill|kill|fuser\s+(?:-\S+\s+)*-\w*k\w*)(?=\s|$)")
_SECRET_NAME = re.compile(r"(?:^|[_-])(?:token|(?:api|access|secret)[_-]?key|secret|password|passwd)$", re.IGNORECASE)
_NO_SECRET = re.compile(
    r"(?:^|[_-])(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio|stop|draft)[_-]token$", re.IGNORECASE
)
_BEARER = re.compile(r"\bauthorization:\s*(?:bearer|basic|token)\s+[^\s$]", re.IGNORECASE)
FREE_TEXT = ("prompts", "because", "pattern", "expr", "when", "expect")
"""Keys whose values are texts in a language of their own: nothing is expanded in them anyway."""


def texts(data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every scalar with its path."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from texts(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from texts(value, (*path, index))
    else:
        yield path, data


def check_words(findings: Findings) -> None:
    """Look at every scalar: nothing empty, no secret, no template, no command that kills by name or number.

    What stands under ``lab`` is not read here, but a secret is found there too: it would go into the journal.
    """
    shells = set()
    for path, words in argvs(findings.document.data):
        _check_argv(path, words, findings)
        if words and words[0].rsplit("/", 1)[-1] in ("sh", "bash", "dash", "zsh"):
            shells.add(path)
    for path, value in texts(findings.document.data):
        named = [step for step in path if isinstance(step, str)]
        if _check_secret(path, named, value, findings) or path[:1] == ("lab",):
            continue
        if value is None:
            if "json" not in named:
                findings.add("E_NULL", path, "there is no value", "give one, or leave the key out (a flag: `unset`)")
        elif isinstance(value, str):
            _check_text(path, named, value, findings, shell=path[:-1] in shells)
        elif path[-1] == "pid":
            remedy = "name argv, port, user or exe"
            findings.add("E_KILL_PID", path, "a process number says nothing about tomorrow", remedy)


def _check_secret(path: Path, named: list[str], value: Any, findings: Findings) -> bool:
    """Find secrets by what they look like, and by the names of flags and variables that hold them."""
    hidden = "not shown"
    if any(has_secret(step) for step in named):
        findings.add("E_SECRET_LITERAL", path, "a secret stands in a key", "take it out", found=hidden, key=True)
        return True
    if isinstance(value, str) and has_secret(value):
        remedy = "write `server: {secrets: {NAME: {env: NAME}}}`"
        findings.add("E_SECRET_LITERAL", path, "a secret stands in the file", remedy, found=hidden)
        return True
    if named[:2] == ["server", "secrets"] and len(named) == 3 and value is not None:
        remedy = f"write `{named[2]}: {{env: {named[2]}}}`, or file or command in the place of env"
        findings.add("E_SECRET_LITERAL", path, "the value of a secret stands in the file", remedy, found=hidden)
        return True
    word = named[2:] == ["sudo"] and isinstance(value, str) and value.lower() not in ("yes", "no", "on", "off", "")
    if path[:1] == ("hosts",) and (word or (named[2:] == ["sudo", "password"] and value is not None)):
        remedy = "write `sudo: {password: {env: SUDO_PASSWORD}}`"
        findings.add("E_SECRET_LITERAL", path, "a password stands in the file", remedy, found=hidden)
        return True
    if value in (None, "", "unset") or isinstance(value, bool) or "secrets" in named:
        return False
    for place, name in itertools.pairwise(named):
        if not _SECRET_NAME.search(name) or _NO_SECRET.search(name):
            continue
        if place == "env":
            remedy = f"write `server: {{secrets: {{{name}: {{env: {name}}}}}}}`"
            findings.add("E_SECRET_LITERAL", path, "the value of a secret stands in the file", remedy, found=hidden)
            return True
        if place == "flags":
            remedy = "hand it over in an environment variable, under `server.secrets`"
            findings.add("E_SECRET_IN_ARGV", path, "everybody on the host can read flags", remedy, found=hidden)
            return True
    return False


def _check_text(path: Path, named: list[str], value: str, findings: Findings, *, shell: bool) -> None:
    if _SECRET_REFERENCE.search(value):
        remedy = "secrets reach a server as environment variables: `server: {secrets: …}`"
        findings.add("E_SECRET_IN_ARGV", path, "a secret cannot be put into a value", remedy)
    elif not set(named) & set(FREE_TEXT) and (match := (_TEMPLATE if shell else _EXPANSION).search(value)):
        remedy = "write the value out; what follows from others is {expr: …}"
        findings.add("E_TEMPLATE", path, f"nothing is expanded in values, `{match[0]}` would arrive as it is", remedy)


def argvs(data: Any, path: Path = ()) -> Iterator[tuple[Path, list[str]]]:
    """Yield every list of words that becomes a command line."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key in ("command", "args") and isinstance(value, list):
                yield (*path, key), [str(word) for word in value]
            elif path or key != "lab":
                yield from argvs(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from argvs(value, (*path, index))


def _check_argv(path: Path, words: list[str], findings: Findings) -> None:
    line = " ".join(words)
    scripts = [line, *(word for word in words if " " in word or re.fullmatch(r"(?:\S*/)?(?:pkill|killall)", word))]
    if any(_KILL_PID.search(script) for script in scripts):
        remedy = "name the server under `server.replaces` (argv, port, user); the kill state stops exactly that"
        findings.add("E_KILL_PID", path, "a process number says nothing about tomorrow", remedy, found=line)
    elif any(_KILL_SHELL.search(script) for script in scripts):
        remedy = "name the server under `server.replaces`; the kill state stops it and what it started, and no more"
        findings.add("E_KILL_SHELL", path, "it would reach other people's processes", remedy, found=line)
    for index, word in enumerate(words):
        name, given, value = word.lstrip("-").partition("=")
        follows = words[index + 1] if index + 1 < len(words) else "-"
        named = word.startswith("--") and _SECRET_NAME.search(name) and not _NO_SECRET.search(name)
        if (named and (value if given else not follows.startswith("-"))) or _BEARER.search(word):
            remedy = "hand it over in an environment variable, under `server.secrets`"
            place = (*path, index)
            findings.add(
                "E_SECRET_IN_ARGV", place, "everybody on the host can read commands", remedy, found="not shown"
            )
