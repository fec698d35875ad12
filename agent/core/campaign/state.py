"""The campaign as its journal tells it: one fold over the entries, total and without judgement.

``evolve`` changes the accumulator it is given and returns it; each entry costs O(1). Anything that is not known
to it is skipped, so an old journal always opens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..actions import Acquire, Advise, Cancel, Follow, Signal, Start, Status
from ..events import (
    Concluded,
    Confirm,
    Entry,
    Instructed,
    Interrupt,
    Judged,
    Moved,
    Noted,
    Observed,
    Opened,
    Options,
    Proposed,
    Requested,
    Resumed,
    Scored,
    Stop,
)
from ..evidence import Answer
from ..machine import DONE, ENDS, FAILED, HOLD, Machine
from ..observations import Completed, Refused, SectionResult, read_job_state, read_sections
from ..plan import Plan, Server
from ..probes.advice import read_advice
from ..probes.gpu import GpuTable, read_gpus
from ..probes.inputs import read_inputs
from ..values import MissingBlobError, Result
from .edits import Edits
from .parts import NO_LAUNCH, Launch, Record, Visit


@dataclass
class Campaign:
    """Everything that follows from the entries so far."""

    opened: Opened | None = None
    options: Options = field(default_factory=Options)
    logic: int = 0
    now: float = 0.0
    """Seconds of campaign time: suspended time counts, time without a controller is clamped."""
    away_s: float = 0.0
    """What of it passed without a controller: deadlines go on by it, the budget does not."""
    boot: tuple[str, int] = ("", 0)
    seq: int = 0
    visit: Visit | None = None
    held: Visit | None = None
    """The visit that led to the hold we are in."""
    open: dict[str, Answer] = field(default_factory=dict)
    visits: dict[tuple[str, str, str], int] = field(default_factory=dict)
    history: list[Record] = field(default_factory=list)
    launches: dict[str, Launch] = field(default_factory=dict)
    jobs: dict[str, None] = field(default_factory=dict)
    """Keys of jobs beside the servers (load, profilers, scripts) whose end has not been seen: they may still live."""
    baseline: Mapping[str, SectionResult] = field(default_factory=dict)
    renew: bool = False
    """Another controller than the one that took the lease goes on: it has to take it before it does anything."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """What the numbers rest on beside the plan, point by point, as it was when they began; {} = not looked at."""
    inputs_now: Mapping[str, str] | None = None
    """The same as the controller at work found it; None until it has looked."""
    advice: dict[str, list[tuple[int, ...] | None]] = field(default_factory=dict)
    """By stage, what an adviser suggested, in order; None = it had nothing left."""
    adopted: tuple[str, ...] = ()
    """Keys of servers that other runs left and that are ours to end; none once the host was verified clean."""
    kept: str = ""
    """Key of the job that kept the command of the server we replaced, or ``ENGINE ID`` of its container; '' = none."""
    devices: GpuTable | None = None
    """The host's GPUs as they were when a lease by UUID was asked for."""
    leased: bool = False
    """We hold the host's lease, as far as its last answer tells."""
    worked: bool = False
    """We held it at some time. Every effect needs it: without, nothing was done on the host."""
    barred: bool = False
    """The host refused its lease to this run, which never had it: another campaign has what it wants."""
    confirmed: set[str] = field(default_factory=set)
    edits: Edits = field(default_factory=Edits)
    """What this run changed on hosts."""
    reverting: bool = False
    """Everything on the host goes back, also what was to stay."""
    stopping: bool = False
    interrupted: bool = False
    take_up: bool = False
    """A resume came while the lane was held: go on with the held state."""
    resumes: int = 0
    concluded: Concluded | None = None
    moves: list[Moved] = field(default_factory=list)

    @property
    def plan(self) -> Plan:
        """The plan of the run; a run that is not open has none (AssertionError)."""
        assert self.opened is not None, "the run is not open yet"
        return self.opened.plan

    @property
    def server(self) -> Server:
        """The server under test."""
        return self.plan.server

    @cached_property
    def machine(self) -> Machine:
        """The table of states, built once."""
        return Machine(self.plan)

    @cached_property
    def work(self) -> Mapping[str, tuple[str, ...]]:
        """What each of the plan's states does, by its name."""
        return {state.name: state.do for state in self.plan.states}

    @property
    def over(self) -> bool:
        """Whether the lane rests: finished, given up, or held for the operator."""
        return self.visit is not None and self.visit.state in ENDS

    @property
    def record(self) -> Record | None:
        """The trial in hand."""
        return self.history[-1] if self.history else None

    @property
    def launch(self) -> Launch | None:
        """The launch in hand."""
        return self.launches.get(self.visit.launch) if self.visit else None

    @property
    def reference(self) -> str:
        """What the baseline's first launch that was asked answered to the questions of ``accuracy``; '' = nothing."""
        asked = (self.launches[record.launch] for record in self.history if record.trial.role == "baseline")
        return next((launch.answers[""] for launch in asked if launch.answers.get("")), "")

    def keys(self) -> tuple[str, ...]:
        """Keys of everything that this run started and that may still live."""
        servers = (key for launch in self.launches.values() if not launch.gone for key in launch.keys)
        return (*self.adopted, *servers, *self.jobs)


def role_of(request: str) -> str:
    """Return what a request is for: the last part of its path without the ordinal."""
    return request.rsplit("/", 1)[1].partition("~")[0].partition(".")[0]


def evolve(campaign: Campaign, entry: Entry) -> Campaign:
    """Fold one entry into the campaign."""
    event = entry.event
    campaign.seq = entry.seq
    match event:
        case Opened():
            campaign.opened, campaign.options, campaign.logic = event, event.options, event.logic
            campaign.boot, campaign.adopted = (entry.boot_id, entry.boot_ns), event.adopted
        case Resumed():
            _resume(campaign, entry, event)
        case Noted() | Observed() | Instructed():
            _tick(campaign, entry)
            _input(campaign, event)
        case Requested():
            _request(campaign, event)
        case Judged():
            if campaign.visit is not None and event.at == campaign.visit.path:
                _judged(campaign, campaign.visit, event)
        case Moved():
            _move(campaign, event)
        case Proposed():
            _propose(campaign, event)
        case Scored():
            for record in reversed(campaign.history):
                if (record.trial.id, record.launch) == (event.trial, event.launch):
                    record.scored = event
                    break
        case Concluded():
            campaign.concluded = event
    return campaign


def _propose(campaign: Campaign, event: Proposed) -> None:
    now = Record(event.trial, event.launch)
    if event.trial.role == "hypothesis" and (event.launch in campaign.launches or event.launch == NO_LAUNCH):
        before = next((old for old in reversed(campaign.history) if old.launch == event.launch), None)
        if before is not None:
            # It is tested on a server that is up: what was measured of that one holds.
            now.benchmarks, now.accepted, now.finding = [*before.benchmarks], before.accepted, before.finding
    campaign.history.append(now)
    if event.launch != NO_LAUNCH:
        campaign.launches.setdefault(event.launch, Launch(event.launch, event.trial.id))


def _judged(campaign: Campaign, visit: Visit, event: Judged) -> None:
    if event.gates:
        visit.verdicts[event.guard] = event.verdict
        return
    visit.told[event.guard] = event.verdict
    record = campaign.record
    if record is not None and (visit.trial, visit.launch) == (record.trial.id, record.launch):
        record.told[event.guard] = event.verdict


def _tick(campaign: Campaign, entry: Entry) -> None:
    boot_id, boot_ns = campaign.boot
    if entry.boot_id == boot_id and not campaign.over:  # a remark on a run that rests takes no time of it
        campaign.now += max(0, entry.boot_ns - boot_ns) / 1e9
    campaign.boot = (entry.boot_id, entry.boot_ns)


def _resume(campaign: Campaign, entry: Entry, event: Resumed) -> None:
    campaign.now += event.gap_s
    campaign.away_s += event.gap_s
    campaign.adopted += event.adopted
    campaign.boot = (entry.boot_id, entry.boot_ns)
    campaign.options, campaign.logic = event.options, event.logic
    if event.plan is not None and campaign.opened is not None:
        campaign.opened = campaign.opened.model_copy(update={"plan": event.plan})
        for derived in ("machine", "work"):  # the table is the plan's
            campaign.__dict__.pop(derived, None)
    campaign.interrupted = False
    if event.options.revert:
        campaign.reverting = True
        campaign.stopping = campaign.stopping or not any(move.state in (DONE, FAILED) for move in campaign.moves)
    campaign.renew = campaign.visit is not None
    campaign.inputs_now = None
    campaign.resumes += 1
    campaign.take_up = campaign.visit is not None and campaign.visit.state == HOLD


def _input(campaign: Campaign, event: Noted | Observed | Instructed) -> None:
    if isinstance(event, Instructed):
        if isinstance(event.order, Stop):
            campaign.stopping = True
            campaign.reverting = campaign.reverting or event.order.revert
        elif isinstance(event.order, Interrupt):
            campaign.interrupted = True
        elif isinstance(event.order, Confirm) and event.order.yes:
            campaign.confirmed.add(event.order.digest)
        return
    answer = campaign.open.get(event.request)
    if answer is None:
        return
    if campaign.visit is not None:
        campaign.visit.facts += 1
    if isinstance(event, Noted):
        try:
            text = event.part.string()
        except MissingBlobError:
            return
        answer.parts.append((campaign.now, text))
        if answer.role in ("watch", "drain") and campaign.launch is not None:
            campaign.launch.heard(text)
        return
    answer.outcome, answer.closed_s = event.outcome, campaign.now
    del campaign.open[event.request]
    _learn(campaign, answer)


def _learn(campaign: Campaign, answer: Answer) -> None:
    """Keep what later states need of an answer."""
    text = answer.text()
    if isinstance(answer.action, Status) and answer.action.of:
        _recover(campaign, answer, answer.action.of, text)
        return
    record = campaign.record
    if isinstance(answer.action, Follow) and isinstance(answer.outcome, Completed):
        campaign.jobs.pop(answer.action.key, None)
    if isinstance(answer.action, Acquire) and isinstance(answer.outcome, Completed):
        campaign.leased, campaign.renew = answer.action.ttl_s > 0, False
        campaign.worked, campaign.barred = campaign.worked or campaign.leased, False
    elif isinstance(answer.action, Acquire) and isinstance(answer.outcome, Refused):
        campaign.barred = answer.outcome.code == "BUSY" and not campaign.worked
    if isinstance(answer.action, Start) and answer.role == "start" and text is not None:
        for launch in reversed(campaign.launches.values()):
            if launch.key == answer.action.key:
                launch.started = read_job_state(text)
                break
    elif answer.role == "earlier" and text is not None and campaign.launch is not None:
        earlier = read_job_state(text)
        campaign.launch.started = earlier if earlier.word in ("LIVE", "ORPHANED") else None
    elif answer.role == "inspect" and text is not None and campaign.launch is not None:
        campaign.launch.inspected = read_sections(text)
    elif answer.role == "probe" and text is not None and not campaign.baseline:
        campaign.baseline = read_sections(text)
        campaign.inputs = read_inputs(campaign.baseline) or {}
    elif answer.role.startswith("inputs-") and text is not None:
        campaign.inputs_now = read_inputs(read_sections(text))
        if campaign.options.rebase and campaign.inputs_now is not None:
            campaign.inputs = campaign.inputs_now
    elif answer.role.startswith("devices") and text is not None:
        campaign.devices = read_gpus(read_sections(text).get("gpus"))
    elif answer.role == "keep" and isinstance(answer.action, Follow) and isinstance(answer.outcome, Completed):
        campaign.kept = answer.action.key if answer.outcome.status == 0 else ""
    elif answer.role in ("survey", "apply", "undo") and isinstance(answer.action, Follow):
        campaign.edits.learnt(answer.role, answer.action.key, text)
    elif isinstance(answer.action, Signal) and answer.action.container and isinstance(answer.outcome, Completed):
        campaign.kept = answer.action.container
    elif answer.role == "bench" and record is not None and isinstance(answer.outcome, Completed):
        record.benchmarks.append(text or "")
    elif answer.role == "accuracy" and campaign.launch is not None and isinstance(answer.outcome, Completed):
        campaign.launch.answers[record.trial.asked() if record is not None else ""] = text or ""
    elif isinstance(answer.action, Advise) and text is not None:
        if (said := read_advice(text, answer.action)) is not None:
            campaign.advice.setdefault(answer.action.stage, []).append(said or None)
    elif answer.role == "sample" and record is not None and text is not None:
        record.profile = text


def _recover(campaign: Campaign, answer: Answer, request: str, text: str | None) -> None:
    """Let the host's word on a start stand in for the start's own answer, which was lost."""
    known = text is not None and read_job_state(text).word in ("LIVE", "ORPHANED", "EXITED", "LOST")
    for lost in campaign.visit.answers if campaign.visit is not None and known else ():
        if lost.request == request:
            lost.outcome = answer.outcome
            _learn(campaign, lost)


def _request(campaign: Campaign, event: Requested) -> None:
    answer = Answer(event.request, event.action, role_of(event.request), campaign.now)
    campaign.open[event.request] = answer
    if campaign.visit is not None:
        campaign.visit.answers.append(answer)
    action = event.action
    if isinstance(action, Start):
        if action.job.role == "profile" and campaign.launch is not None:
            campaign.launch.profiled = True  # from its start on nothing is measured on this launch any more
        if action.again and campaign.visit is not None:
            for old in campaign.visit.answers:
                old.superseded = old.superseded or old.request == action.again
        if action.job.role == "change" and not action.again:
            campaign.edits.requested(action.key, action.job.argv)
        if answer.role == "start" and campaign.launch is not None:
            campaign.launch.begin(action.key, campaign.now)
        else:
            campaign.jobs[action.key] = None


def _move(campaign: Campaign, event: Moved) -> None:
    left, record = campaign.visit, campaign.record
    if event.state == HOLD:
        campaign.held = left
    if event.source == HOLD:
        campaign.take_up = False
    if left is not None and record is not None and (left.trial, left.launch) == (record.trial.id, record.launch):
        _result(campaign, record, left, event)
    words = _words(campaign, event.source) if event.outcome in ("pass", "settled") else ()
    if "clean" in words:
        campaign.adopted = ()
        campaign.jobs.clear()
        for launch in reversed(campaign.launches.values()):
            if launch.gone:
                break  # launches come one after the other: those before it were proved gone with it
            launch.gone = bool(launch.key)
    if "watch" in words and campaign.launch is not None and campaign.launch.health_s is None:
        campaign.launch.health_s = campaign.now - campaign.launch.asked_s
    anew = event.source in (event.state, HOLD) and "benchmark" in _words(campaign, event.state)
    if (anew or event.outcome == "lost") and record is not None:
        record.benchmarks.clear()  # a new attempt measures anew
    where = (event.trial, event.launch, event.state)
    campaign.visits[where] = campaign.visits.get(where, 0) + 1
    campaign.visit = Visit(event.state, event.attempt, event.trial, event.launch, campaign.now)
    campaign.moves.append(event)


def _words(campaign: Campaign, name: str) -> tuple[str, ...]:
    """Return what a state does; nothing for a state that the plan does not have."""
    return campaign.work.get(name, ())


def _result(campaign: Campaign, record: Record, left: Visit, event: Moved) -> None:
    """Keep how a trial fares: whether its benchmark was accepted, and the first thing that went wrong."""
    if event.outcome == "pass" and "benchmark" in _words(campaign, event.source):
        record.accepted = True
    elif event.outcome in ("fail", "unknown", "timeout") and not record.accepted and not record.finding:
        failures = [verdict for verdict in left.verdicts.values() if verdict.result is Result.FAIL]
        found = failures[0].finding if failures else None
        record.finding = found.value if found else event.outcome.upper()


def is_cancelled(campaign: Campaign, request: str) -> bool:
    """Whether a request is being given up already."""
    visit = campaign.visit
    return visit is not None and any(
        isinstance(answer.action, Cancel) and request in answer.action.requests for answer in visit.answers
    )
