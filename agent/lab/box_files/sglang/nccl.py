"""What NCCL reads of its environment, and what it says: only a name it knows is read, and only then a line appears."""

from __future__ import annotations

import os

NAMED = (
    "NCCL_PROTO",
    "NCCL_ALGO",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_GRAPH_FILE",
    "NCCL_TOPO_FILE",
    "NCCL_DEBUG_SUBSYS",
)
NUMBERS = (
    "NCCL_IB_DISABLE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_BUFFSIZE",
    "NCCL_NTHREADS", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE",
    "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_ALLOC_P2P_NET_LL_BUFFERS", "NCCL_NET_GDR_LEVEL",
    "NCCL_CROSS_NIC",
    "NCCL_GRAPH_MIXING_SUPPORT", "NCCL_LAUNCH_MODE", "NCCL_CHECKS_DISABLE",
)  # fmt: skip
LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
PROTOS = ("LL", "LL128", "SIMPLE")
ALGOS = ("TREE", "RING", "COLLNETDIRECT", "COLLNETCHAIN", "NVLS", "NVLSTREE", "PAT")


class InvalidUsageError(Exception):
    """NCCL refuses a value; the text is its warning."""


def number(text: str) -> int:
    """Read a number as strtoll does: leading digits, the rest ignored, nothing readable is 0."""
    digits = text.strip()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    base = 16 if digits.lower().startswith("0x") else 10
    good = ""
    for character in digits[2:] if base == 16 else digits:
        if character.lower() not in "0123456789abcdef"[:base]:
            break
        good += character
    return sign * int(good or "0", base)


def check_tokens(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a protocol or an algorithm that does not exist."""
    tokens = value.split(":")[-1].lstrip("^").split(",")
    for token in tokens:
        if token.upper() not in known:
            raise InvalidUsageError(f'Unrecognized element token "{token}" when parsing "{value}"')


def applied(env: dict[str, str], ignored: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return what NCCL really takes from ``env``, by name. Raise InvalidUsageError for a value it refuses."""
    taken: dict[str, str] = {}
    for name, value in env.items():
        if not name.startswith("NCCL_") or name in ignored:
            continue
        if name in NUMBERS:
            taken[name] = str(number(value))
        elif name in NAMED:
            taken[name] = value
        elif name == "NCCL_P2P_LEVEL" and (value in LEVELS or value.isdigit()):
            taken[name] = value if value in LEVELS else ("LOC", "PIX", "PXB", "PHB", "SYS")[min(int(value), 4)]
    check_tokens("NCCL_PROTO", taken.get("NCCL_PROTO", "LL"), PROTOS)
    check_tokens("NCCL_ALGO", taken.get("NCCL_ALGO", "Ring"), ALGOS)
    return taken


def speaks(env: dict[str, str]) -> bool:
    """Say whether the lines about the environment are printed: level INFO, subsystem ENV (which is on by default)."""
    subsystems = env.get("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV").upper().split(",")
    return env.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE") and bool({"ENV", "ALL"} & set(subsystems))


def lines(env: dict[str, str], taken: dict[str, str], pid: int, rank: int, host: str) -> list[str]:
    """Return what rank ``rank`` prints while it initializes."""
    if env.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE", "VERSION"):
        return []
    head = f"{host}:{pid}:{pid} [{rank}] NCCL INFO"
    if env["NCCL_DEBUG"].upper() == "VERSION":
        return ["NCCL version 2.27.5+cuda12.9"] if rank == 0 else []
    text = [f"{head} cudaDriverVersion 13000", f"{head} NCCL version 2.27.5+cuda12.9"]
    if speaks(env):
        for name, value in taken.items():
            stop = "." if name in NUMBERS else ""
            text.append(f"{head} {name} set by environment to {value}{stop}")
    return [
        *text,
        f"{head} Enabled NCCL Func/Proto/Algo Matrix:",
        f"{head} comm 0x5581{rank:04x} rank {rank} Init COMPLETE",
    ]


def of_process() -> dict[str, str]:
    """Return this process's NCCL variables, with those that SGLang sets itself."""
    env = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    env.setdefault("NCCL_CUMEM_ENABLE", "0")
    env.setdefault("NCCL_NVLS_ENABLE", "0")
    return env
