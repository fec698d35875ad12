"""The journal's folder: where its files lie, on which file system, who holds it, and what is kept in reserve.

Nothing here knows a table.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from agent.errors import JournalError

DATABASE = "journal.db"
POINTER = "journal.path"
"""In a run's folder on a network file system: where on this machine the database lies."""
RUN_FOLDER = re.compile(r"\d{8}-\d{6}-.+-([0-9a-f]{8})")
"""How `agent run` names the folder of a run: with the beginning of its campaign's id last."""
BALLAST_BYTES = 8 * 1024 * 1024
_MOUNTS = Path("/proc/self/mountinfo")
_REMOTE = {"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph", "lustre", "gpfs"}


def locate(path: Path) -> Path:
    """Return the database file of a journal that is named by its file or by its run's folder.

    Where the folder is on a network file system, a pointer in it says on which local disk the database lies. Where
    that is not (another machine), the copy that the last session left in the folder is meant.
    """
    if path.suffix == ".db" and not path.is_dir():
        return path
    here = path / DATABASE
    try:
        there = Path((path / POINTER).read_text().strip())
    except (OSError, ValueError):
        return here
    return there if there.is_absolute() and (there.is_file() or not here.is_file()) else here


def place(folder: Path) -> Path:
    """Choose where a new run's database lies: in its folder, or with a pointer there on a local disk of this machine.

    A writer needs locks and syncs that hold, and those of network file systems do not. Raises JournalError E_JOURNAL_FS
    when there is no local disk to be had.
    """
    if not remote_kind(folder):
        return folder / DATABASE
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "agent"
    for root in (state, Path("/var/tmp") / f"agent-{os.getuid()}"):  # noqa: S108 - a folder of ours, closed to others
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            ours = root.stat().st_uid == os.getuid() and not root.is_symlink()
            if not ours or remote_kind(root):
                continue
            there = root / "journals" / folder.name
            there.mkdir(mode=0o700, parents=True)
        except OSError:
            continue
        write_durable(folder / POINTER, f"{(there / DATABASE).absolute()}\n".encode())
        return there / DATABASE
    refuse_remote(folder)
    raise unwritable(folder, OSError(errno.EROFS, "no local disk was found for the journal"))


def file_system(folder: Path, mounts: str) -> str:
    """Return the type of the file system that holds ``folder``, from the text of /proc/self/mountinfo; '' = unknown."""
    place, best, found = str(folder.resolve()), -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        root = fields[4]
        for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
            root = root.replace(code, char)
        inside = root == "/" or place == root or place.startswith(root + "/")
        # A later mount on the same place hides the earlier one.
        if inside and len(root) >= best:
            best, found = len(root), right.split(" ")[0]
    return found


def remote_kind(folder: Path) -> str:
    """Return the network or FUSE file system that ``folder`` is on; '' for a local disk, and when that is not known."""
    try:
        kind = file_system(folder, _MOUNTS.read_text(errors="surrogateescape"))
    except OSError:
        return ""
    return kind if kind in _REMOTE or kind.startswith("fuse") else ""


def refuse_remote(folder: Path) -> None:
    """Raise JournalError E_JOURNAL_FS where locks and syncs cannot be trusted: network and FUSE file systems."""
    if kind := remote_kind(folder):
        raise JournalError(
            f"{folder} is on {kind}; a journal that is being written needs a local disk (WAL, flock and fsync)",
            "choose a folder on a local disk (ext4, xfs, btrfs), and export the finished journal to this one",
            "E_JOURNAL_FS",
        )


def unwritable(folder: Path, error: OSError) -> JournalError:
    """Say that nothing can be written in a folder."""
    what = f"{folder}: nothing can be written there: {error.strerror}"
    return JournalError(what, "choose a folder of yours on a local disk", "E_JOURNAL_FS")


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durable(path: Path, data: bytes) -> None:
    """Put ``data`` under ``path`` so that after a crash there is all of it or nothing."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


class Lock:
    """The writer's lock on a run's folder: an flock held until ``release``; its text is for the message only."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.lock"
        try:
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unwritable(folder, error) from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._handle, 4096, 0)
            os.close(self._handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise JournalError(
                    f"{self.path}: cannot be locked: {error.strerror}",
                    "put the run's folder on a local disk",
                    "E_JOURNAL_FS",
                ) from error
            raise JournalError(
                f"{folder} is being written by {_holder(holder)}",
                "wait until it ends, or stop it; reading commands work meanwhile",
                "E_JOURNAL_LOCKED",
            ) from None
        text = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        with contextlib.suppress(OSError):  # a full disk spoils the message, not the lock
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, json.dumps(text).encode(), 0)

    def release(self) -> None:
        """Let the next writer in. The file stays: removing it would let two writers lock two files."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _holder(text: bytes) -> str:
    try:
        found: dict[str, Any] = json.loads(text)
        return f"pid {found['pid']} on {found['host']} since {found['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


class Reserve:
    """Disk space kept back, so that a full disk still leaves room to say so and to close in order."""

    def __init__(self, folder: Path) -> None:
        self.ballast = folder / "ballast"
        self.marker = folder / "journal.full"

    def fill(self) -> None:
        """Take the space; raise JournalError E_JOURNAL_FULL when it is not there."""
        try:
            with self.ballast.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
                else:  # pragma: no cover - macOS
                    file.write(bytes(BALLAST_BYTES))
        except OSError as error:
            self.drop()
            raise JournalError(
                f"{self.ballast.parent}: no room for a reserve of {BALLAST_BYTES // 2**20} MiB ({error.strerror})",
                "free some space there (a campaign writes some tens of MiB), then resume",
                "E_JOURNAL_FULL",
            ) from error
        self.marker.unlink(missing_ok=True)

    def drop(self) -> None:
        """Give the space back."""
        with contextlib.suppress(OSError):
            self.ballast.unlink(missing_ok=True)

    def mark(self, text: dict[str, Any]) -> None:
        """Give the space back and leave one note of why writing stopped. Tried once."""
        self.drop()
        with contextlib.suppress(OSError):
            write_durable(self.marker, json.dumps(text).encode())
