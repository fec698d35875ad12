"""Which engine is there: versions of its packages, the state of its source tree, keys of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import re2 as re

from ..actions import Section
from ..observations import SectionResult
from ..values import is_count
from .files import name_of
from .shell import limited, quote, section

_VERSIONS = (
    "import importlib.metadata as m,importlib.util as u,sys\n"
    "print('python',sys.version.split()[0])\n"
    "for n in sys.argv[1:]:\n"
    " try: print('package',n,m.version(n))\n"
    " except Exception: print('package',n,'-')\n"
    "try: print('source',(u.find_spec(sys.argv[1].replace('-','_')) or 0).origin)\n"
    "except Exception: print('source -')\n"
)
_ALONGSIDE = ("torch", "transformers", "flashinfer-python", "nvidia-nccl-cu12")
KEYS_MAX = 20_000


def engine_section(package: str, python: str = "python3") -> Section:
    """Return the section with versions as that interpreter sees them, and the commit of the source they come from."""
    words = " ".join(quote(word) for word in (package, *_ALONGSIDE))
    git = 'git -C "$d" -c safe.directory="*"'
    return section(
        f"engine:{package}",
        f"o=$({limited(15, quote(python))} -c {quote(_VERSIONS)} {words} 2>&1); r=$?; printf '%s\\n' \"$o\"; "
        "f=$(printf '%s\\n' \"$o\" | sed -n 's/^source //p'); d=$(dirname \"$f\"); "
        f'if [ -d "$d" ] && c=$({git} rev-parse HEAD 2>/dev/null); then '
        f'echo "commit $c"; echo "changes $({limited(10, git)} status --porcelain -uno 2>/dev/null | wc -l)"; fi; '
        "[ ! -r /proc/driver/nvidia/version ] || sed -n '1s/^/driver /p' /proc/driver/nvidia/version; "
        "echo =end; exit $r",
        timeout_s=40.0,
    )


@dataclass(frozen=True)
class EngineFacts:
    """What is installed. '' and None: not known."""

    versions: dict[str, str] = field(default_factory=dict)
    python: str = ""
    source: str = ""
    commit: str = ""
    changes: int | None = None
    """Files of the source tree that differ from its commit."""
    driver: str = ""


def read_engine(result: SectionResult | None) -> EngineFacts | None:
    """Read the section; None when the interpreter did not answer."""
    if result is None or result.status != 0 or "=end" not in result.out.split("\n"):
        return None
    versions: dict[str, str] = {}
    words: dict[str, str] = {}
    for line in result.out.split("\n"):
        match line.split():
            case ["package", name, version] if version != "-":
                versions[name] = version[:80]
            case [("python" | "source" | "commit" | "changes") as key, value]:
                words.setdefault(key, value)
            case ["driver", *rest]:
                number = re.search(r"\b(\d{3}\.\d{2,3}(?:\.\d{2})?)\b", " ".join(rest))
                words.setdefault("driver", number[1] if number else "")
    if "python" not in words:
        return None
    changes = words.get("changes", "")
    commit = words.get("commit", "")
    return EngineFacts(
        versions=versions,
        python=words["python"],
        source="" if words.get("source") in (None, "-", "None") else words["source"],
        commit=commit if re.fullmatch(r"[0-9a-f]{40,64}", commit) else "",
        changes=int(changes) if is_count(changes) else None,
        driver=words.get("driver", ""),
    )


def installed(sections: Mapping[str, SectionResult], package: str) -> str:
    """Return the version of a package by the look that asked for it; '' when none did, or it is not there."""
    facts = read_engine(sections.get(f"engine:{package}"))
    return facts.versions.get(package, "") if facts is not None else ""


# ---------------------------------------------------------------- flags


def flags_section(command: Sequence[str], words: Sequence[str], env: Mapping[str, str], cwd: str = "") -> Section:
    """Return the section with every flag that the server itself lists when it is asked for help.

    It imports the whole engine for that, which takes seconds; nothing is loaded and no port is opened.
    """
    line = " ".join(quote(word) for word in (*command, *words))
    given = " ".join(f"{quote(f'{name}={value}')}" for name, value in env.items())
    place = f"cd {quote(cwd)} && " if cwd else ""
    return section(
        "flags",
        f"o=$({place}{limited(100, 'env')} {given} {line} 2>&1); r=$?; "
        "printf '%s\\n' \"$o\" | grep -oE '(^|[^A-Za-z0-9_-])--?[A-Za-z][A-Za-z0-9_-]*' | sed 's/^[^-]//' | sort -u; "
        "printf '%s\\n' \"$o\" | tail -n 3 | sed 's/^/=tail /'; echo \"=end $r\"",
        timeout_s=110.0,
    )


def read_flags(result: SectionResult | None) -> tuple[frozenset[str], int, str] | None:
    """Read the section: flags without dashes and with dashes inside, the status, the last words; None if cut off."""
    match = re.search(r"(?m)^=end (\d{1,3})$", result.out) if result is not None else None
    if result is None or match is None:
        return None
    lines = result.out.split("\n")
    found = {line.lstrip("-").replace("_", "-") for line in lines if re.fullmatch(r"--?[A-Za-z][A-Za-z0-9_-]*", line)}
    last = " ".join(line[6:].strip() for line in lines if line.startswith("=tail "))
    return frozenset(found), int(match[1]), last


# ---------------------------------------------------------------- weights


def weights_name(path: str) -> str:
    """Return the name of the section that concerns the checkpoint at ``path``."""
    return "weights" + name_of(path).removeprefix("file")


def weights_section(path: str) -> Section:
    """Return the section with the names of all tensors of a checkpoint: from its headers, not one weight is read.

    A safetensors file begins with the length of its header in eight bytes, then the header as JSON.
    """
    word = quote(path if path.startswith("/") else f"./{path}")
    return section(
        weights_name(path),
        f'f={word}; [ -e "$f" ] || {{ echo =absent; exit 0; }}; if [ -d "$f" ]; then set -- "$f"/*.safetensors; '
        'else set -- "$f"; fi; for s in "$@"; do [ -f "$s" ] || continue; '
        'n=$(od -An -t u8 -N 8 "$s" | tr -d " "); case "$n" in ""|*[!0-9]*) n=0;; esac; '
        'if [ "$n" -lt 2 ] || [ "$n" -gt 104857600 ]; then echo "=odd ${s##*/}"; continue; fi; echo "=shard ${s##*/}"; '
        'tail -c +9 "$s" | head -c "$n" | tr -d "\\n" | '
        'grep -aoE \'"([^"\\\\]|\\\\.)*" *: *\\{ *"dtype" *: *"[A-Z0-9_]+" *, *"shape" *: *\\[[0-9, ]*\\]\' | '
        'sed -E \'s/^"(([^"\\\\]|\\\\.)*)" *: *\\{ *"dtype" *: *"([A-Z0-9_]+)".*\\[([0-9, ]*)\\]$/\\3 [\\4] \\1/\'; '
        f"done | head -n {KEYS_MAX}; echo; echo =end",
        timeout_s=60.0,
    )


@dataclass(frozen=True)
class Weights:
    """What a checkpoint holds: type and shape by name."""

    exists: bool
    tensors: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    shards: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    """Files whose header cannot be read."""
    complete: bool = True


def read_weights(result: SectionResult | None) -> Weights | None:
    """Read the section; None when it did not come to its end."""
    if result is None or result.status is None:
        return None
    lines = result.out.rstrip("\n").split("\n")
    if lines == ["=absent"]:
        return Weights(exists=False)
    if lines[-1] != "=end":
        return None
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    shards: list[str] = []
    odd: list[str] = []
    for line in lines[:-1]:
        if line.startswith("=shard "):
            shards.append(line[7:])
        elif line.startswith("=odd "):
            odd.append(line[5:])
        elif match := re.fullmatch(r"([A-Z0-9_]+) \[([0-9, ]*)\] (.+)", line):
            numbers = tuple(int(part) for part in match[2].replace(" ", "").split(",") if part)
            tensors[match[3]] = (match[1], numbers)
    return Weights(True, tensors, tuple(shards), tuple(odd), complete=len(lines) <= KEYS_MAX)
