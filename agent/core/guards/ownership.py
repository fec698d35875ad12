"""Guards on whose things these are: no process left, the port free, the answering server the one we launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from ..containers import LABEL, of_job, strangers
from ..probes.containers import read_containers, read_image
from ..probes.gpu import read_apps, read_gpus
from ..probes.host import read_host, read_nccl_conf
from ..probes.processes import Process, read_processes, session
from ..probes.sockets import Listener, listening, read_listeners
from ..servers.served import alike, served
from ..values import Finding, Verdict
from .base import Guard, Seconds, failed, names, passed, unknown, waiting
from .view import Mine, UnreadableError, describe, leased, mine, still_settling

if TYPE_CHECKING:
    from ..evidence import Evidence
    from ..observations import SectionResult
    from ..plan import Trial

_DAEMONS = ("nvidia-cuda-mps-server", "nvidia-persistenced", "nv-hostengine", "dcgm-exporter")


class NoProcess(Guard):
    """Nothing lives of any job of ours, nor of the server that is replaced, and no stranger uses our GPUs."""

    poll: ClassVar[bool] = True
    guard: Literal["no_process"] = "no_process"
    allow: tuple[str, ...] = _DAEMONS
    """Names of programs that may use the GPUs: services of the host."""
    settle: Seconds = 10.0

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        sections = evidence.sections("probe")
        if sections is None:
            return unknown("the probe's answer is not known", "the list of processes")
        processes = read_processes(sections.get("processes"))
        if processes is None:
            return unknown("the list of processes cannot be read", "the list of processes")
        try:
            ours = mine(evidence, sections)
        except UnreadableError as error:
            return unknown(str(error), "no process of ours")
        if ours.owned or ours.replaced:
            return self._left(evidence, ours)
        return self._strangers(evidence, sections, processes)

    def _left(self, evidence: Evidence, ours: Mine) -> Verdict:
        # A title that a program gave itself is followed by what the old command line was longer.
        titles = {owned.pid: " ".join(owned.argv.replace("\0", " ").split()) for owned in ours.owned.values()}
        words = [f"{pid} {title[:50]}" for pid, title in titles.items()]
        words += [f"{process.pid} {process.title[:50]}" for process in ours.replaced.values()]
        states = [owned.state[:1] for owned in ours.owned.values()]
        states += [process.state[:1] for process in ours.replaced.values()]
        saw = f"{len(words)} processes still live: {names(words, 3)}"
        if still_settling(evidence, self.settle):
            return waiting(saw, "none", Finding.OURS)
        if "D" in states:
            remedy = "it waits in the kernel and takes no signals: a person must look at the host"
            return failed(Finding.DSTATE, saw, "none", remedy, (Finding.OURS,))
        return failed(Finding.OURS, saw, "none", "stop exactly these processes, then look again")

    def _strangers(
        self, evidence: Evidence, sections: Mapping[str, SectionResult], processes: tuple[Process, ...]
    ) -> Verdict:
        if evidence.server.gpus == 0:
            return passed("no process of ours is left")
        apps, table = read_apps(sections.get("gpu_apps")), read_gpus(sections.get("gpus"))
        if apps is None or apps.problem or table is None:
            problem = apps.problem if apps else "the users of the GPUs were not asked for"
            return unknown(problem, "no stranger on our GPUs")
        by_pid = {process.pid: process for process in processes}
        uuids = {gpu.uuid for gpu in leased(evidence, table)}
        users = [app for app in apps.apps if app.uuid in uuids]
        seen = [by_pid[app.pid] for app in users if app.pid in by_pid]
        seen = [process for process in seen if not self._allowed(process.argv[0] if process.argv else "")]
        strangers = [process for process in seen if process.living]
        if strangers:
            remedy = "somebody else uses our GPUs: ask them, or take others; nothing was sent to that process"
            return failed(Finding.FOREIGN, f"on our GPUs: {describe(strangers)}", "no process of others", remedy)
        hidden = [app for app in users if app.pid not in by_pid and not self._allowed(app.name or "")]
        if hidden:
            listed = names([str(app.pid) for app in hidden])
            remedy = "it lives in another pid namespace: look on the machine itself or in its containers"
            saw = f"pid {listed} uses our GPUs and is not visible here"
            return failed(Finding.NAMESPACE, saw, "no process of others", remedy)
        if seen:  # the driver lists a process for a moment after its end
            saw = f"{describe(seen)} has ended, and is still listed as a user of our GPUs"
            if still_settling(evidence, self.settle):
                return waiting(saw, "no process on our GPUs")
            remedy = "no signal frees the context of a dead process: a person must reset the GPU or the host"
            return failed(Finding.WEDGED, saw, "no process on our GPUs", remedy)
        return passed("no process of ours is left, and nobody else is on our GPUs")

    def _allowed(self, program: str) -> bool:
        return program.rpartition("/")[2] in self.allow


_TOLD = 200
"""Signs of a command line by which its owner knows which server it is: the path of the program alone may be long."""


class PortFree(Guard):
    """Nobody listens on the server's port. Connections that only wait for their end do no harm."""

    poll: ClassVar[bool] = True
    guard: Literal["port_free"] = "port_free"
    settle: Seconds = 10.0

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        port = evidence.server.port
        sections = evidence.sections("probe")
        listeners = read_listeners(sections.get("sockets")) if sections is not None else None
        if sections is None or listeners is None:
            return unknown("the list of listening sockets is not known", f"port {port} free")
        found = listening(listeners, port)
        if not found:
            return passed(f"nobody listens on port {port}")
        pids = sorted({pid for listener in found for pid in listener.pids or ()})
        if not pids:
            remedy = "look as root who listens there, or choose another port"
            saw = f"somebody whom we cannot see listens on {found[0].address}:{port}"
            return failed(Finding.PORT_IN_USE, saw, f"port {port} free", remedy)
        try:
            ours = mine(evidence, sections)
        except UnreadableError as error:
            return unknown(f"port {port} is taken by {names([str(pid) for pid in pids])}; {error}", f"port {port} free")
        processes = {process.pid: process for process in read_processes(sections.get("processes")) or ()}
        who = describe((processes[pid] for pid in pids if pid in processes), _TOLD) or names([str(pid) for pid in pids])
        saw = f"port {port} is held by {who}"
        if all(ours.has(pid) for pid in pids):
            if still_settling(evidence, self.settle):
                return waiting(saw, f"port {port} free", Finding.OURS)
            return failed(Finding.OURS, saw, f"port {port} free", "stop that process of ours", (Finding.PORT_IN_USE,))
        return failed(Finding.PORT_IN_USE, saw, f"port {port} free", "ask its owner, or choose another port")


class ServerIsOurs(Guard):
    """Who listens on the port belongs to the job we launched, by pid and start time."""

    poll: ClassVar[bool] = True
    guard: Literal["server_is_ours"] = "server_is_ours"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        port, launched = evidence.server.port, evidence.launched
        if evidence.latest("inspect") is None:
            return waiting("the running server was not inspected yet")
        sections = evidence.sections("inspect")
        listeners = read_listeners(sections.get("sockets")) if sections is not None else None
        processes = read_processes(sections.get("processes")) if sections is not None else None
        if listeners is None or processes is None:
            return unknown("listeners and processes of the running server are not known", "a listener of our job")
        if launched is None or launched.pid <= 1:
            return unknown("the identity of the launched job is not known", "a listener of our job")
        found = listening(listeners, port)
        if not found and evidence.server.container is None and not _is_restored(evidence):
            remedy = "the health address answers for something else, or the server closed its port again"
            return failed(Finding.SERVER_NOT_READY, f"nobody listens on port {port}", "a listener of our job", remedy)
        pids = sorted({pid for listener in found for pid in listener.pids or ()})
        if evidence.server.container is not None or _is_restored(evidence):
            return self._container(evidence, sections or {}, found, processes)
        if not pids:
            return unknown(f"who listens on port {port} is not visible to us", "a listener of our job")
        kin = {process.pid for process in session(processes, launched.pid, launched.start)}
        strangers = [pid for pid in pids if pid not in kin]
        if strangers:
            return _served_by(strangers, processes, f"port {port}", f"job {launched.pid}", "a listener of our job")
        saw = f"pid {pids[0]} of our job {launched.pid} listens on port {port}"
        return self._identity(evidence, sections or {}, saw)

    def _container(
        self,
        evidence: Evidence,
        sections: Mapping[str, SectionResult],
        found: Sequence[Listener],
        processes: Sequence[Process],
    ) -> Verdict:
        """Judge a server in a container: by label and id, and by who listens or forwards there."""
        port, engine = evidence.server.port, evidence.server.container.engine if evidence.server.container else "docker"
        running = read_containers(sections.get("containers"))
        if running is None:
            return unknown(f"{engine} did not say which containers run", "our container")
        own = of_job(running, evidence.launch_key)
        if own is None and evidence.server.replaces is not None and _is_restored(evidence):
            own = next((one for one in running if one.name == evidence.server.replaces.container), None)
        if own is None:
            saw = f"no running container, or more than one, has the label {LABEL}={evidence.launch_key}"
            return failed(Finding.SERVER_NOT_READY, saw, "the container of our job")
        others, answers = strangers(own, port, found, processes)
        name = f"container {own.id[:12]} ({own.name})"
        if others:
            return _served_by(others, processes, f"port {port}", name, "a listener of our container")
        if not answers:
            if any(listener.pids is None for listener in found):
                return unknown(f"who listens on port {port} is not visible to us", "a listener of our container")
            remedy = "publish the port, or give the container the network of the host"
            return failed(Finding.SERVER_NOT_READY, f"{name} does not listen on port {port}", "that it does", remedy)
        return self._identity(evidence, sections, f"{name} of {own.tool} answers on port {port}")

    def _identity(self, evidence: Evidence, sections: Mapping[str, SectionResult], saw: str) -> Verdict:
        """Compare what the server says of itself, where it does."""
        if evidence.trial is None:
            return passed(saw)
        effective = evidence.kind.effective(sections, evidence.launch_log)
        says = effective.values if effective else {}
        for key, wanted in evidence.kind.identity(evidence.trial).items():
            if key in says and str(says[key]) != str(wanted):
                remedy = "another server, or another model, answers under our port"
                return failed(Finding.FOREIGN_SERVER, f"{saw}, and says {key} {says[key]}", f"{key} {wanted}", remedy)
        return self._model(evidence, sections, evidence.trial, saw, told=any(key.startswith("model") for key in says))

    def _model(
        self, evidence: Evidence, sections: Mapping[str, SectionResult], trial: Trial, saw: str, *, told: bool
    ) -> Verdict:
        """Compare the model that the server says it serves with the one that was asked for."""
        kind, found = evidence.kind, served(sections)
        wanted, called = kind.model(evidence.server, trial), kind.called(evidence.server, trial)
        remedy = "another server, or another model, answers under our port"
        if wanted and found.paths and not any(alike(path, wanted) for path in found.paths):
            words = f"{saw}, and serves {found.paths[0][:120]}"
            return failed(Finding.FOREIGN_SERVER, words, f"the model {wanted}", remedy)
        if called and found.names and not any(alike(one, other) for one in found.names for other in called):
            words = f"{saw}, and calls its model {found.names[0][:120]}"
            return failed(Finding.FOREIGN_SERVER, words, f"the name {called[0]}", remedy)
        if wanted and not told and not found.paths and not found.names:
            return unknown(f"{saw}; which model it serves it does not say", f"the model {wanted}")
        return passed(saw)


def _served_by(others: Sequence[int], processes: Sequence[Process], where: str, ours: str, wanted: str) -> Verdict:
    """Say who answers in the place of our server."""
    by_pid = {process.pid: process for process in processes}
    who = describe(by_pid[pid] for pid in others if pid in by_pid) or names([str(pid) for pid in others])
    remedy = "another server answers on this port: whatever it says is not about the one we launched"
    saw = f"{where} is served by {who}, not by {ours}"
    return failed(Finding.FOREIGN_SERVER, saw, wanted, remedy, (Finding.PORT_IN_USE,))


def _is_restored(evidence: Evidence) -> bool:
    """Whether this is the container that was there before us, started again."""
    replaces = evidence.server.replaces
    restored = evidence.trial is not None and evidence.trial.of == "replaced"
    return restored and replaces is not None and replaces.container is not None


class HostUnchanged(Guard):
    """The host is the one of the first probe: same boot, same driver, same NCCL files."""

    guard: Literal["host_unchanged"] = "host_unchanged"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        sections = evidence.sections("probe") or evidence.sections("inspect")
        before = read_host(evidence.baseline.get("host"))
        now = read_host(sections.get("host")) if sections is not None else None
        if sections is None or before is None or now is None:
            return unknown("the host's identity was not read twice", "the same host and boot")
        pairs = [("hostname", before.hostname, now.hostname), ("boot", before.boot, now.boot)]
        pairs += [("kernel", before.kernel, now.kernel), ("driver", before.driver, now.driver)]
        changed = [f"{name} {old or 'none'} -> {new or 'none'}" for name, old, new in pairs if old != new]
        files = (read_nccl_conf(evidence.baseline.get("nccl_conf")), read_nccl_conf(sections.get("nccl_conf")))
        if files[0] is not None and files[1] is not None and files[0] != files[1]:
            changed.append(f"NCCL files {files[0]} -> {files[1]}")
        images = [read_image(looked.get("image")) for looked in (evidence.baseline, sections)]
        if images[0] is not None and images[1] is not None and images[0].id != images[1].id:
            changed.append(f"image {images[0].id[:12] or 'none'} -> {images[1].id[:12] or 'none'}")
        if not changed:
            return passed(f"{now.hostname}, boot {now.boot[:8]}")
        remedy = "measurements before and after this cannot be compared: start a new run"
        finding = Finding.LOST if before.boot != now.boot else Finding.CONFIG_OVERRIDDEN
        return failed(finding, names(changed), "the host as it was at the first probe", remedy)
