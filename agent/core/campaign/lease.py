"""The lease of the host: what of it a run uses, under whose name, and what a refusal means."""

from __future__ import annotations

from collections.abc import Sequence

import re2 as re

from ..actions import Acquire, Probe
from ..devices import by_uuid, chosen, meant, varied
from ..guards import failed, unknown
from ..observations import Refused
from ..plan import Plan
from ..probes.gpu import Gpu, GpuTable, gpus_section
from ..values import Finding, Result, Verdict, duration_text
from .common import Context, Step, known, sure
from .parts import Visit
from .state import Campaign

_BUSY = re.compile(r"BUSY (\S+) epoch (\d+) age (\d+) s resource (\S+)(?: since (\d+) s)?")


def words_of(plan: Plan) -> tuple[str, ...] | None:
    """Return the words for the GPUs that every server of the plan uses; None = they cannot be told apart."""
    return None if varied(plan) else chosen(plan.server, plan.server.env, plan.server.flags)


def resources_of(plan: Plan, seen: Sequence[Gpu] = ()) -> tuple[str, ...]:
    """Return what of the host the plan's servers use, as leases name it; () = the whole host.

    GPUs go by their index, which for a UUID is that of ``seen``. Where trials differ in their GPUs, or nothing says
    which they are, it is the whole host. Servers without GPUs share the processors: one at a time.
    """
    server = plan.server
    if not server.gpus:
        return ("cpu", f"port:{server.port}")
    words = words_of(plan)
    if words is None:
        return ()
    found = (
        [[gpu.index for gpu in meant(word, seen)] for word in words] if by_uuid(words) else [[int(w)] for w in words]
    )
    if not all(len(indexes) == 1 for indexes in found):
        return ()
    return (*(f"gpu{index}" for (index,) in found), f"port:{server.port}")


def look_up(context: Context, role: str) -> Step:
    """Ask the host which of its GPUs the plan's UUIDs are; done at once, without a verdict, where it names none so.

    A verdict says why there can be no lease. Numbers may change with a reboot, so each controller asks anew.
    """
    plan = context.campaign.plan
    if not plan.server.gpus or not by_uuid(words_of(plan)):
        return Step(done=True)
    step = sure(context, role, Probe(host=plan.server.host, sections=(gpus_section(),), timeout_s=60))
    if step.done:
        step.verdict = unmet_devices(plan, context.campaign.devices if known(context.last(role)) else None)
    return step


def unmet_devices(plan: Plan, table: GpuTable | None) -> Verdict | None:
    """Say why what the plan names is no lease: a word that means no GPU of the host, or several. None = it is one."""
    where, words = plan.server.host, words_of(plan) or ()
    wanted = f"one GPU of {where} for each of {', '.join(words)}"
    if table is None:
        return unknown(f"which GPUs {where} has is not known", wanted, Finding.LOST)
    for word in words:
        found = meant(word, table.gpus)
        if len(found) == 1:
            continue
        if table.finding is not None or table.problem:
            return Verdict(
                result=Result.FAIL if table.finding else Result.UNKNOWN,
                finding=table.finding,
                saw=f"{word} is not among the {len(table.gpus)} GPUs that answer; {table.problem}",
                wanted=wanted,
            )
        listed = ", ".join(f"{gpu.index} {gpu.uuid}" for gpu in table.gpus) or "none"
        which = "no GPU" if not found else f"{len(found)} GPUs"
        saw = f"the server is to use {word}, which is {which} of {where}: {listed}"
        return failed(Finding.CONFIG_INVALID, saw, wanted, "write the UUID or the index of a GPU that is listed")
    return None


def lease_of(campaign: Campaign, *, give_back: bool = False) -> Acquire:
    """Take or renew the lease of what this run uses, or give it back."""
    resources = resources_of(campaign.plan, campaign.devices.gpus if campaign.devices else ())
    lease = Acquire(host=campaign.server.host, owner=owner_of(campaign), resources=resources)
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


def holders(text: str) -> list[tuple[str, int]]:
    """Return campaign and epoch of each lease that a refusal names."""
    found = (_BUSY.match(line) for line in text.splitlines())
    return [(match[1].partition(":")[0], int(match[2])) for match in found if match]


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


def fenced(visit: Visit) -> str | None:
    """Return what a host said that refused us because another controller has taken it over."""
    for answer in visit.answers:
        if isinstance(answer.outcome, Refused) and answer.outcome.code == "FENCED":
            return answer.outcome.text.strip()
    return None


def untouched(campaign: Campaign) -> bool:
    """Whether a run is to end that has done nothing on the host, since another campaign had the lease all along.

    There is nothing to be ended there, so whoever holds the lease, the order is carried out. Where the answer to a
    request for it is still to come, that may yet give it to us.
    """
    asked = any(isinstance(answer.action, Acquire) for answer in campaign.open.values())
    return not asked and campaign.stopping and campaign.barred and not campaign.keys()
