"""A folder that is a host to the script which changes files, and what a revert has to bring back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[2] / "agent" / "hosts" / "scripts"


class Host:
    """Folders of jobs, and the script run in one of them as its job."""

    def __init__(self, base: Path) -> None:
        self.base, self.count = base, 0

    def job(self, **files: str) -> Path:
        """Make a job's folder with the script and files in it."""
        self.count += 1
        folder = self.base / "runs" / f"k{self.count}"
        folder.mkdir(parents=True)
        for script in SCRIPTS.glob("change*.py"):
            (folder / script.name).write_bytes(script.read_bytes())
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        return folder

    def run(self, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
        """Run a verb; return status and answer."""
        env = {**os.environ, "AGENT_JOB": str(folder)}
        done = subprocess.run(
            [sys.executable, str(folder / "change.py"), *words], env=env, cwd=folder, capture_output=True, timeout=120
        )
        assert done.stdout, done.stderr.decode()
        return done.returncode, json.loads(done.stdout)

    def apply(self, spec: dict[str, Any], **files: str) -> tuple[str, int, dict[str, Any]]:
        """Apply a change in a job of its own; return the key, status and answer."""
        folder = self.job(**files)
        status, answer = self.run(folder, "apply", json.dumps(spec))
        return folder.name, status, answer

    def revert(self, *keys: str) -> tuple[int, dict[str, Any]]:
        """Take changes back."""
        return self.run(self.job(), "revert", *keys)


def state(path: Path) -> tuple[Any, ...] | None:
    """Return all that a revert promises: bytes, mode, owner, modification time."""
    if not path.exists():
        return None
    found = path.stat()
    return (path.read_bytes(), found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns)
