"""What is modified on a host now, by whomever: trees against their commit, packages against their RECORD. Read-only."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..actions import Section
from ..observations import SectionResult
from .shell import limited, quote, section

LISTED = 20
"""Files of one package or tree that are named; the others are counted."""

_RECORD = """import base64,csv,hashlib,importlib.metadata as m,io,json,os,sys
try: d=m.distribution(sys.argv[1])
except m.PackageNotFoundError: print(json.dumps({})); sys.exit()
bad=[]; n=0
for path,spec,size in csv.reader(io.StringIO(d.read_text('RECORD') or '')):
    kind,_,want=spec.partition('=')
    if not want or kind not in hashlib.algorithms_available: continue
    n+=1; p=os.path.normpath(str(d.locate_file(path)))
    try: have=base64.urlsafe_b64encode(hashlib.new(kind,open(p,'rb').read()).digest()).rstrip(b'=').decode()
    except OSError: have=''
    if have!=want: bad.append(p+('' if have else ' (gone)'))
print(json.dumps({'version':d.version,'checked':n,'differ':len(bad),'named':bad[:20],
    'editable':'dir_info' in (d.read_text('direct_url.json') or '')}))
"""


@dataclass(frozen=True)
class Against:
    """A package against its RECORD, or a tree against its commit: what it is, and which files differ."""

    what: str
    checked: int | None
    """Files with a digest in RECORD; None for a tree."""
    differ: int
    named: tuple[str, ...]


def record_section(package: str, python: str) -> Section:
    """Return the section that compares every file of an installed package with the digest it was installed with."""
    return section(
        f"record:{package}",
        f"{limited(60, quote(python))} -I -c {quote(_RECORD)} {quote(package)}",
        timeout_s=70.0,
    )


def read_record(package: str, result: SectionResult | None) -> Against | None:
    """Read the section; None when that interpreter has no such package, or does not tell."""
    if result is None or result.status != 0:
        return None
    try:
        found = json.loads(result.out)
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(found, dict)
        or not isinstance(found.get("checked"), int)
        or not isinstance(found.get("differ"), int)
    ):
        return None
    named = tuple(str(name) for name in found.get("named") or ())[:LISTED]
    return Against(f"{package} {found.get('version')}", found["checked"], found["differ"], named)


def tree_section(folder: str) -> Section:
    """Return the section with the commit of the repository that holds a folder, and what differs from it."""
    git = 'git -c safe.directory="*" -C "$f"'
    return section(
        f"tree:{folder}",
        f'f={quote(folder)}; [ -d "$f" ] || f=$(dirname "$f"); r=$({git} rev-parse --show-toplevel 2>/dev/null) || '
        f'{{ echo =none; exit 0; }}; echo "=root $r"; echo "=head $({git} rev-parse HEAD)"; '
        f"f=$r; {limited(15, git)} status --porcelain --untracked-files=no; echo =end",
        timeout_s=30.0,
    )


def read_tree(result: SectionResult | None) -> Against | None:
    """Read the section; None when no repository holds the folder, or nothing is known."""
    if result is None or result.status != 0 or "=end" not in result.out.split("\n"):
        return None
    lines = result.out.split("\n")
    root = next((line[6:] for line in lines if line.startswith("=root ")), "")
    head = next((line[6:] for line in lines if line.startswith("=head ")), "")
    files = [line[3:] for line in lines if line[:1] != "=" and line.strip()]
    return Against(f"{root} at {head[:12]}", None, len(files), tuple(files[:LISTED]))
