"""What a campaign's numbers rest on beside its playbook: the engine, the driver, the model, the data on the host.

A look at them is made with the first probe and again at each resume; two looks are compared point by point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from posixpath import basename

import re2 as re

from ..actions import Section
from ..observations import SectionResult
from ..plan import Plan
from .engine import engine_section, read_engine
from .host import read_host
from .shell import quote, section

PATHS_MAX = 32
"""So many files and folders that the plan names are looked at."""
PACKAGES = {"sglang": "sglang", "vllm": "vllm"}
"""Kinds of servers that are Python packages; of another one the program itself counts."""

# A file counts by its size and its bytes, a large one by its first and last mebibyte: weights take minutes to read. A
# folder counts by the names and sizes of what lies in it and the bytes of what is small: configurations, tokenizers,
# the index of the weights. A name without a slash is a program, found as the shell would; a model of the Hugging Face
# hub counts by the commit that the host's cache has for it.
_LOOK = r"""
one() { n=$(wc -c <"$1" 2>/dev/null) || { echo unreadable; return; }
  if [ "$n" -le 4194304 ]; then cat "$1"; else echo "$n"; head -c 1048576 "$1"; tail -c 1048576 "$1"; fi 2>/dev/null; }
look() { p=$1
  case $p in */*) ;; *) p=$(command -v "$p" 2>/dev/null) || p=$1;; esac
  h=${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}/models--$(printf %s "$1" | sed 's|/|--|g')/refs/main
  if [ -f "$p" ]; then s=$(one "$p" | sha256sum); echo "path $1 file ${s%% *}"
  elif [ -d "$p" ]; then s=$(cd "$p" && find -L . -maxdepth 2 -type f | sort | head -n 2000 | while IFS= read -r f; do
      n=$(wc -c <"$f"); printf '%s %s\n' "$f" "$n"; [ "$n" -gt 4194304 ] || cat "$f"; done 2>/dev/null | sha256sum)
    echo "path $1 folder ${s%% *}"
  elif [ -f "$h" ]; then echo "path $1 commit $(head -c 64 "$h")"
  else echo "path $1 absent -"; fi; }
"""
_READ = re.compile(
    r"(?:^|[-_])(?:model|tokenizer|draft|lora|adapter|mmproj|template|config|weights|vocab|dataset|data|prompts?|input)s?"
    r"(?:[-_]|$)|^(?:m|md)$"
)
_WRITTEN = re.compile(r"output|result|log|cache|save|dump|export|download")
_HUB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def inputs_sections(plan: Plan) -> tuple[Section, ...]:
    """Return what looks at the inputs; the section ``host``, which knows the driver, is asked for anyway."""
    server = plan.server
    words = " ".join(quote(path) for path in _paths(plan))
    looks = [section("inputs", f'{_LOOK} for p in {words}; do look "$p"; done; echo =end', timeout_s=60.0)]
    if server.kind in PACKAGES:
        first = server.command[0]
        python = first if basename(first).startswith("python") else "python3"
        looks.append(engine_section(PACKAGES[server.kind], python))
    return tuple(looks)


def _paths(plan: Plan) -> list[str]:
    """Return every file, folder and model on the host that the plan reads, and the server's own program.

    What a flag names may as well be written to: a log, a cache. So a flag counts only where its name says that it is
    read; so does the first word of a command that is a path, its script.
    """
    server, search, load = plan.server, plan.search, plan.benchmark
    flags: list[tuple[str, object]] = [*server.flags.items(), *search.flags.items()]
    for stage in search.stages:
        flags += [(axis.key, value) for axis in stage.axes if axis.target == "flags" for value in axis.values]
        flags += [(key.partition(".")[2], value) for point in stage.points for key, value in point.items()]
    flags += _pairs(server.command[1:])
    if load is not None:
        flags += [pair for pair in _pairs((*load.command, *load.args)) if pair[0]]
    read = [value for name, value in flags if not name or (_READ.search(name) and not _WRITTEN.search(name))]
    named = [str(value) for item in read for value in (item if isinstance(item, (list, tuple)) else (item,))]
    found = [word for word in named if (word.startswith("/") or _HUB.fullmatch(word)) and word.isprintable()]
    program = [server.command[0]] if server.kind not in PACKAGES else []
    return list(dict.fromkeys([*program, *found]))[:PATHS_MAX]


def _pairs(words: Sequence[str]) -> list[tuple[str, object]]:
    """Return each value of a command line with the name of its flag, '' for a word that stands alone."""
    found: list[tuple[str, object]] = []
    name = ""
    for word in words:
        flag, equals, value = word.partition("=")
        if word.startswith("-"):
            name = flag.lstrip("-")
            if equals:
                found.append((name, value))
                name = ""
        else:
            found.append((name, word))
            name = ""
    return found


def read_inputs(sections: Mapping[str, SectionResult]) -> dict[str, str] | None:
    """Return each point with its value; None when a look did not come to its end. {} when none was made."""
    look, host = sections.get("inputs"), read_host(sections.get("host"))
    if look is None:
        return {}
    if "=end" not in look.out.split("\n") or host is None:
        return None
    found = {"host name": host.hostname, "kernel": host.kernel, "GPU driver": host.driver}
    for line in look.out.split("\n"):
        if line.startswith("path "):
            name, kind, mark = line[5:].rsplit(" ", 2)
            found[name] = "absent" if kind == "absent" else f"{kind} {mark[:12]}"
    for name, result in sections.items():
        if name.startswith("engine:"):
            engine = read_engine(result)
            if engine is None:
                return None if result.status is None else found
            found |= {f"package {package}": version for package, version in engine.versions.items()}
            found |= {"source commit": engine.commit} if engine.commit else {}
    return found


def changed_inputs(before: Mapping[str, str], now: Mapping[str, str], *, files: bool = True) -> list[str]:
    """List what differs, a line each; without ``files``, of files and folders nothing is said."""
    names = [name for name in dict.fromkeys([*before, *now]) if files or not name.startswith("/")]
    pairs = [(name, before.get(name) or "none", now.get(name) or "none") for name in names]
    return [f"{name}: {old} -> {new}" for name, old, new in pairs if old != new]
