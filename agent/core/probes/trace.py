"""Where a server's time goes, as its host saw it: shares, never speeds. A profile is never a benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..values import Value
from .benchmark import count, load_document, measure, prompt_words, word

if TYPE_CHECKING:
    from ..plan import Profile as Profiling
    from ..plan import Server, Workload

SCHEMA = "agent-profile/1"
SHARES_MAX = 500
SCRIPT = "profile.py"


class Profile(Value):
    """Shares of CPU samples (``perf``) or of the seconds that the engine accounts for (``engine``).

    ``shares`` holds groups by name (``matmul``, ``barrier``, ``prompt`` …) and, with ``perf``, shared objects as
    ``object:NAME``; groups add up to 1, and so do objects. With SGLang's own profiler they are the phases of a decode
    cycle (``draft``, ``target_verify``, ``sampling``, ``idle``). ``none`` says that no method worked, and ``why``.
    """

    method: Literal["perf", "engine", "none"]
    why: str = ""
    samples: int = 0
    load_done: int | None = None
    load_failed: int | None = None
    simulated: bool = False
    """The server said that it is a simulated one."""
    shares: dict[str, float] = {}


def read_profile(text: str) -> Profile | None:
    """Read what the profile script printed; None when it is not such a document, or its shares are none."""
    document = load_document(text)
    if document is None or document.get("schema") != SCHEMA:
        return None
    method, raw, samples = document.get("method"), document.get("shares"), count(document.get("samples"))
    if (
        method not in ("perf", "engine", "none")
        or not isinstance(raw, dict)
        or len(raw) > SHARES_MAX
        or samples is None
    ):
        return None
    shares: dict[str, float] = {}
    for name, value in raw.items():
        share = measure(value)
        if share is None or share > 1.000001 or len(name) > 200:
            return None
        shares[word(name)] = share
    load = document.get("load")
    load = load if isinstance(load, dict) else {}
    return Profile(
        method=method,
        why=word(document.get("why")),
        samples=samples,
        load_done=count(load.get("done")),
        load_failed=count(load.get("failed")),
        simulated=document.get("simulated") is True,
        shares=shares,
    )


def profile_command(
    profile: Profiling, server: Server, pid: int, workload: Workload | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line that profiles the tree under ``pid``, and the job's files as SHA-256.

    The load is the benchmark's own prompts when they are given.
    """
    words, files = prompt_words(workload) if workload is not None else ((), {})
    load = ("--concurrency", str(workload.concurrency)) if workload is not None else ()
    argv = (
        *("python3", f"@job/{SCRIPT}", "--pid", str(pid), "--port", str(server.port)),
        *("--seconds", str(profile.seconds), "--method", "engine" if profile.method == "engine" else "sample"),
        *("--api", server.kind),
        *load,
        *words,
    )
    return argv, {SCRIPT: profile.sha256, **files}
