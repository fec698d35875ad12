"""Changes to files of a host that can be taken back exactly. Runs there as a job; standard library, Python 3.8.

``check SPEC`` is a dry run, ``apply SPEC`` carries it out, ``revert KEY…`` takes back what the jobs of these keys did
(newest first), ``look KEY…`` says how things stand now. Each prints one JSON document. Exit 0 = done, 3 = refused and
nothing was changed, 4 = some of it could not be taken back; anything else says nothing.

What is needed to go back is on disk, in the job's own folder and readable by its owner alone, before a file is
touched: ``change.json`` and one ``kept.N`` a file. A file is replaced in one step, by a rename in its own folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from typing import Any

from change_files import JOB, Refused, facts, fresh_name, keep, now, read, replace, sha, sync
from change_text import planned
from change_trees import git_change, git_facts, git_revert, installed, package_change, package_revert, tree_digest

WAIT_S = 60.0


def check(spec: dict[str, Any]) -> dict[str, Any]:
    """Say what a change would do; nothing is written."""
    if spec["kind"] in ("git", "package"):
        files = (git_change if spec["kind"] == "git" else package_change)(spec, True)
    else:
        files = [describe(path, before, after) for path, before, after in planned(spec)]
    return {"ok": True, "files": files, "same": all(item["before"] == item["after"] for item in files)}


def describe(path: str, before: bytes | None, after: bytes) -> dict[str, Any]:
    """Return a file with its digests before and after."""
    like = facts(path)
    if like is not None and like["names"] > 1:
        raise Refused(f"{path} has {like['names']} names: a change would part them", "a file with one name")
    return {"path": path, "before": None if before is None else sha(before), "after": sha(after)}


def apply(spec: dict[str, Any]) -> dict[str, Any]:
    """Carry a change out, all of it or nothing."""
    if os.path.exists(os.path.join(JOB, "change.json")):
        raise Refused("this job has made its change already", "a job of its own")
    if spec["kind"] == "git":
        return {"ok": True, "files": git_change(spec, False)}
    if spec["kind"] == "package":
        return {"ok": True, "files": package_change(spec, False)}
    work = planned(spec)
    files = [describe(*item) for item in work]
    for item in files:
        seen = (spec.get("seen") or {}).get(item["path"], item["before"])
        if seen != item["before"]:
            raise Refused(f"{item['path']} was changed by somebody else since the first look", str(seen)[:16])
    records = []
    for number, (path, before, _) in enumerate(work):
        if before is not None:
            keep(f"kept.{number}", before)
        like = facts(path) or {"mode": int(spec.get("mode") or "644", 8), "uid": os.geteuid(), "gid": os.getegid()}
        records.append(dict(files[number], **like))
    keep("change.json", json.dumps({"kind": "files", "files": records}).encode())
    try:
        for (path, before, after), record in zip(work, records):  # noqa: B905 - Python 3.8
            if before != after:
                replace(path, after, record)
            if now(path) != record["after"]:
                raise OSError(path + " does not read back as it was written")
    except OSError as error:
        left = [what for what in (put_back(JOB, n, record) for n, record in enumerate(records)) if what]
        if left:
            raise
        raise Refused(str(error), "a file that can be written") from None
    return {"ok": True, "files": files}


def put_back(folder: str, number: int, record: dict[str, Any]) -> str | None:
    """Take one file back; return what is in the way, None when it is as it was."""
    path = record["path"]
    half = os.path.join(os.path.dirname(path), fresh_name(os.path.basename(path), folder))
    if os.path.exists(half):
        os.unlink(half)  # the job ended while it wrote
    found = now(path)
    if record["before"] is None:
        if found is not None and found != record["after"]:
            return f"{path} was changed by somebody else since"
        if found is not None:
            os.unlink(path)
            sync(os.path.dirname(path))
        return None
    if found not in (record["before"], record["after"]):
        return f"{path} {'is gone' if found is None else 'was changed by somebody else since'}"
    like = facts(path) or {}
    if found == record["before"] and all(like[name] == record[name] for name in ("mode", "uid", "gid", "mtime_ns")):
        return None
    replace(path, read(os.path.join(folder, f"kept.{number}")), record, times=True)
    if now(path) != record["before"]:
        return f"{path} does not read back as it was"
    return None


def settle(folder: str) -> bool:
    """Wait until the job of this folder is over; one that never began can then begin no more."""
    os.makedirs(folder, 0o700, exist_ok=True)
    alive, until = os.path.join(folder, "alive"), time.monotonic() + WAIT_S
    while os.path.exists(alive):
        with open(alive, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
            except OSError:
                if time.monotonic() > until:
                    return False
        time.sleep(0.05)
    return True


def record_of(folder: str) -> Any:
    """Return what a job wrote down before it changed anything; None when it never came to that."""
    try:
        with open(os.path.join(folder, "change.json"), "rb") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def revert(*keys: str) -> dict[str, Any]:
    """Take back what these jobs did, in the order given; what somebody else changed since is left alone."""
    done: list[dict[str, Any]] = []
    left: list[dict[str, Any]] = []
    for key in keys:
        folder = os.path.join(os.path.dirname(os.path.abspath(JOB)), key)
        if not settle(folder):
            left.append({"job": key, "why": "the job that makes the change still runs"})
            continue
        record = record_of(folder)
        if record is None:
            faults, paths = [], []
        elif record["kind"] == "files":
            paths = [item["path"] for item in record["files"]]
            faults = [put_back(folder, number, item) for number, item in reversed(list(enumerate(record["files"])))]
        elif record["kind"] == "git":
            paths, faults = [record["repo"]], [git_revert(record)]
        else:
            paths, faults = [record["spec"]["name"]], [package_revert(record, os.path.join(folder, "kept"))]
        faults = [fault for fault in faults if fault]
        left += [{"job": key, "why": fault} for fault in faults]
        if not faults:
            done.append({"job": key, "paths": paths})
    return {"ok": not left, "reverted": done, "left": left}


def look(*keys: str) -> dict[str, Any]:
    """Say of each file that these jobs changed whether it is as before, as we made it, or something else."""
    found = []
    for key in keys:
        record = record_of(os.path.join(os.path.dirname(os.path.abspath(JOB)), key))
        for item in record["files"] if record and record["kind"] == "files" else ():
            is_now = now(item["path"])
            word = (
                "ours" if is_now == item["after"] else "as before" if is_now == item["before"] else "changed by others"
            )
            found.append({"job": key, "path": item["path"], "is": word if is_now or item["before"] is None else "gone"})
        if record and record["kind"] == "git":
            head = git_facts(record["repo"])["head"]
            word = {record["after"]: "ours", record["before"]["head"]: "as before"}.get(head, "changed by others")
            found.append({"job": key, "path": record["repo"], "is": word})
        if record and record["kind"] == "package":
            is_now = tree_digest(installed(record["spec"])["files"])
            word = {record["after"]: "ours", record["before"]: "as before"}.get(is_now, "changed by others")
            found.append({"job": key, "path": record["spec"]["name"], "is": word})
    return {"ok": True, "files": found}


def main(words: list[str]) -> int:
    """Carry out one verb and print its answer."""
    verb, rest = words[0], words[1:]
    try:
        if verb in ("check", "apply"):
            answers = []
            for text in rest:
                try:
                    answers.append((check if verb == "check" else apply)(json.loads(text)))
                except (Refused, OSError) as error:
                    if verb == "apply" and not isinstance(error, Refused):
                        raise
                    answers.append({"ok": False, "refused": str(error), "wanted": getattr(error, "wanted", "")})
            answer = answers[0] if verb == "apply" else {"ok": True, "changes": answers}
        else:
            answer = (revert if verb == "revert" else look)(*rest)
    except Refused as error:
        answer = {"ok": False, "refused": str(error), "wanted": error.wanted}
    sys.stdout.write(json.dumps(answer) + "\n")
    if answer["ok"]:
        return 0
    return 4 if verb == "revert" else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
