"""What steps are made of: the context they see, asking until it is known, polling, and host jobs.

A step is a pure function of the campaign. It returns the requests it wants open now, whether it is done, and its
own verdict where it has one. What each ``do`` word does is in the modules beside this one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..actions import Action, Follow, Job, Owned, Probe, Section, Start, Status, Wait
from ..evidence import Answer, Evidence
from ..guards import unknown
from ..observations import Completed, Lost, Refused, TimedOut, read_job_state
from ..plan import Trial
from ..probes.host import host_probe
from ..probes.inputs import inputs_sections
from ..values import Finding, Verdict, job_key
from .parts import Launch, Record, Visit
from .reattach import reattach, word_of
from .state import Campaign

STARTING_S = 30.0
"""How long a host may say STARTING before the start counts as unknown."""
TRIES = 3
"""How often a request without effect is made anew at once when its answer was lost."""
LINK_AWAY_S = 300.0
"""For so long it is asked again after that, with growing pauses: a laptop changes its network, and a launch that took a
quarter of an hour is still there when it comes back. A state's own time limit ends this sooner."""
RELEASE_S = 60.0
"""The same for a lease that is given back at the end, which ends by itself half an hour later."""
PATIENCE_S_MAX = 20.0


@dataclass
class Step:
    """What a ``do`` word wants now."""

    ask: list[tuple[str, Action]] = field(default_factory=list)
    done: bool = False
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Context:
    """One campaign in one visit, with what steps ask of it."""

    campaign: Campaign
    visit: Visit
    evidence: Evidence

    @property
    def trial(self) -> Trial:
        """The trial in hand."""
        assert self.evidence.trial is not None
        return self.evidence.trial

    @property
    def record(self) -> Record:
        """The trial in hand with its measurements."""
        assert self.campaign.record is not None
        return self.campaign.record

    @property
    def launch(self) -> Launch:
        """The launch in hand."""
        assert self.campaign.launch is not None
        return self.campaign.launch

    def key(self, request: str) -> str:
        """Return the name that a request has on its host."""
        assert self.campaign.opened is not None
        return job_key(self.campaign.opened.campaign, request)

    def next_request(self, role: str) -> str:
        """Return the path that the next request of this role gets."""
        count = self.visit.count(role)
        return f"{self.visit.path}/{role}" + (f".{count + 1}" if count else "")

    def last(self, role: str) -> Answer | None:
        """Return the newest request of this role, open or closed."""
        answers = self.visit.of(role)
        return answers[-1] if answers else None


def known(answer: Answer | None) -> bool:
    """Whether a request has been answered with something that tells."""
    return answer is not None and isinstance(answer.outcome, Completed)


def sure(context: Context, role: str, action: Action, away_s: float = LINK_AWAY_S) -> Step:
    """Ask until an answer tells something, for as long as a link may be away; then go on without."""
    answer = context.last(role)
    if answer is None:
        return Step(ask=[(role, action)])
    if answer.outcome is None:
        return Step()
    return ask_again(context, context.visit.of(role), (role, action), away_s)


def ask_again(context: Context, answers: list[Answer], ask: tuple[str, Action], away_s: float = LINK_AWAY_S) -> Step:
    """Ask again when the newest of these answers was lost: at once at first, then after pauses; else done."""
    lost = _lost_last(answers)
    if not lost or given_up(context, answers, away_s):
        return Step(done=True)
    if len(lost) < TRIES:
        return Step(ask=[ask])
    pause = context.last("patience")
    if pause is not None and pause.outcome is None:
        return Step()
    if pause is None or pause.asked_s < (lost[-1].closed_s or 0.0):
        wait_s = min(PATIENCE_S_MAX, 2.0 ** (len(lost) - TRIES))
        return Step(ask=[("patience", Wait(until_s=round(context.evidence.now + wait_s, 3)))])
    return Step(ask=[ask])


def given_up(context: Context, answers: list[Answer], away_s: float = LINK_AWAY_S) -> bool:
    """Whether these were lost so often and for so long that nobody asks again."""
    lost = _lost_last(answers)
    return len(lost) >= TRIES and context.evidence.now - (lost[0].closed_s or 0.0) >= away_s


def _lost_last(answers: list[Answer]) -> list[Answer]:
    """Return the answers at the end that were lost, one after another."""
    count = 0
    for answer in reversed(answers):
        if not isinstance(answer.outcome, (Lost, TimedOut)):
            break
        count += 1
    return answers[len(answers) - count :]


def merge(*steps: Step) -> Step:
    """Several steps at once: all their requests; done when all are."""
    return Step(ask=[item for step in steps for item in step.ask], done=all(step.done for step in steps))


# ---------------------------------------------------------------- looking at the host


def probe_action(context: Context) -> Probe:
    """Look at the host in one round trip: what is always looked at, and what the guards of this visit need."""
    server = context.evidence.server
    always = (*host_probe(server), *inputs_sections(context.evidence.plan))
    sections = (*always, *needs(context, always))
    longest = max(section.timeout_s for section in sections)
    return Probe(host=server.host, sections=sections, timeout_s=longest + 10.0 if longest > 60.0 else 30.0)


def inputs_action(context: Context) -> Probe:
    """Look again at what the numbers rest on."""
    server = context.evidence.server
    host = tuple(section for section in host_probe(server) if section.name == "host")
    return Probe(host=server.host, sections=(*host, *inputs_sections(context.evidence.plan)), timeout_s=110.0)


def look_action(context: Context, *names: str) -> Probe:
    """Look at some of it only: what a survey that is made again and again has to know."""
    server = context.evidence.server
    wanted = {*names, "containers"} if "processes" in names else set(names)
    parts = tuple(section for section in host_probe(server) if section.name in wanted)
    return Probe(host=server.host, sections=(*parts, *needs(context, parts)))


def needs(context: Context, have: tuple[Section, ...]) -> tuple[Section, ...]:
    """Return what the guards of this visit want to see beside what is there anyway."""
    plan = context.evidence.plan
    state = plan.state(context.visit.state)
    guards = [*state.guards, *state.observe]
    if context.visit.state == context.campaign.machine.first:
        guards += plan.assumptions.values()
    found = {section.name: section for guard in guards for section in guard.asks(context.evidence.server)}
    return tuple(section for name, section in found.items() if name not in {section.name for section in have})


def owned_action(context: Context) -> Owned | None:
    """List what lives of the servers that this run started; None when it started none."""
    keys = context.campaign.keys()
    return Owned(host=context.evidence.server.host, keys=keys) if keys else None


def poll(context: Context, *wanted: tuple[str, Action | None]) -> Step:
    """Make these requests together, round after round, with growing waits in between; done after each round."""
    roles = [(role, action) for role, action in wanted if action is not None]
    if not roles:
        return Step(done=True)
    rounds = min(len(context.visit.of(role)) for role, _ in roles)
    started = max(len(context.visit.of(role)) for role, _ in roles)
    if started == 0 or rounds < started:
        return Step(ask=[(role, action) for role, action in roles if len(context.visit.of(role)) < max(started, 1)])
    if any(answer.outcome is None for role, _ in roles for answer in context.visit.of(role)):
        return Step()
    waits = context.visit.of("pause")
    if len(waits) < rounds:
        return Step(done=True)  # the caller asks for `again` when the guards want another round
    if waits[-1].outcome is None:
        return Step()
    return Step(ask=list(roles))


def again(context: Context) -> list[tuple[str, Action]]:
    """Return the pause before another round of polling: from 0.1 s growing to 2 s."""
    rounds = len(context.visit.of("pause"))
    return [("pause", Wait(until_s=round(context.evidence.now + min(2.0, 0.1 * 1.5 ** min(rounds, 20)), 3)))]


# ---------------------------------------------------------------- host jobs


def start_job(context: Context, role: str, job: Job) -> Step:
    """Start a job; when the answer is lost, ask the host what became of it and go by the reattach table."""
    answer = context.last(role)
    host = context.evidence.server.host
    if answer is None:
        request = context.next_request(role)
        return Step(ask=[(role, Start(host=host, key=context.key(request), job=job))])
    if answer.outcome is None:
        return Step()
    if isinstance(answer.outcome, Completed):
        return Step(done=True)
    if isinstance(answer.outcome, Refused):
        return Step(done=True, verdict=unknown(f"the host refused: {answer.outcome.text.strip()}", "a started job"))
    return recover_start(context, role, answer)


def recover_start(context: Context, role: str, answer: Answer) -> Step:
    """Find out what became of a start whose answer was lost, with a dropped link or with an earlier controller."""
    assert isinstance(answer.action, Start)
    host, word = context.evidence.server.host, f"{role}-status"
    asked = [status for status in context.visit.of(word) if _of(status) == answer.request]
    status = (word, Status(host=host, key=answer.action.key, of=answer.request))
    if not asked:
        return Step(ask=[status])
    if asked[-1].outcome is None:
        return Step()
    step = ask_again(context, asked, status)
    if not step.done:
        return step
    text = asked[-1].text()
    match reattach("intent", word_of(read_job_state(text) if text is not None else None)):
        case "start" if _asked_under(context, answer.action.key) < TRIES:
            return Step(ask=[(role, answer.action.model_copy(update={"again": answer.request}))])
        case "wait" if context.evidence.now - (answer.closed_s or 0.0) < STARTING_S:
            if (pause := context.last("pause")) is not None and pause.outcome is None:
                return Step()
            if pause is None or pause.asked_s < asked[-1].asked_s:
                return Step(ask=again(context))
            return Step(ask=[status])
        case _:
            verdict = unknown(f"the host says: {text or 'nothing'}", "the state of this start", Finding.LOST)
            return Step(done=True, verdict=verdict)


def _asked_under(context: Context, key: str) -> int:
    """Return how often a start was asked under a key in this visit."""
    actions = [answer.action for answer in context.visit.answers]
    return sum(1 for action in actions if isinstance(action, Start) and action.key == key)


def _of(answer: Answer) -> str:
    return answer.action.of if isinstance(answer.action, Status) else ""


def run_job(context: Context, role: str, job: Job, timeout_s: float, finished: int) -> Step:
    """Start a job and follow it to its end. ``finished`` counts the ones that ended before it in this visit.

    The start is ``<role>-start``, the end ``<role>``. Done when this one has ended, in whatever way.
    """
    # A start that was asked again stands in for the one before it.
    starts = [answer for answer in context.visit.of(f"{role}-start") if not answer.superseded]
    ends = context.visit.of(role)
    host = context.evidence.server.host
    if len(starts) <= finished:
        request = context.next_request(f"{role}-start")
        return Step(ask=[(f"{role}-start", Start(host=host, key=context.key(request), job=job))])
    start = starts[finished]
    assert isinstance(start.action, Start)
    if start.outcome is None:
        return Step()
    if isinstance(start.outcome, (Lost, TimedOut)):
        return recover_start(context, f"{role}-start", start)
    if isinstance(start.outcome, Refused):
        return Step(done=True, verdict=unknown(f"the host refused: {start.outcome.text.strip()}", "a started job"))
    follow = (role, Follow(host=host, key=start.action.key, timeout_s=timeout_s))
    # By key: of the job before this one an answer may have been lost as well, so places do not tell whose end it is.
    own = [end for end in ends if isinstance(end.action, Follow) and end.action.key == start.action.key]
    if not own:
        return Step(ask=[follow])
    if own[-1].outcome is None:
        return Step()
    if isinstance(own[-1].outcome, Lost):
        return ask_again(context, own, follow)
    return Step(done=True)
