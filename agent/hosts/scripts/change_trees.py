"""Changes of whole trees: the commit of a git repository, the version of a package. Part of ``change.py``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from change_files import JOB, Refused, keep, now, sha


def run(*words: str, timeout: float = 120) -> tuple[int, str]:
    """Run a command; return its status and what it said."""
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False
    )
    return done.returncode, done.stdout.decode("utf-8", "backslashreplace").strip()


def git(repo: str, *words: str) -> tuple[int, str]:
    """Run git in a repository, with no hook of its own."""
    return run("git", "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-C", repo, *words)


def git_facts(repo: str) -> dict[str, str]:
    """Return the commit and the branch ('' = detached)."""
    status, head = git(repo, "rev-parse", "HEAD")
    if status:
        raise Refused(f"{repo} is no git repository: {head[:200]}", "a repository")
    named, branch = git(repo, "symbolic-ref", "-q", "HEAD")
    return {"head": head, "branch": branch if not named else ""}


def git_dirty(repo: str) -> str:
    """Return the tracked files that differ from the commit."""
    return git(repo, "status", "--porcelain", "--untracked-files=no")[1]


def git_change(spec: dict[str, Any], dry: bool) -> list[dict[str, Any]]:
    """Check out a commit of a clean tree."""
    repo = os.path.realpath(spec["repo"])
    before = git_facts(repo)
    status, after = git(repo, "rev-parse", "--verify", "--quiet", spec["checkout"] + "^{commit}")
    if status:
        raise Refused(f"{repo} has no {spec['checkout']}", "a commit, tag or branch that is there")
    files = [{"path": repo, "before": before["head"], "after": after}]
    if before["head"] != after and git_dirty(repo):
        raise Refused(f"{repo} has changes that are not committed: {git_dirty(repo)[:200]}", "a clean tree")
    if not dry and before["head"] != after:
        keep("change.json", json.dumps({"kind": "git", "repo": repo, "before": before, "after": after}).encode())
        status, said = git(repo, "checkout", "--quiet", "--detach", after)
        if status:
            raise Refused("git checkout: " + said[:300], "a checkout")
    return files


def git_revert(record: dict[str, Any]) -> str | None:
    """Go back to the commit and branch of before; return what is in the way."""
    repo, before = record["repo"], record["before"]
    head = git_facts(repo)["head"]
    if head == before["head"]:
        if not before["branch"]:
            return None
    elif head != record["after"]:
        return f"{repo} is at {head[:12]}, neither before nor after our change"
    elif git_dirty(repo):
        return f"{repo} has changes that are not committed: {git_dirty(repo)[:200]}"
    name = before["branch"][len("refs/heads/") :]
    if name and git(repo, "rev-parse", before["branch"])[1] != before["head"]:
        return f"{repo}: the branch {name} is no longer at {before['head'][:12]}"
    status, said = git(repo, "checkout", "--quiet", *([name] if name else ["--detach", before["head"]]))
    return "git checkout: " + said[:300] if status else None


INSTALLED = """import importlib.metadata as m, json, os, sys
try: d = m.distribution(sys.argv[1])
except m.PackageNotFoundError: d = None
files = sorted({os.path.normpath(str(d.locate_file(f))) for f in d.files or ()}) if d else []
editable = bool(d) and "dir_info" in (d.read_text("direct_url.json") or "")
print(json.dumps({"venv": sys.prefix != sys.base_prefix, "prefix": sys.prefix, "editable": editable,
                  "version": d.version if d else None, "files": [f for f in files if os.path.isfile(f)]}))"""


def installed(spec: dict[str, Any]) -> dict[str, Any]:
    """Return what the environment says of the package: version, files, whether it is a virtual one."""
    status, said = run(spec["python"], "-I", "-c", INSTALLED, spec["name"])
    if status:
        raise Refused(f"{spec['python']} does not answer: {said[-200:]}", "the Python of a virtual environment")
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def tree_digest(files: list[str]) -> str:
    """Return one digest of a package: of the names and contents of its files."""
    lines = [f"{now(path)} {path}\n" for path in files if not path.endswith(".pyc")]
    return str(sha("".join(sorted(lines)).encode()))


def package_change(spec: dict[str, Any], dry: bool) -> list[dict[str, Any]]:
    """Install another version of a package; all files of the one that was there are kept first."""
    before = installed(spec)
    if not before["venv"]:
        raise Refused(spec["python"] + " is no virtual environment", "an environment of its own, not the system's")
    if before["version"] is None:
        raise Refused(f"{spec['name']} is not installed there", "a package whose version is to change")
    if before["editable"]:
        raise Refused(spec["name"] + " is an editable install", "a `git` change of its repository")
    same = before["version"] == spec["version"]
    digest = tree_digest(before["files"])
    name = f"{spec['name']} in {before['prefix']}"
    if dry or same:
        return [{"path": name, "before": digest, "after": digest if same else None}]
    outside = [path for path in before["files"] if not path.startswith(before["prefix"] + os.sep)]
    if outside:
        raise Refused(f"{spec['name']} has files outside of its environment: {outside[0]}", "none")
    kept = os.path.join(JOB, "kept")
    os.mkdir(kept, 0o700)
    for path in before["files"]:
        copy = os.path.join(kept, os.path.relpath(path, before["prefix"]))
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copy2(path, copy)
    record = {"kind": "package", "spec": spec, "prefix": before["prefix"], "before": digest,
              "version": before["version"], "after": None}  # fmt: skip
    keep("change.json", json.dumps(record).encode())
    where = ["--no-index", "--find-links", spec["wheels"]] if spec.get("wheels") else []
    pip = [spec["python"], "-m", "pip", "install", "--quiet", "--no-deps", "--no-input", "--disable-pip-version-check"]
    status, said = run(*pip, *where, f"{spec['name']}=={spec['version']}", timeout=1500)
    found = installed(spec)
    if status or found["version"] != spec["version"]:
        package_revert(record, kept)
        raise Refused("pip: " + said[-400:], "version " + spec["version"])
    record["after"] = tree_digest(found["files"])
    keep("change.json", json.dumps(record).encode())
    return [{"path": name, "before": digest, "after": record["after"]}]


def package_revert(record: dict[str, Any], kept: str) -> str | None:
    """Put the files of the former version back; return what is in the way."""
    found = installed(record["spec"])
    if record["after"] and tree_digest(found["files"]) not in (record["after"], record["before"]):
        return f"{record['spec']['name']} was changed by somebody else since"
    folders = set()
    for path in found["files"]:
        if path.startswith(record["prefix"] + os.sep):
            os.unlink(path)
            folders.add(os.path.dirname(path))
    for folder, _, names in os.walk(kept):
        place = os.path.join(record["prefix"], os.path.relpath(folder, kept))
        os.makedirs(place, exist_ok=True)
        for name in names:
            shutil.copy2(os.path.join(folder, name), os.path.join(place, name))
    for folder in sorted(folders, key=len, reverse=True):
        shutil.rmtree(os.path.join(folder, "__pycache__"), ignore_errors=True)
        if os.path.isdir(folder) and not os.listdir(folder):
            os.rmdir(folder)
    if tree_digest(installed(record["spec"])["files"]) != record["before"]:
        return f"{record['spec']['name']} is not what it was"
    return None
