"""Whole trees that are changed and put back: a checkout of git, an installed package."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.changing import Host, state


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Give a host."""
    return Host(tmp_path / "host")


def git(repo: Path, *words: str) -> str:
    """Run git as somebody with a name."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *who, "-C", str(repo), *words], check=True, capture_output=True, text=True).stdout


def test_a_commit_is_checked_out_and_the_branch_is_back(host: Host, tmp_path: Path) -> None:
    """Refused on a tree with changes; afterwards the same branch at the same commit."""
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "work")
    for text in ("one", "two"):
        (repo / "f").write_text(text)
        git(repo, "add", "f")
        git(repo, "commit", "-qm", text)
    first, head = git(repo, "rev-parse", "HEAD~1").strip(), git(repo, "rev-parse", "HEAD").strip()
    spec = {"kind": "git", "repo": str(repo), "checkout": "HEAD~1"}
    (repo / "f").write_text("mine")
    assert "not committed" in host.apply(spec)[2]["refused"]
    (repo / "f").write_text("two")
    key, status, answer = host.apply(spec)
    assert status == 0, answer
    assert (answer["files"][0]["before"], answer["files"][0]["after"]) == (head, first)
    assert (repo / "f").read_text() == "one"
    assert host.run(host.job(), "look", key)[1]["files"][0]["is"] == "ours"
    assert host.revert(key)[0] == 0
    assert git(repo, "symbolic-ref", "HEAD").strip() == "refs/heads/work"
    assert git(repo, "rev-parse", "HEAD").strip() == head
    assert "no nothing" in host.apply({**spec, "checkout": "nothing"})[2]["refused"]


def wheel(folder: Path, version: str, extra: str) -> None:
    """Make a wheel of a small package."""
    files = {
        "tinyengine/__init__.py": f"VERSION = {version!r}\n",
        f"tinyengine/{extra}.py": "X = 1\n",
        f"tinyengine-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: tinyengine\nVersion: {version}\n",
        f"tinyengine-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in files) + f"tinyengine-{version}.dist-info/RECORD,,\n"
    with zipfile.ZipFile(folder / f"tinyengine-{version}-py3-none-any.whl", "w") as archive:
        for name, text in {**files, f"tinyengine-{version}.dist-info/RECORD": record}.items():
            archive.writestr(name, text)


@pytest.mark.real
def test_a_package_gets_another_version_and_its_files_back(host: Host, tmp_path: Path) -> None:
    """In a real virtual environment with the real pip: the files of the former version are the very same again."""
    env, wheels = tmp_path / "env", tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "1.0", "old")
    wheel(wheels, "2.0", "new")
    subprocess.run([sys.executable, "-m", "venv", str(env)], check=True, timeout=120)
    python = env / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--no-index", "--find-links", wheels, "--disable-pip-version-check"]
    subprocess.run([*pip, "tinyengine==1.0"], check=True, timeout=120)

    def tree() -> dict[str, Any]:
        return {
            str(path.relative_to(env)): state(path)
            for path in sorted(env.rglob("tinyengine*/**/*"))
            if path.is_file() and path.suffix != ".pyc"
        }

    before = tree()
    spec = {"kind": "package", "python": str(python), "name": "tinyengine", "version": "2.0", "wheels": str(wheels)}
    assert "no virtual environment" in host.apply({**spec, "python": "/usr/bin/python3"})[2]["refused"]
    key, status, answer = host.apply(spec)
    assert status == 0, answer
    assert any(name.endswith("new.py") for name in tree())
    assert host.revert(key)[0] == 0
    assert tree() == before
    _, status, answer = host.apply({**spec, "version": "3.0"})
    assert status == 3
    assert tree() == before, "an installation that failed is taken back"
