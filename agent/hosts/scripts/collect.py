"""Gathers what tells why a server is as it is: log, processes, stacks, environment, limits, kernel messages, versions.

Runs on the host as a job, with the key of the server's job. Nothing is changed; only the server's own processes are
looked at. Standard library, Python 3.8. Each part begins with ``==== NAME``, the last line is ``==== end``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Iterator

PROC = Path("/proc")
LOG_MAX = 8 << 20
PART_MAX = 200_000
TELLING = re.compile(
    r"^(NCCL|CUDA|SGLANG|SGL|VLLM|LLAMA|GGML|HF|HUGGINGFACE|TORCH|PYTORCH|OMP|GOMP|KMP|MKL|TRITON|FLASHINFER|EAGLE"
    r"|NVIDIA|ROCR|HIP|RAY|UCX|GLOO|LD_|PYTHON|PATH$|VIRTUAL_ENV$|CONDA)"
)
HIDDEN = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL", re.IGNORECASE)
PACKAGES = (
    "sglang", "sgl-kernel", "vllm", "torch", "transformers", "flashinfer-python", "triton", "nvidia-nccl-cu12",
    "xllamacpp", "llama-cpp-python",
)  # fmt: skip


def put(name: str, text: str) -> None:
    """Write a part; a line of it that looks like the beginning of another is set in by a space."""
    if len(text) > PART_MAX:
        text = text[: PART_MAX // 2] + "\n… cut …\n" + text[-PART_MAX // 2 :]
    body = re.sub(r"(?m)^==== ", " ==== ", text.rstrip("\n"))
    sys.stdout.write(f"==== {name}\n{body}\n")


def read(path: Path, limit: int = 1 << 20) -> str:
    """Return a file's text, '' when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def run(*words: str, limit_s: float = 20.0) -> str:
    """Return what a command says, or why it says nothing."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{words[0]}: {error}\n"
    return done.stdout.decode("utf-8", "backslashreplace")


# ---------------------------------------------------------------- whose processes


def stat_of(pid: int) -> tuple[int, int, str] | None:
    """Return parent, session and state of a process."""
    words = read(PROC / str(pid) / "stat").rpartition(")")[2].split()
    return (int(words[1]), int(words[3]), words[0]) if len(words) > 3 else None


def members(folder: Path, key: str) -> list[int]:
    """Return the job's processes: by its control group, its session, its key in the environment, and by descent."""
    stats = {int(path.name): stat_of(int(path.name)) for path in PROC.iterdir() if path.name.isdigit()}
    found = set()
    group = read(folder / "group").strip()
    if group:
        found |= {int(pid) for path in Path(group).glob("**/cgroup.procs") for pid in read(path).split()}
    leader = read(folder / "sup").split()
    mark = f"AGENT_RUN_KEY={key}".encode()
    for pid, stat in stats.items():
        if stat is None:
            continue
        try:
            marked = mark in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            marked = False
        if marked or (leader and stat[1] == int(leader[0])):
            found.add(pid)
    grown = True
    while grown:
        more = {pid for pid, stat in stats.items() if stat and stat[0] in found} - found
        found, grown = found | more, bool(more)
    own = {os.getpid(), os.getppid(), *([int(leader[0])] if leader else [])}
    return sorted(pid for pid in found - own if stats.get(pid) and stats[pid][2] not in "ZX")  # type: ignore[index]


def title(pid: int) -> str:
    """Return a process's command line on one line."""
    return " ".join(read(PROC / str(pid) / "cmdline").replace("\0", " ").split())[:300] or "[no command line]"


# ---------------------------------------------------------------- parts


def log_windows(path: Path, patterns: list[str]) -> str:
    """Return the beginning and the end of the log, and what stands around lines that match."""
    size = path.stat().st_size if path.exists() else 0
    with path.open("rb") if size else open(os.devnull, "rb") as file:
        text = file.read(LOG_MAX // 2)
        if size > LOG_MAX:
            file.seek(size - LOG_MAX // 2)
        text += file.read(LOG_MAX // 2)
    lines = text.decode("utf-8", "backslashreplace").replace("\r", "\n").split("\n")
    wanted = set(range(min(60, len(lines)))) | set(range(max(0, len(lines) - 200), len(lines)))
    for pattern in patterns:
        try:
            seen = [number for number, line in enumerate(lines) if re.search(pattern, line[:4096])]
        except re.error:
            continue  # it was written for another engine of patterns
        for number in seen[:20] + seen[-20:]:
            wanted |= set(range(max(0, number - 3), min(len(lines), number + 4)))
    out, last = [], -1
    for number in sorted(wanted):
        out += ["…"] if number != last + 1 else []
        out.append(lines[number][:2000])
        last = number
    return "\n".join(out)


def find_spy(pids: list[int]) -> str | None:
    """Return the path of py-spy: on PATH, beside the server's interpreter, or of this user."""
    homes = [Path(os.path.realpath(PROC / str(pid) / "exe")).parent for pid in pids[:1]]
    for pid in pids[:1]:
        first = read(PROC / str(pid) / "cmdline").split("\0")[0]
        homes += [Path(first).parent] if first.startswith("/") else []
    places = [*homes, Path(sys.executable).parent, Path.home() / ".local" / "bin"]
    return shutil.which("py-spy") or next((str(p / "py-spy") for p in places if os.access(p / "py-spy", os.X_OK)), None)


def kernel_side(pid: int) -> Iterator[str]:
    """Yield where each thread is, as the kernel tells it."""
    for task in sorted((PROC / str(pid) / "task").glob("*"), key=lambda path: int(path.name))[:64]:
        words = read(task / "stat").rpartition(")")[2].split()
        name, where = read(task / "comm").strip(), read(task / "wchan").strip()
        stack = " < ".join(line.split("] ")[-1].split("+")[0] for line in read(task / "stack").split("\n") if line)
        yield f"  thread {task.name} {name} {words[0] if words else '?'} wchan {where or '?'} {stack}".rstrip()


def stacks(pids: list[int]) -> str:
    """Return the stacks of every process: of Python by py-spy where it is there, of the kernel always."""
    spy, out = find_spy(pids), []
    out.append(f"py-spy: {spy or 'not on this host (pip install py-spy): kernel side only'}")
    for pid in pids[:64]:
        out.append(f"process {pid} {title(pid)}")
        out += kernel_side(pid)
        if spy and "python" in os.path.realpath(PROC / str(pid) / "exe"):
            out += [f"  {line}" for line in run(spy, "dump", "--pid", str(pid), "--nonblocking").split("\n")]
    return "\n".join(out)


def environ_of(pid: int) -> str:
    """Return the variables that matter to an engine, and the names of the others."""
    out, rest = [], []
    for item in sorted(read(PROC / str(pid) / "environ").split("\0")):
        name, _, value = item.partition("=")
        if TELLING.match(name) and not HIDDEN.search(name):
            out.append(f"{name}={value}")
        elif name:
            rest.append(name)
    return "\n".join([*out, f"others: {' '.join(rest)}"])


def limits(pids: list[int]) -> str:
    """Return limits and memory of the first process, and one line for each of the others."""
    out = [read(PROC / str(pids[0]) / "limits")] if pids else []
    for pid in pids:
        found = dict(line.split(":", 1) for line in read(PROC / str(pid) / "status").split("\n") if ":" in line)
        names = ("State", "Threads", "VmRSS", "VmSwap", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
        out.append(f"{pid} " + ", ".join(f"{name} {found[name].strip()}" for name in names if name in found))
    load = read(PROC / "loadavg").strip()
    return "\n".join([*out, f"load {load}, {os.cpu_count()} processors", run("df", "-h", "/dev/shm", "/tmp")])  # noqa: S108


def kernel() -> str:
    """Return the kernel's newest messages."""
    text = run("dmesg", "-T")
    if "not permitted" in text or not text.strip():
        text = run("journalctl", "-k", "-n", "300", "--no-pager") if shutil.which("journalctl") else text
    return "\n".join(text.split("\n")[-300:])


def versions(pids: list[int]) -> str:
    """Return versions of the engine's packages as the server's own interpreter sees them."""
    first = read(PROC / str(pids[0]) / "cmdline").split("\0")[0] if pids else ""
    python = first if "python" in Path(first).name else sys.executable
    code = (
        "import importlib.metadata as m,sys\nprint('python',sys.version.split()[0],sys.executable)\n"
        "for n in sys.argv[1:]:\n try: print(n,m.version(n))\n except Exception: pass\n"
    )
    return run(python, "-I", "-c", code, *PACKAGES) + run("uname", "-sr")


def main(words: list[str]) -> int:
    """Print every part; one that fails says so and holds up no other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("key")
    parser.add_argument("--patterns", nargs="*", default=[])
    options = parser.parse_args(words)
    folder = Path(os.environ.get("AGENT_JOB") or ".").absolute().parent / options.key
    pids = members(folder, options.key)
    rows = (
        f"{pid} parent {(stat_of(pid) or (0,))[0]} state {(stat_of(pid) or (0, 0, '?'))[2]} {title(pid)}"
        for pid in pids
    )
    parts: dict[str, Callable[[], str]] = {
        "processes": lambda: "\n".join(rows) or "none of this server lives",
        "stacks": lambda: stacks(pids),
        "environ": lambda: environ_of(pids[0]) if pids else "",
        "limits": lambda: limits(pids),
        "kernel": kernel,
        "versions": lambda: versions(pids),
        "log": lambda: log_windows(folder / "out", options.patterns),
    }
    for name, part in parts.items():
        began = time.monotonic()
        try:
            text = part()
        except Exception as error:  # a part that fails is no reason to lose the others
            text = f"not gathered: {type(error).__name__}: {error}"
        put(name, text + (f"\n({time.monotonic() - began:.1f} s)" if time.monotonic() - began > 5 else ""))
    sys.stdout.write("==== end\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
