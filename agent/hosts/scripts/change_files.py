"""Files of a host, replaced in one step and put back exactly. Part of ``change.py``; Python 3.8, standard library."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any

JOB = os.environ.get("AGENT_JOB") or "."
SIZE_MAX = 64 << 20


class Refused(Exception):  # noqa: N818 - an answer, not an error of this program
    """The change does not fit what is there. ``wanted`` is what would."""

    def __init__(self, what: str, wanted: str = "") -> None:
        super().__init__(what)
        self.wanted = wanted


def sha(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def facts(path: str) -> dict[str, Any] | None:
    """Return what is to be the same again after a revert; None when there is no such file."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise Refused(path + " is no plain file", "a plain file")
    return {"mode": stat.S_IMODE(found.st_mode), "uid": found.st_uid, "gid": found.st_gid,
            "atime_ns": found.st_atime_ns, "mtime_ns": found.st_mtime_ns, "names": found.st_nlink}  # fmt: skip


def read(path: str) -> bytes:
    """Return a file's bytes; Refused when there are too many."""
    with open(path, "rb") as file:
        data = file.read(SIZE_MAX + 1)
    if len(data) > SIZE_MAX:
        raise Refused(f"{path} is larger than {SIZE_MAX >> 20} MiB", "a smaller file")
    return data


def now(path: str) -> str | None:
    """Return the digest of what is there; None when there is nothing."""
    return sha(read(path)) if facts(path) is not None else None


def sync(folder: str) -> None:
    """Put the names in a folder on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fresh_name(name: str, folder: str) -> str:
    """Return what a file is called while the job of this folder writes it."""
    return f".{name}.agent-{os.path.basename(os.path.abspath(folder))}"


def replace(path: str, data: bytes, like: dict[str, Any], times: bool = False) -> None:
    """Put ``data`` in the place of ``path`` in one step, with the owner, mode and attributes that ``like`` says."""
    folder, name = os.path.split(path)
    fresh = os.path.join(folder, fresh_name(name, JOB))
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if (like["uid"], like["gid"]) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), like["uid"], like["gid"])
            os.fchmod(file.fileno(), like["mode"])
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            for attribute in os.listxattr(path):
                os.setxattr(fresh, attribute, os.getxattr(path, attribute))
        if times:
            os.utime(fresh, ns=(like["atime_ns"], like["mtime_ns"]))
        os.replace(fresh, path)
    except BaseException:
        if os.path.exists(fresh):
            os.unlink(fresh)
        raise
    sync(folder)


def keep(name: str, data: bytes) -> None:
    """Write a file of the job's folder that only its owner can read; on disk when this returns."""
    path = os.path.join(JOB, name)
    handle = os.open(path + ".t", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".t", path)
    sync(JOB)
