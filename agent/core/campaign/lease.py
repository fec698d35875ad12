"""The lease of the host: what of it a run uses, under whose name, and what a refusal means."""

from __future__ import annotations

import re2 as re

from ..actions import Acquire
from ..guards import failed
from ..plan import Plan
from ..values import Finding, Verdict, duration_text
from .state import Campaign

_BUSY = re.compile(r"BUSY (\S+) epoch (\d+) age (\d+) s resource (\S+)(?: since (\d+) s)?")


def resources_of(plan: Plan) -> tuple[str, ...]:
    """Return what of the host the plan's servers use, as leases name it; () = the whole host.

    GPUs go by their index, so they are told apart only where ``CUDA_VISIBLE_DEVICES`` names indices, the same for
    every trial; a server without it takes the first ones. Servers without GPUs share the processors: one at a time.
    """
    server, name = plan.server, "CUDA_VISIBLE_DEVICES"
    axes = [axis for stage in plan.search.stages for axis in stage.axes]
    tried = {*plan.search.env, *(axis.key for axis in axes if axis.target == "env")}
    devices = [word.strip() for word in server.env.get(name, "").split(",")] if name in server.env else None
    if name in tried or (devices is not None and not all(word.isdecimal() for word in devices)):
        return ()
    used = devices if devices is not None else [str(index) for index in range(server.gpus)]
    gpus = [f"gpu{int(index)}" for index in used] if server.gpus else ["cpu"]
    return (*gpus, f"port:{server.port}")


def lease_of(campaign: Campaign, *, give_back: bool = False) -> Acquire:
    """Take or renew the lease of what this run uses, or give it back."""
    lease = Acquire(host=campaign.server.host, owner=owner_of(campaign), resources=resources_of(campaign.plan))
    return lease.model_copy(update={"ttl_s": 0} if give_back else {"take_over": campaign.options.take_over})


def owner_of(campaign: Campaign) -> str:
    """Return the name under which the run holds leases: its id, and who began it; the same for every controller."""
    assert campaign.opened is not None
    who = campaign.opened.controller.partition(" ")[0]
    return f"{campaign.opened.campaign}:{re.sub(r'[^A-Za-z0-9._@-]', '_', who)}" if who else campaign.opened.campaign


def refused(text: str, host: str) -> Verdict:
    """Say for people who is in the way, since when, with what, and what can be done about it."""
    found = [match.groups() for line in text.splitlines() if (match := _BUSY.match(line))]
    if not found:
        return failed(Finding.FOREIGN, f"the host is leased: {text.strip()}", _WANTED, _WAIT)
    said = []
    for owner, _, age, what, since in found:
        campaign, _, who = owner.partition(":")
        held = f", since {duration_text(float(since))}" if since else ""
        by = f"campaign {campaign[:8]}{f' of {who}' if who else ''}"
        said.append(f"{things(what)} of {host}: {by}{held} (last at work {duration_text(float(age))} ago)")
    saw = "the host is leased, " + "; ".join(said) + f"; epoch {found[0][1]}"
    remedy = f"{_WAIT}; or take it from there, which ends its controller's work: --take-over {found[0][1]}"
    return failed(Finding.FOREIGN, saw, _WANTED, remedy)


_WANTED = "what no other campaign holds"
_WAIT = "wait for that campaign, or end it with `agent stop` where it was begun"


def things(resources: str) -> str:
    """Write resources for people: ``gpu0,gpu1,port:8000`` as "GPU 0 and 1, port 8000"."""
    if resources == "host":
        return "all"
    words = resources.split(",")
    gpus = sorted(int(word[3:]) for word in words if re.fullmatch(r"gpu\d+", word))
    listed = f"{', '.join(map(str, gpus[:-1]))} and {gpus[-1]}" if len(gpus) > 1 else "".join(map(str, gpus))
    others = [word.replace("port:", "port ").replace("cpu", "the processors") for word in words]
    others = [word for word in others if not re.fullmatch(r"gpu\d+", word)]
    return ", ".join([*([f"GPU {listed}"] if gpus else []), *others])
