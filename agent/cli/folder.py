"""Run folders: ``runs/<stamp>-<playbook>-<id>/`` with journal, blobs, orders and log, and how a run is named."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import NamedTuple

RUNS = "runs"
UNBEGUN = "nothing was recorded, its start was killed: the folder can be taken away"


class RunFolder(NamedTuple):
    """One run's place on disk."""

    path: Path

    @property
    def journal(self) -> Path:
        """The database: here, or on a local disk when this folder is on a network file system."""
        from agent.journal.files import locate

        return locate(self.path)

    @property
    def orders(self) -> Path:
        """Where other terminals put orders."""
        return self.path / "orders"

    @property
    def log(self) -> Path:
        """JSON lines of what the program did; never the only record of anything."""
        return self.path / "agent.log"

    @property
    def files(self) -> Path:
        """Files that the playbook brought, by digest."""
        return self.path / "files"

    @property
    def id(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def words(self) -> str:
        """The run as a command takes it: its name and, where it does not lie in ``runs``, where it lies."""
        return self.id if self.path.parent == Path(RUNS) else f"{self.id} --runs {quote(str(self.path.parent))}"


def create(root: Path, playbook: str, campaign: str) -> RunFolder:
    """Make the folder of a new run."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = RunFolder(root / f"{stamp}-{playbook}-{campaign[:8]}")
    folder.orders.mkdir(parents=True)
    folder.files.mkdir()
    return folder


def all_runs(root: Path) -> list[RunFolder]:
    """Return every run below ``root``, newest last; a folder that is not there yet has none."""
    if not root.is_dir():
        if root.exists():
            from agent.errors import AgentError, Exit

            raise AgentError(f"{root} is no folder", "--runs DIR names the folder of runs", "E_RUNS", exit=Exit.USAGE)
        return []
    return [RunFolder(path) for path in sorted(root.iterdir()) if path.is_dir() and RunFolder(path).journal.is_file()]


def unrecorded(root: Path) -> dict[str, str]:
    """Return folders below ``root`` that are named as runs and have no journal, each with what that means."""
    from agent.journal.anchors import anchors_file, read_anchors
    from agent.journal.files import RUN_FOLDER

    own, found = anchors_file(), dict[str, str]()
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        named = RUN_FOLDER.fullmatch(path.name)
        if named is None or not path.is_dir() or RunFolder(path).journal.is_file():
            continue
        anchors = read_anchors(own) if own.is_file() else []
        known = max((anchor.seq for anchor in anchors if anchor.campaign.startswith(named[1])), default=0)
        found[path.name] = (
            f"its journal is gone, which had {known} entries: put journal.db and journal.db-wal back"
            if known
            else UNBEGUN
        )
    return found


def began(run: RunFolder) -> bool:
    """Whether anything was recorded, as far as can be told; a folder whose start failed at once is no run."""
    from agent.cli.rows import read_row
    from agent.journal.anchors import anchors_file, read_anchors

    row = read_row(run.journal, run.id)
    if row["entries"] or (row["condition"].startswith("unreadable") and run.journal.stat().st_size):
        return True
    own = anchors_file()
    anchors = read_anchors(own) if own.is_file() else []
    return any(run.id.endswith(anchor.campaign[:8]) for anchor in anchors)


def to_resume(run: RunFolder) -> bool:
    """Whether a run can be gone on with."""
    from agent.cli.rows import read_row

    return began(run) and read_row(run.journal, run.id)["state"] not in ("done", "failed")


def find(root: Path, name: str, wanted: Callable[[RunFolder], bool] = began) -> RunFolder:
    """Return the run that ``name`` says: a path, a name, its end, its campaign id, or ``last``.

    The last one is the newest that is ``wanted``, and where none is, the newest of all.
    """
    from agent.errors import AgentError, Exit

    path = Path(name)
    if path.name == "journal.db":
        path = path.parent
    if path.is_dir() and RunFolder(path).journal.is_file():
        return RunFolder(path)
    runs = all_runs(root)
    if name in ("last", "latest") and runs:
        return next((run for run in reversed(runs) if wanted(run)), runs[-1])
    found = [run for run in runs if name in run.id]
    if len(found) == 1:
        return found[0]
    known = ", ".join(run.id for run in (found or runs)[-5:])
    what = f"{len(found)} runs match {name!r}" if found else f"no run {name!r} in {root}/"
    raise AgentError(
        what, f"known: {known}" if known else "start one with `agent run PLAYBOOK`", "E_RUN", exit=Exit.USAGE
    )


@contextlib.contextmanager
def undone(dest: Path, *, made: bool = False) -> Iterator[None]:
    """Take away what was made at ``dest`` when making it fails; folders above it that were not there go if empty.

    ``made``: it was made just now, and nothing of anybody else's is in it.
    """
    blobs = dest.parent / "blobs" if dest.suffix == ".db" else dest / "blobs"
    own = [dest] if made else [path for path in (dest, blobs) if not path.exists()]
    above = [path for path in dest.parents if not path.exists()]
    try:
        yield
    except BaseException:
        for path in own:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            for path in above:
                path.rmdir()
        raise


def give_order(run: RunFolder, order: dict[str, object]) -> Path:
    """Put an order into the run's folder, whole or not at all."""
    import json
    import secrets

    run.orders.mkdir(exist_ok=True)
    name = f"{time.time_ns()}-{secrets.token_hex(4)}.json"
    part = run.orders / f".{name}.part"
    part.write_text(json.dumps(order))
    part.rename(run.orders / name)
    return run.orders / name


def holder(run: RunFolder) -> int | None:
    """Return the pid of the process that writes the run's journal, or None."""
    import fcntl

    lock = run.journal.parent / "journal.lock"
    if not lock.is_file():
        return None
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            words = lock.read_text(errors="replace").replace("=", " ").replace(",", " ").split()
            numbers = [int(word) for word in words if word.isdigit()]
            return numbers[0] if numbers else 0
    return None


def remembered(run: RunFolder) -> Path | None:
    """Return the ssh configuration that the run was started with."""
    note = run.path / "ssh_config.path"
    return Path(note.read_text().strip()) if note.is_file() else None
