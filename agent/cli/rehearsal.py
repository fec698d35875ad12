"""The lab behind ``--lab``: started for a run, found again by a resume, ended with the run.

It lives in the run's folder and outlives a killed controller, so that a rehearsal can be killed and resumed like
the real thing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.errors import AgentError, Exit, HostError

if TYPE_CHECKING:
    from agent.cli.folder import RunFolder
    from agent.core.plan import Plan
    from agent.core.redact import Secret
    from agent.lab import LabSpec


LEAST_S = 3.0
"""So long silence is borne in a rehearsal, however impatient."""


def spec_of(plan: Plan, faults: list[str]) -> LabSpec:
    """Return the lab that a plan describes, with the faults ordered on the command line."""
    from pydantic import ValidationError

    from agent.lab import FAULTS, LabSpec

    unknown = [name for name in faults if name not in FAULTS]
    if unknown:
        known = ", ".join(FAULTS)
        raise AgentError(f"no such fault: {', '.join(unknown)}", f"known: {known}", "E_LAB_FAULT", exit=Exit.USAGE)
    aliases = tuple(dict.fromkeys(host.address.rpartition("@")[2].partition(":")[0] for host in plan.hosts.values()))
    own = {key: value for key, value in plan.lab.items() if key != "patience"}  # it is the agent's, not the box's
    wanted = {"port": plan.server.port, **own, "hosts": aliases}
    if plan.server.kind != "sglang":
        wanted.setdefault("existing", None)  # nothing but the simulated SGLang is there to be found
    wanted["faults"] = [*wanted.get("faults", ()), *faults]
    try:
        return LabSpec(**wanted)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        what = f"lab: {field}: {first['msg']}"
        raise AgentError(what, "see docs/reference/lab.md", "E_LAB", exit=Exit.USAGE) from None


def hurried(plan: Plan) -> Plan:
    """Return the plan with limits on silence shortened by its ``lab.patience``: a rehearsed start takes seconds."""
    patience = plan.lab.get("patience")
    if not isinstance(patience, (int, float)) or isinstance(patience, bool) or not 0 < patience <= 1:
        return plan

    def shorter(guard: Any) -> Any:
        if guard.guard != "progressing":
            return guard
        limits = {phase: max(LEAST_S, limit * patience) for phase, limit in guard.limits.items()}
        limit = None if guard.limit is None else max(LEAST_S, guard.limit * patience)
        return guard.model_copy(update={"limits": limits, "limit": limit})

    states = tuple(
        state.model_copy(update={"guards": tuple(shorter(guard) for guard in state.guards)}) for state in plan.states
    )
    return plan.model_copy(update={"states": states})


def without_container(plan: Plan) -> Plan:
    """Return the plan for a box that has no container engine: the server is a process of it."""
    server = plan.server
    if server.container is None:
        return plan
    if not server.command:
        what = f"the lab has no image {server.container.image}, and nothing else says how the server is started"
        raise AgentError(what, "write the command that the image runs under `server.command`", "E_LAB", exit=Exit.USAGE)
    states = tuple(
        state.model_copy(update={"guards": tuple(guard for guard in state.guards if guard.guard != "image_ready")})
        for state in plan.states
    )
    return plan.model_copy(update={"server": server.model_copy(update={"container": None}), "states": states})


def fitted(plan: Plan) -> Plan:
    """Return the plan as the lab carries it out: sooner impatient, without container, and with no need to be root."""
    hosts = {name: host.model_copy(update={"sudo": False, "sudo_password": ""}) for name, host in plan.hosts.items()}
    return without_container(hurried(plan)).model_copy(update={"hosts": hosts})


def describe(spec: LabSpec, *, contained: bool = False) -> str:
    """Say in a few words what is simulated; ``contained``: what runs in a container otherwise."""
    faults = f", faults: {', '.join(fault.fault for fault in spec.faults)}" if spec.faults else ""
    without = ", without the container" if contained else ""
    return f"lab: {spec.gpus} simulated GPUs, time ×{spec.time_scale:g}, seed {spec.seed}{faults}{without}"


def begin(run: RunFolder, spec: LabSpec) -> Path:
    """Start the box; return the ssh configuration that leads to it."""
    from agent.lab import start

    try:
        info = start(spec, run.path / "lab")
    except RuntimeError as error:
        raise HostError(str(error), "is another program using its ports?", "E_LAB") from None
    return Path(info.ssh_config)


def again(run: RunFolder) -> Path:
    """Find the box of a run; return the ssh configuration that leads to it."""
    from agent.lab import find

    info = find(run.path / "lab")
    if info is None:
        raise HostError(
            "the lab of this rehearsal is gone (it ends by itself when idle, and with the machine)",
            "its journal can still be read; rehearse anew with `agent run PLAYBOOK --lab`",
            "E_LAB_GONE",
        )
    return Path(info.ssh_config)


def end(run: RunFolder) -> None:
    """End the box and everything in it."""
    from agent.lab import stop

    stop(run.path / "lab")


def secrets_of(plan: Plan) -> dict[str, Secret]:
    """Return stand-ins for the plan's secrets: a rehearsal has no business with real ones."""
    from agent.core.redact import Secret

    return {name: Secret(f"rehearsal-stand-in-for-{name}") for name in plan.secrets}
