"""What a change of files would write: whole files, unified diffs, values of JSON and YAML. Nothing is written here.

Part of ``change.py``; Python 3.8, standard library, and PyYAML for YAML.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from change_files import JOB, Refused, facts, read, sha

Spec = Dict[str, Any]
Work = List[Tuple[str, Optional[bytes], bytes]]
"""Path, bytes before (None = no such file), bytes after."""
Hunk = Tuple[int, List[str], List[str]]
Steps = List[Any]


def planned(spec: Spec) -> Work:
    """Return what a change of files would write; Refused when it does not fit."""
    kind = spec["kind"]
    if kind == "put":
        return put(spec)
    if kind == "patch":
        return patch(spec)
    path = os.path.realpath(spec["path"])
    before = need(path)
    text = text_of(before, path)
    edit = set_json if kind == "json" else set_yaml
    after = edit(path, text, spec["set"], spec.get("was") or {})
    return [(path, before, after.encode())]


def need(path: str) -> bytes:
    """Return the bytes of a file that has to be there."""
    if facts(path) is None:
        raise Refused(path + " is not there", "the file")
    data: bytes = read(path)
    return data


def text_of(data: bytes, path: str) -> str:
    """Return bytes as text."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Refused(path + " is not UTF-8", "text") from None


def put(spec: Spec) -> Work:
    """Put a whole file there."""
    path = os.path.realpath(spec["path"])
    after = read(os.path.join(JOB, spec["file"]))
    before = read(path) if facts(path) is not None else None
    was = spec.get("was")
    found = "absent" if before is None else sha(before)
    if was is not None and found != was and (before is None or before != after):
        raise Refused(f"{path} is {found[:16]}", was[:16])
    if before is None and not os.path.isdir(os.path.dirname(path)):
        raise Refused(os.path.dirname(path) + " is no folder", "the folder it is put into")
    return [(path, before, after)]


HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def patch(spec: Spec) -> Work:
    """Apply a unified diff in memory: every line of context as it stands, at its place or at the only other one."""
    text = text_of(read(os.path.join(JOB, spec["file"])), spec["file"])
    lines, at = text.splitlines(True), 0
    found: dict[str, tuple[bytes | None, bytes]] = {}
    while at < len(lines):
        if not (lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")):
            at += 1
            continue
        old, new = (line[4:].split("\t")[0].rstrip("\n") for line in lines[at : at + 2])
        at, hunks = at + 2, []
        while at < len(lines) and HUNK.match(lines[at]):
            at, hunk = hunk_at(lines, at)
            hunks.append(hunk)
        path = target(spec, old, new)
        before = found[path][0] if path in found else read(path) if facts(path) is not None else None
        if (before is None) != (old == "/dev/null"):
            raise Refused(path + (" is not there" if before is None else " is there already"), "what the patch is for")
        start = found[path][1] if path in found else (before or b"")
        found[path] = (before, apply_hunks(path, text_of(start, path), hunks).encode())
    if not found:
        raise Refused(spec["file"] + " holds no unified diff", "lines that begin with --- and +++, then @@")
    return [(path, before, after) for path, (before, after) in found.items()]


def target(spec: Spec, old: str, new: str) -> str:
    """Return the file that a part of the patch is about."""
    if new == "/dev/null":
        raise Refused("the patch deletes " + old, "a patch that changes files")
    steps = new.split("/")[int(spec.get("strip", 1)) :]
    if not steps or new.startswith("/") or ".." in steps:
        raise Refused("the patch names " + new, "a path below " + spec["root"])
    return os.path.realpath(os.path.join(spec["root"], *steps))


def hunk_at(lines: list[str], at: int) -> tuple[int, Hunk]:
    """Read the hunk at a line; return the line behind it, and where it goes with its old and its new lines."""
    match = HUNK.match(lines[at])
    assert match is not None
    start, olds, news = int(match[1]), int(match[2] or 1), int(match[4] or 1)
    old: list[str] = []
    new: list[str] = []
    at, last = at + 1, " "
    while at < len(lines) and (len(old) < olds or len(new) < news or lines[at].startswith("\\")):
        sign, body = lines[at][:1], lines[at][1:]
        if sign == "\\":  # "No newline at end of file" belongs to the line before it
            for side in (old, new) if last == " " else ((old,) if last == "-" else (new,)):
                side[-1] = side[-1].rstrip("\n")
        elif sign in (" ", "\n"):
            old.append(body or "\n")
            new.append(body or "\n")
        elif sign == "-":
            old.append(body)
        elif sign == "+":
            new.append(body)
        else:
            break
        last = sign if sign != "\n" else " "
        at += 1
    if (len(old), len(new)) != (olds, news):
        raise Refused(f"the patch is cut off at its line {at}", "the whole patch")
    return at, (start, old, new)


def apply_hunks(path: str, text: str, hunks: list[Hunk]) -> str:
    """Return the text with its old lines replaced; Refused unless each hunk has exactly one place."""
    lines, moved = text.splitlines(True), 0
    for start, old, new in hunks:
        place = start - 1 + moved if old else start + moved
        if lines[place : place + len(old)] != old:
            places = [n for n in range(len(lines) - len(old) + 1) if lines[n : n + len(old)] == old] if old else []
            if len(places) != 1:
                if new and "".join(new) in text:
                    said = "already has what the patch adds"
                else:
                    said = f"{'has more than once' if places else 'does not have'} what the patch replaces"
                raise Refused(f"{path} {said} at line {start}", "the lines that it was made for")
            place = places[0]
        lines[place : place + len(old)] = new
        moved += len(new) - len(old)
    return "".join(lines)


# ---------------------------------------------------------------- JSON and YAML, by path


STEP = re.compile(r"""\.?(?:([^.\[\]"]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\])""")


def steps_of(path: str) -> Steps:
    """Return the steps of ``a.b[0]["c.d"]``."""
    at, steps = 0, []
    while at < len(path):
        match = STEP.match(path, at)
        if match is None:
            raise Refused("not a path: " + path, 'a.b, a[0] or a["b.c"]')
        steps.append(int(match[2]) if match[2] else json.loads(f'"{match[3]}"') if match[3] is not None else match[1])
        at = match.end()
    return steps


def value_at(value: Any, steps: Steps, path: str) -> Any:
    """Return the value at a path; Refused when there is none."""
    for step in steps:
        if isinstance(value, list) and str(step).isdigit() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            raise Refused(f"there is no {path}", "a path that is there")
    return value


def with_value(value: Any, steps: Steps, new: Any) -> Any:
    """Return the document with one value set, for comparing with what the edited text says."""
    if not steps:
        return new
    step = steps[0]
    if isinstance(value, list):
        return [with_value(item, steps[1:], new) if n == int(step) else item for n, item in enumerate(value)]
    return {**value, step: with_value(value.get(step), steps[1:], new)}


def edited(
    path: str,
    text: str,
    load: Callable[[str], Any],
    span: Callable[[str, Steps, str], tuple[int, int, str]],
    wanted: Spec,
    was: Spec,
) -> str:
    """Set each value by its place in the text, so that everything else stays as it is, byte for byte."""
    try:
        document = load(text)
    except Exception as error:
        raise Refused(f"{path} cannot be read: {str(error)[:200]}", "a document without faults") from None
    for name, value in was.items():
        found = value_at(document, steps_of(name), name)
        if found != value and not (name in wanted and found == wanted[name]):
            raise Refused(f"{path}: {name} is {json.dumps(found)[:200]}", json.dumps(value))
    for name, value in wanted.items():
        steps = steps_of(name)
        value_at(document, steps[:-1], name)
        expected = with_value(document, steps, value)
        if expected == document and same_types(document, steps, value):
            continue
        start, end, before = span(text, steps, name)
        text = text[:start] + before + json.dumps(value) + text[end:]
        document = load(text)
        if document != expected:
            raise Refused(f"{path}: setting {name} would change more than that", "an edit by hand, as a patch")
    return text


def same_types(document: Any, steps: Steps, value: Any) -> bool:
    """Say whether the value that is there has the type of the new one: true is not 1."""
    try:
        return type(value_at(document, steps, "")) is type(value)
    except Refused:
        return False


def after_white(text: str, at: int) -> int:
    """Return the place of the next sign that is no white space."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def json_span(text: str, steps: Steps, path: str) -> tuple[int, int, str]:
    """Return start and end of a value in JSON text, and what has to stand before a value that is new."""
    decoder, at = json.JSONDecoder(), after_white(text, 0)
    for number, step in enumerate(steps):
        opening, at, index, found = text[at], at + 1, 0, None
        inside = at
        place, last, key = at, 0, None
        while True:
            at = after_white(text, at)
            if text[at] in "]}":
                break
            key = str(index)
            if opening == "{":
                key, at = decoder.raw_decode(text, at)
                at = after_white(text, after_white(text, at) + 1)
            end = decoder.raw_decode(text, at)[1]
            if str(key) == str(step):
                found = at  # of a key that stands twice the last one counts, as for every reader
            index, place, last, at = index + 1, end, end, after_white(text, end)
            if text[at] == ",":
                at += 1
        if found is None:
            if opening != "{" or number + 1 < len(steps):
                raise Refused(f"there is no {path}", "a path that is there")
            gap = text[inside : after_white(text, inside)] if last else ""
            return place, place, ("," if last else "") + (gap or " ") + json.dumps(step) + ": "
        at = found
    return at, decoder.raw_decode(text, at)[1], ""


def set_json(path: str, text: str, wanted: Spec, was: Spec) -> str:
    """Set values of a JSON document."""
    return edited(path, text, json.loads, json_span, wanted, was)


def set_yaml(path: str, text: str, wanted: Spec, was: Spec) -> str:
    """Set values of a YAML document; comments and everything else stay."""
    try:
        import yaml
    except ImportError:
        wanted_ = "`python:` of an environment with PyYAML, or a patch"
        raise Refused(f"{sys.executable} has no module yaml", wanted_) from None

    def span(text: str, steps: Steps, name: str) -> tuple[int, int, str]:
        node: Any = yaml.compose(text, yaml.SafeLoader)
        for step in steps:
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            found = [value for key, value in pairs if key.value == str(step)]
            if isinstance(node, yaml.SequenceNode) and str(step).isdigit() and int(step) < len(node.value):
                found = [node.value[int(step)]]
            if not found:
                raise Refused(f"there is no {name}", "a path that is there; add a key by a patch")
            node = found[-1]
        end = node.end_mark.index
        while end > node.start_mark.index and text[end - 1] in " \n\r\t":
            end -= 1  # a block ends where the next key begins; the line end before it stays
        before = "" if text[: node.start_mark.index].endswith(" ") else " "
        return node.start_mark.index, end, before

    return edited(path, text, yaml.safe_load, span, wanted, was)
