"""A server in a container of docker or podman: the words that start it, what its image is, who answers on its port.

The container is made on the host by the job's keeper (``agent/hosts/box.sh``); here is only what it is given and how
what the engine says of it is read. It is ours by its id and by the label ``agent.job``, which names the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from .actions import Job
from .observations import SectionResult
from .probes.containers import Container as Running
from .probes.containers import read_containers
from .probes.logs import compiled
from .probes.processes import Process, descendants, has_word, match_replaces, read_processes
from .probes.sockets import Listener, read_listeners
from .values import Finding

if TYPE_CHECKING:
    from .plan import Container, Replaces, Server

LABEL = "agent.job"
FORWARDERS = ("docker-proxy", "conmon", "rootlessport", "rootlesskit", "slirp4netns", "pasta", "pasta.avx2", "passt")
"""Programs of the engines that listen on a published port and pass on what comes."""

_CAUSES: tuple[tuple[str, Finding], ...] = (
    (r"(?i)port is already allocated|address already in use|rootlessport listen", Finding.PORT_IN_USE),
    (r"(?i)could not select device driver|nvidia-container-cli|unresolvable CDI devices", Finding.UNSUPPORTED),
    (r"(?i)no such image|image not known|unable to find image|image .*not found", Finding.UNSUPPORTED),
    (r"(?i)executable file .*not found|exec: .*no such file", Finding.CONFIG_INVALID),
    (r"(?i)container name .* is already in use|name .* is in use", Finding.CONFIG_INVALID),
    (r"the container ran out of memory \(OOMKilled\)", Finding.HOST_OOM),
    (r"the container was not (?:created|started)", Finding.CONFIG_INVALID),
)
PATTERNS = ("^agent: the container", "^Error:? ", "^docker: ", "Error response from daemon", "OCI runtime")
"""Lines of the engine itself, beside the server's own, that are worth a journal entry."""


@lru_cache(maxsize=16384)
def cause(line: str) -> tuple[Finding, str] | None:
    """Return why a container did not come up or went away, if this line of its log is the engine's word on that."""
    if not compiled("|".join(PATTERNS)).search(line[:2000]):
        return None
    found = next((finding for pattern, finding in _CAUSES if compiled(pattern).search(line[:2000])), None)
    return (found, line[:400]) if found is not None else None


def contained(server: Server, words: Sequence[str], env: Mapping[str, str]) -> Job:
    """Return the job that runs these words in the server's container.

    Values of secrets are given to the engine by its own environment: they stand in no command line.
    """
    own = server.container
    assert own is not None
    given = [f"--env={name}={value}" for name, value in sorted(env.items())]
    given += [f"--env={name}" for name in sorted(server.secrets)]
    given += [f"--workdir={server.cwd}"] if server.cwd else []
    argv = ("sh", "@job/keep", own.engine, own.name, "--pull=never", *own.options, *given, own.image, *words)
    return Job(role="server", argv=argv, secrets=server.secrets)


def once(own: Container, command: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words that run a command in a container that is gone with its end, beside a server that may run."""
    taken = ("--publish", "--network", "--name", "--hostname")
    options = [word for word in own.options if not word.startswith(tuple(f"{name}=" for name in taken))]
    given = [f"--env={name}={value}" for name, value in sorted(env.items())]
    return (own.engine, "run", "--rm", "--pull=never", "--network=none", *options, *given, own.image, *command)


def resumed(engine: str, container: str) -> Job:
    """Return the job that starts a container again that was there before us, and carries its log."""
    return Job(role="server", argv=("sh", "@job/keep", engine, "=", container))


# ---------------------------------------------------------------- what it is, and whose


def effective(sections: Mapping[str, SectionResult], key: str) -> dict[str, str]:
    """Return what the container of this job adds to the effective configuration: the digest of its image."""
    own = of_job(read_containers(sections.get("containers")), key)
    return {"container.image": own.image.removeprefix("sha256:")} if own is not None and own.image else {}


def of_job(containers: Sequence[Running] | None, key: str) -> Running | None:
    """Return the running container with the label of this job; None when there is none, or not just one."""
    found = [one for one in containers or () if key and one.labels.get(LABEL) == key]
    return found[0] if len(found) == 1 else None


def replaced(sections: Mapping[str, SectionResult], replaces: Replaces) -> tuple[Process, ...] | None:
    """Return the root processes of the server that may be replaced; None when what was looked at does not tell.

    Of a container it is the first process, if the container has that name and all other conditions are met by what
    runs in it or by the ports that are published for it.
    """
    table, listeners = read_processes(sections.get("processes")), read_listeners(sections.get("sockets"))
    if table is None:
        return None
    if replaces.container is None:
        return match_replaces(table, listeners, replaces)
    if listeners is None:
        return None
    containers = read_containers(sections.get("containers"))
    if containers is None:
        return None
    return tuple(
        root
        for one in containers
        if one.name == replaces.container and (root := _fitting(one, table, listeners, replaces)) is not None
    )


def _fitting(
    own: Running, table: Sequence[Process], listeners: Sequence[Listener], replaces: Replaces
) -> Process | None:
    inside = descendants(table, own.pid or 0)
    pids = {process.pid for process in inside}
    listens = any(pids & set(listener.pids or ()) for listener in listeners if listener.port == replaces.port)
    fits = (
        all(any(has_word(process, word) for process in inside) for word in replaces.argv)
        and (replaces.user is None or any(replaces.user in {p.user, str(p.uid)} for p in inside))
        and (replaces.exe is None or any(replaces.exe in p.argv[:1] for p in inside))
        and (replaces.port is None or replaces.port in own.ports or listens)
    )
    return next((process for process in inside if process.pid == own.pid), None) if fits else None


def named(containers: Sequence[Running] | None, pid: int) -> Running | None:
    """Return the container whose first process this is."""
    return next((one for one in containers or () if one.pid == pid), None)


def kin(own: Running, processes: Sequence[Process]) -> set[int]:
    """Return the processes of a container: its first one, as the host numbers it, and all that descend from it."""
    return {process.pid for process in descendants(processes, own.pid)} if own.pid else set()


def strangers(
    own: Running, port: int, found: Sequence[Listener], processes: Sequence[Process]
) -> tuple[list[int], bool]:
    """Return who listens on the port and is not of this container, and whether the container answers there at all.

    It does when a process of it listens, or when its engine publishes the port; then the engine's own forwarder may
    be the one that is seen, or nobody, where the kernel forwards.
    """
    inside = kin(own, processes)
    published = port in own.ports
    programs = {process.pid: process.comm for process in processes}
    pids = sorted({pid for listener in found for pid in listener.pids or ()})
    others = [
        pid
        for pid in pids
        if pid not in inside and not (published and programs.get(pid, "") in {name[:15] for name in FORWARDERS})
    ]
    return others, published or any(pid in inside for pid in pids)
