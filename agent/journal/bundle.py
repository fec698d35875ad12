"""A run in one file, to be handed to somebody else: journal, blobs, playbook, report, heads, and their checksums.

The file is a gzipped tar of one folder with plain files, the same bytes for the same content. ``SHA256SUMS`` in it can
be checked by ``sha256sum -c``. Importing trusts nothing: names, sizes, checksums and the journal itself are checked
before the run gets its place, and what follows from the journal is made anew from it. Checksums and chain show that a
bundle agrees with itself; who packed it could have packed another record, which only heads from elsewhere can show.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.errors import JournalError

from .anchors import Anchor, anchors_file, read_anchor, read_anchors
from .export import export
from .files import DATABASE, locate, sync_folder
from .signing import HEAD
from .store import Journal
from .verify import CUT, OTHER, Report, verify

SUMS, ANCHORS, README, PLAYBOOK = "SHA256SUMS", "anchors.log", "README.txt", "playbook.yaml"
FILES_MAX = 100_000
BYTES_MAX = 16 * 1024**3
"""Of all files together, unpacked."""
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_MEMBER = re.compile(
    r"journal\.db|journal\.head(?:\.sig)?|blobs/[0-9a-f]{2}/[0-9a-f]{64}|files/[0-9a-f]{64}|playbook\.yaml|report\.(?:html|json)"
    rf"|{SUMS}|anchors\.log|README\.txt"
)
_TEXT = """\
A campaign of `agent`, in one folder.

  journal.db     the record: SQLite, append-only, hash-chained; open it with sqlite3 or Datasette
  blobs/         outputs too large for an entry, zlib, named by the SHA-256 of what is in them
  files/         files that the playbook brought, named by SHA-256
  playbook.yaml  the playbook as it was given
  report.html    the report, made when this was packed
  anchors.log    heads of the journal that were kept outside of it
  SHA256SUMS     sha256sum -c SHA256SUMS

Check it: agent audit FOLDER --anchors FOLDER/anchors.log
"""


@dataclass(frozen=True)
class Bundle:
    """What was packed or unpacked: the file or the run's folder, how many files, and the audit of the journal."""

    path: Path
    files: int
    report: Report
    heads: int = 0
    """How many heads of the run came with the bundle itself; the audit compared these and those from elsewhere."""


def pack(run: Path, dest: Path, extra: dict[str, bytes]) -> Bundle:
    """Pack the run in folder ``run`` into the file ``dest``, with further files such as report and playbook.

    The journal may be in use: what is packed is a copy that was audited. Codes: as for ``export``.
    """
    if dest.exists():
        raise JournalError(f"{dest} is there already", "name another file", "E_JOURNAL_EXISTS")
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=dest.parent) as temporary:
            folder = Path(temporary) / run.name
            journal = locate(run)
            report = export(journal, folder)
            anchors = anchors_file()
            heads = read_anchors(anchors, report.campaign) if anchors.is_file() else []
            texts = {README: _TEXT.encode(), ANCHORS: "".join(f"{head.line()}\n" for head in heads).encode(), **extra}
            for name, data in texts.items():
                (folder / name).write_bytes(data)
            for name in ("journal.head", "journal.head.sig"):
                if (journal.parent / name).is_file():
                    shutil.copy(journal.parent / name, folder / name)
            if (run / "files").is_dir():
                shutil.copytree(run / "files", folder / "files")
            names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
            known = [name for name in names if _MEMBER.fullmatch(name)]
            _write_sums(folder, known)
            part = Path(temporary) / "bundle"
            _tar(folder, [*known, SUMS], part, report)
            part.rename(dest)
            sync_folder(dest.parent)
    except OSError as error:
        what = f"{dest}: cannot be written: {error}"
        raise JournalError(what, "choose another place, or free space", "E_JOURNAL_IO") from error
    return Bundle(dest, len(names) + 1, report)


def _write_sums(folder: Path, names: list[str]) -> None:
    (folder / SUMS).write_text("".join(f"{_digest(folder / name)}  {name}\n" for name in names))


def _tar(folder: Path, names: list[str], part: Path, report: Report) -> None:
    with Journal.open_reader(folder / DATABASE) as journal:
        last = next(iter(journal.entries(max(1, report.seq))), None)
    stamp = last.wall_ns // 10**9 if last is not None else 0
    with (
        part.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in names:
            member = tarfile.TarInfo(f"{folder.name}/{name}")
            member.size, member.mtime, member.mode = (folder / name).stat().st_size, stamp, 0o644
            with (folder / name).open("rb") as content:
                tar.addfile(member, content)


def unpack(
    bundle: Path, runs: Path, derive: Callable[[Path], dict[str, bytes]], anchors: tuple[Path, ...] = ()
) -> Bundle:
    """Unpack a bundle into a new folder below ``runs``, once everything in it was found to be whole.

    ``anchors`` are files of heads that were kept elsewhere. ``derive`` returns by name the files that follow from the
    journal in a folder: its playbook must be the one in the bundle, the others take the place of the bundle's.
    Codes: E_BUNDLE (no bundle, or not what its checksums say), E_BUNDLE_OLD (it ends before a head from elsewhere),
    E_JOURNAL_EXISTS, E_JOURNAL_OTHER, E_JOURNAL_DAMAGED with the finding of the audit.
    """
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".import-", dir=runs) as temporary:
            folder = _extract(bundle, Path(temporary))
            dest = runs / folder.name
            if dest.exists():
                raise JournalError(f"{dest} is there already", "take that one away first", "E_JOURNAL_EXISTS")
            files = _check_sums(folder, bundle)
            heads = [folder / ANCHORS] if (folder / ANCHORS).is_file() else []
            own = verify(folder, anchors=heads)
            _hold(own, bundle)
            _one_run(folder, bundle, own)
            report = verify(folder, anchors=[*heads, *anchors]) if anchors else own
            _hold(report, bundle, alone=own)
            _follow(folder, bundle, derive(folder))
            (folder / "orders").mkdir(exist_ok=True)
            folder.rename(dest)
            sync_folder(runs)
    except OSError as error:
        raise JournalError(
            f"{bundle}: cannot be unpacked: {error}", "see the file and the folder", "E_BUNDLE"
        ) from error
    report.path = str(dest / DATABASE)
    return Bundle(dest, files, report, own.anchors)


def _hold(report: Report, bundle: Path, alone: Report | None = None) -> None:
    """Raise JournalError when a journal does not hold; ``alone``: the audit by what came with it found it whole."""
    if report.ok:
        return
    flaw = report.flaws[0]
    if alone is not None and flaw.finding == CUT:
        what = f"{bundle}: it has the run up to entry {report.seq}, and entry {flaw.seq} is known: {flaw.wanted}"
        remedy = "it was packed before that entry, or cut after it: have the run packed again; nothing was imported"
        raise JournalError(what, remedy, "E_BUNDLE_OLD", CUT)
    what = f"{bundle}: its journal does not hold: finding {flaw.finding} at entry {flaw.seq}: {flaw.found}"
    code = "E_JOURNAL_OTHER" if flaw.finding == OTHER else "E_JOURNAL_DAMAGED"
    raise JournalError(what, f"nothing was imported; wanted {flaw.wanted}", code, flaw.finding)


def _one_run(folder: Path, bundle: Path, report: Report) -> None:
    """Raise JournalError when a head in the bundle is of another run than its journal."""
    heads: list[Anchor] = read_anchors(folder / ANCHORS) if (folder / ANCHORS).is_file() else []
    if (folder / HEAD).is_file() and (signed := read_anchor((folder / HEAD).read_text(errors="replace"))) is not None:
        heads.append(signed)
    if other := [head for head in heads if head.campaign != report.campaign]:
        found = f"it is the journal of campaign {report.campaign}, beside heads of campaign {other[0].campaign}"
        report.add(OTHER, 0, found, "heads of the run that was packed")
        _hold(report, bundle)


def _follow(folder: Path, bundle: Path, derived: dict[str, bytes]) -> None:
    """Check the playbook against the one that was recorded, and write anew what else follows from the journal."""
    given = folder / PLAYBOOK
    if given.is_file() and given.read_bytes() != derived.get(PLAYBOOK):
        raise _bad(bundle, f"{PLAYBOOK} is not the playbook that its journal recorded")
    for name, data in derived.items():
        (folder / name).write_bytes(data)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    _write_sums(folder, [name for name in names if name != SUMS])


def _extract(bundle: Path, into: Path) -> Path:
    """Write the members out; anything but plain files of a known name, in one folder, is refused."""
    count, size, folders = 0, 0, set[str]()
    try:
        with tarfile.open(bundle, "r:gz") as tar:
            for member in tar:
                top, _, name = member.name.partition("/")
                count, size = count + 1, size + member.size
                if not member.isfile() or not _FOLDER.fullmatch(top) or not _MEMBER.fullmatch(name):
                    raise _bad(bundle, f"it holds {member.name[:200]!r}, which no bundle has")
                if count > FILES_MAX or size > BYTES_MAX:
                    raise _bad(bundle, f"more than {FILES_MAX:,} files or {BYTES_MAX:,} bytes")
                folders.add(top)
                path = into / top / name
                if path.exists():
                    raise _bad(bundle, f"{name} stands in it twice")
                path.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                with path.open("wb") as out:
                    shutil.copyfileobj(content, out)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _bad(bundle, str(error)) from error
    if len(folders) != 1:
        raise _bad(bundle, "it has not exactly one folder")
    return into / folders.pop()


def _check_sums(folder: Path, bundle: Path) -> int:
    listed = dict(_sums(folder, bundle))
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {SUMS}
    if odd := sorted(there ^ set(listed)):
        raise _bad(bundle, f"{odd[0]} is {'not listed in' if odd[0] in there else 'missing, but listed in'} {SUMS}")
    for name, wanted in listed.items():
        if _digest(folder / name) != wanted:
            raise _bad(bundle, f"{name} is not the file that was packed")
        if name.startswith("files/") and name != f"files/{wanted}":
            raise _bad(bundle, f"{name} has another SHA-256 than its name says: {wanted}")
    return len(there) + 1


def _sums(folder: Path, bundle: Path) -> Iterator[tuple[str, str]]:
    path = folder / SUMS
    if not path.is_file():
        raise _bad(bundle, f"it has no {SUMS}")
    for line in io.StringIO(path.read_text(errors="replace")):
        found = re.fullmatch(r"([0-9a-f]{64})  (.+)\n", line)
        if found is None or not _MEMBER.fullmatch(found[2]):
            raise _bad(bundle, f"a line of {SUMS} is no checksum")
        yield found[2], found[1]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bad(bundle: Path, what: str) -> JournalError:
    return JournalError(
        f"{bundle}: no whole bundle: {what}", "have it sent again; nothing was imported", "E_BUNDLE", 10
    )
