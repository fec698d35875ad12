"""A run as a picture: lines of text made from the campaign alone, for any width and height. Pure, and total.

Text from outside passes ``one_line``; only ``rich.text.Text`` objects are built, so that nothing in it is markup.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Group
from rich.text import Text

from agent.cli.display import line_of, stamp
from agent.cli.eta import to_go
from agent.cli.gauges import FAINT, bar, gpu_lines, interval_line
from agent.cli.text import one_line, safe
from agent.cli.trial_table import best_of, percent, ratio_of, trial_lines
from agent.core.campaign import Campaign
from agent.core.campaign.parts import Visit
from agent.core.events import Concluded, Entry, Observed
from agent.core.evidence import read_watch
from agent.core.machine import ENDS, HOLD
from agent.core.observations import Completed, SectionResult, read_sections
from agent.core.probes.gpu import GpuTable, read_gpus
from agent.core.probes.logs import without_stamp
from agent.core.servers import kind_of
from agent.core.values import MissingBlobError, Result, duration_text

WIDE, TALL = 64, 18
"""From this size on ladder and trials stand side by side."""
LADDER_CELLS_MAX = 22
LOG_ROWS_MIN = 3
KEPT_LINES = 200
SILENT = ("deadline", "tick", "lull", "pause", "cancel", "watch")
"""Requests that say nothing about what is being done."""


@dataclass
class Seen:
    """What a viewer keeps beside the campaign: lines of what happened, and the GPUs as they were last probed."""

    happened: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    gpus: GpuTable | None = None
    gpus_s: float = 0.0
    """Campaign time of that probe."""
    hint: str = ""
    """What the viewer can do."""

    def take(self, entry: Entry, campaign: Campaign) -> None:
        """Learn from an entry that the campaign has just taken in."""
        event = entry.event
        if isinstance(event, Concluded):
            self.happened.append(f"{stamp(campaign)}  decision: {event.word}")  # the rest has a place of its own
        elif line := line_of(entry, campaign):
            self.happened.extend(part for part in line.split("\n") if part.strip())
        if isinstance(event, Observed) and isinstance(event.outcome, Completed):
            table = _gpus_in(event.outcome)
            if table is not None:
                self.gpus, self.gpus_s = table, campaign.now


def _gpus_in(outcome: Completed) -> GpuTable | None:
    try:
        text = outcome.out.string()
    except MissingBlobError:
        return None
    found: SectionResult | None = read_sections(text).get("gpus") if " begin gpus\n" in text else None
    return read_gpus(found) if found is not None and found.status is not None else None


def render(
    campaign: Campaign, width: int, height: int | None, now_extra_s: float = 0.0, *, seen: Seen | None = None
) -> Group:
    """Return the picture in at most ``height`` lines (None: all there is) of at most ``width`` cells.

    ``now_extra_s`` is the time since the campaign's last entry. A defect in here becomes a line of text.
    """
    width, now = max(1, width), campaign.now + now_extra_s
    try:
        lines = _lines(campaign, width, max(1, height) if height is not None else None, now, seen or Seen())
    except Exception as error:  # a view must never end a run
        lines = [*_first(campaign), Text(one_line(f"this view cannot be drawn: {type(error).__name__}: {error}"))]
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
        line.truncate(width, overflow="ellipsis")
    return Group(*(lines if height is None else lines[: max(1, height)]))


def _first(campaign: Campaign) -> list[Text]:
    opened = campaign.opened
    return [Text("REHEARSAL", style="bold reverse yellow")] if opened is not None and opened.rehearsal else []


def _lines(campaign: Campaign, width: int, height: int | None, now: float, seen: Seen) -> list[Text]:
    if campaign.opened is None:
        return [Text("nothing is recorded yet")]
    parts = _Parts(
        [_title(campaign, width, now), *_aims(campaign, width, now)],
        [_now_line(campaign, now, width), *_doing(campaign, now)],
        _decision(campaign, width),
        gpu_lines(seen.gpus, now - seen.gpus_s, width) if campaign.server.gpus else [],
    )
    laid_out = _wide if width >= WIDE and (height is None or height >= TALL) else _narrow
    return laid_out(campaign, width, height, parts, seen)


@dataclass(frozen=True)
class _Parts:
    """What every layout shows, as lines; how many of each is the layout's choice."""

    head: list[Text]
    doing: list[Text]
    decision: list[Text]
    gpus: list[Text]


def _wide(campaign: Campaign, width: int, height: int | None, parts: _Parts, seen: Seen) -> list[Text]:
    """Put the ladder beside the trials; what happened gets the rest."""
    head, doing, decision, gpus = parts.head, parts.doing, parts.decision, parts.gpus
    ladder = _ladder(campaign)
    cells = min(LADDER_CELLS_MAX, max(line.cell_len for line in ladder) + 2)
    rows = max(len(ladder), len(campaign.history) + 1)
    if height is not None:
        fixed = len(head) + len(doing) + len(decision) + 2
        if fixed + len(gpus) + len(ladder) + LOG_ROWS_MIN > height:
            gpus = gpus[:1]  # the line that sums them up
        rows = max(min(5, len(ladder)), min(rows, height - fixed - len(gpus) - LOG_ROWS_MIN))
    ladder = _window(ladder, rows, _place(campaign))
    trials = trial_lines(campaign, width - cells, rows)
    middle = []
    for row in range(max(len(ladder), len(trials))):
        line = Text().append_text(ladder[row]) if row < len(ladder) else Text()
        line.truncate(cells, overflow="ellipsis", pad=True)
        middle.append(line.append_text(trials[row]) if row < len(trials) else line)
    lines = [*head, _rule(width), *middle, _rule(width), *doing, *decision, *gpus]
    left = None if height is None else height - len(lines)
    return [*lines, *_happened(seen, width, left, campaign.concluded is not None)]


def _narrow(campaign: Campaign, width: int, height: int | None, parts: _Parts, seen: Seen) -> list[Text]:
    """Stack what matters most: where it stands, what it found, what happened."""
    decision = parts.decision
    top = [*parts.head, *(decision or parts.doing[:1])]
    rest = [] if decision else [*parts.doing[1:], *parts.gpus[:1]]
    if height is None:
        return [*top, *rest, *trial_lines(campaign, width, 1000), *_happened(seen, width, None, bool(decision))]
    top = top[:height]
    left = height - len(top)
    rest = rest[: max(0, left - 4)]
    left -= len(rest)
    trials = trial_lines(campaign, width, max(0, left - left // 3))
    return [*top, *rest, *trials, *_happened(seen, width, left - len(trials), bool(decision))]


# ---------------------------------------------------------------- the parts


def _title(campaign: Campaign, width: int, now: float) -> Text:
    assert campaign.opened is not None
    line = Text()
    if campaign.opened.rehearsal:
        line.append("REHEARSAL", style="bold reverse yellow").append(" simulated ", style="yellow")
    line.append(one_line(campaign.plan.name, 40), style="bold")
    hosts = ", ".join(f"{host.name} = {host.address}" for host in campaign.plan.hosts.values())
    line.append(f"  {campaign.opened.campaign[:8]}  ", style=FAINT).append(one_line(hosts, 60))
    clock = _seconds(now)
    room = width - len(clock) - 1
    if room > 12:
        line.truncate(room, overflow="ellipsis", pad=True)
        line.append(f" {clock}", style="bold")
    return line


def _aims(campaign: Campaign, width: int, now: float) -> list[Text]:
    """Say how the best so far stands to the goal, and how much of the budget is used."""
    goal, budget = campaign.plan.goal, campaign.plan.budget
    sign = "+" if goal.direction == "up" else "-"
    line = Text.assemble(("goal ", FAINT), f"{one_line(goal.metric, 30)} {sign}{goal.improve * 100:.3g} %")
    if (debug := campaign.plan.debug) is not None:
        wanted = debug.bisect.bad if debug.bisect is not None else debug.healthy
        words = "; ".join(guard.wants() for guard in wanted)
        line = Text.assemble(
            ("the fault is " if debug.bisect is not None else "healthy is ", FAINT), one_line(words, 80)
        )
    best = best_of(campaign)
    if best is not None and best.scored is not None:
        ratio = ratio_of(campaign, best)
        line.append("   best ", style=FAINT).append(one_line(best.trial.id, 20), style="bold")
        line.append(f" {best.scored.values[goal.metric]:.4g}")
        if ratio is not None:
            reached = ratio - 1 >= goal.improve if goal.direction == "up" else 1 - ratio >= goal.improve
            line.append(f" {percent(ratio)}", style="green" if reached else "")
        line.append(" in exploration", style=FAINT)
    started = sum(1 for launch in campaign.launches.values() if launch.key)
    cells = max(4, min(24, (width - 62) // 2))  # beside both, what is left of the time has room
    used = Text.assemble(("launches ", FAINT), *_used(started, budget.launches, str(started), cells))
    used.append("   time ", style=FAINT)
    used.append_text(Text.assemble(*_used(now, budget.time_s, duration_text(round(now)), cells)))
    return [line, used.append(to_go(campaign, now), style=FAINT)]


def _used(used: float, limit: float | None, words: str, cells: int) -> list[Text | str]:
    if limit is None:
        return [words]
    of = duration_text(limit) if isinstance(limit, float) else str(limit)
    share = used / limit if limit else 1.0
    return [bar(share, cells, "cyan" if share < 0.9 else "yellow"), f" {words}/{of}"]


def _now_line(campaign: Campaign, now: float, width: int) -> Text:
    """Say where the run stands: the state, on what, for how long, of how long."""
    visit = campaign.visit
    assert campaign.opened is not None
    resume = f"agent resume {campaign.opened.campaign[:8]}"
    if visit is None:
        return Text("opening", style="bold")
    if visit.state == HOLD:
        move = campaign.moves[-1]
        line = Text.assemble(("■ HELD", "bold red"), f" in {one_line(move.source, 30)}")
        return line.append(f"   go on: {resume}", style="cyan")
    if visit.state in ENDS:
        sign = "✓" if visit.state == "done" else "✗"
        return Text.assemble((f"{sign} {one_line(visit.state, 30)}", "bold"), f" after {_seconds(now)}")
    if campaign.interrupted:
        line = Text.assemble(("■ interrupted", "bold yellow"), f" in {one_line(visit.state, 30)}")
        return line.append(f"   go on: {resume}", style="cyan")
    state = next((state for state in campaign.plan.states if state.name == visit.state), None)
    passed = max(0.0, now - visit.entered_s)
    line = Text.assemble(("▶ ", "bold cyan"), (one_line(visit.state, 30), "bold cyan"), "  ")
    line.append(_seconds(passed))
    if state is not None:
        line.append(f" of {duration_text(state.timeout_s)} ", style=FAINT)
        share = passed / state.timeout_s if state.timeout_s else 1.0
        line.append_text(bar(share, max(4, min(12, width // 10)), "cyan" if share < 0.8 else "yellow"))
    if visit.attempt > 1:
        line.append(f"  attempt {visit.attempt}", style="yellow")
    line.append(f"  {one_line(visit.trial, 30)} on {one_line(visit.launch, 12)}", style=FAINT)
    return line.append("  stopping", style="yellow") if campaign.stopping else line


def _doing(campaign: Campaign, now: float) -> list[Text]:
    """Say what the state is at: phases of a start, repeats of a benchmark, and what a guard still waits for."""
    visit = campaign.visit
    if visit is None:
        return []
    if visit.state == HOLD:
        return [Text(f"  {one_line(campaign.moves[-1].because, 300)}")]
    if campaign.interrupted:
        return [Text("  nothing more is started; the server is left as it is")]
    lines = []
    words = next((state.do for state in campaign.plan.states if state.name == visit.state), ())
    # Other states watch as well, so that a death is known at once; a start is followed in one of them only.
    if "watch" in words and (phases := _phases(campaign, visit, now)):
        lines.append(phases)
    record, benchmark = campaign.record, campaign.plan.benchmark
    open_ = [answer for answer in visit.open() if answer.role not in SILENT]
    if "benchmark" in words and record is not None and benchmark is not None:
        repeats, done = benchmark.repeats, len(record.benchmarks)
        until = f", at most {repeats.max}" if repeats.max > repeats.min else ""
        running = f"  {_seconds(now - open_[-1].asked_s)} in this one" if open_ else ""
        text = f"  repeat {done + 1} of {max(repeats.min, done + 1)}{until}{running}"
        lines.append(Text(text if done < repeats.max else f"  {done} repeats, checking that the server lives"))
    elif open_:
        roles = ", ".join(f"{one_line(answer.role, 20)} {_seconds(now - answer.asked_s)}" for answer in open_[:3])
        lines.append(Text(f"  {roles}", style=FAINT))
    verdicts = {**visit.verdicts, **visit.judged}
    for name, verdict in verdicts.items():
        if verdict.result is not Result.PASS:
            words_ = f"{one_line(name, 40)}: {one_line(verdict.saw, 160)}; wanted {one_line(verdict.wanted, 80)}"
            failed = verdict.result is Result.FAIL
            line = Text.assemble(("  ✗ " if failed else "  not yet ", "red" if failed else "yellow"))
            lines.append(line.append(words_))
            break
    return lines


def _phases(campaign: Campaign, visit: Visit, now: float) -> Text | None:
    """Return the phases of the start that is being watched, each with how long it took or has been going on."""
    watches = visit.of("watch")
    if not watches:
        return None
    kind = kind_of(campaign.server.kind)
    advance = getattr(kind, "advance", None)
    steps: list[tuple[str, float]] = []
    newest, health, seen = visit.entered_s, "", set[str]()
    facts = read_watch(part for watch in watches for part in watch.parts)
    for at, text in facts.log:
        found = kind.phase(text)
        if found is None or (words := without_stamp(text)) in seen:
            continue
        seen.add(words)
        newest, before = at, steps[-1][0] if steps else ""
        name = advance(before, found) if advance is not None else found
        if name != before:
            steps.append((name, at))
    if facts.health:
        health = str(facts.health[-1][1] or "no answer")
    line = Text("  ")
    for place, (name, at) in enumerate(steps):
        last = place == len(steps) - 1
        line.append(" › " if place else "", style=FAINT).append(one_line(name, 24), style="bold" if last else "")
        took = steps[place + 1][1] - at if not last else now - at
        line.append(f" {_seconds(took)}", style="" if last else FAINT)
    line.append("" if steps else "no line of the start yet")
    if steps and newest > steps[-1][1]:
        line.append(f"   newest {_seconds(now - newest)} ago", style=FAINT)
    return line.append(f"   health {health}" if health else "", style=FAINT)


def _ladder(campaign: Campaign) -> list[Text]:
    """Return the states in order, each with how the current trial fared in it."""
    visit = campaign.visit
    current = visit.state if visit is not None else ""
    marks: dict[str, str] = {}
    for move in reversed(campaign.moves):
        if move.outcome in ("next", "same-launch", "launch", "open"):
            break
        if move.source != HOLD:
            marks.setdefault(move.source, move.outcome)
    passed = {move.source for move in campaign.moves if move.outcome in ("pass", "settled")}
    lines = []
    for place, state in enumerate(campaign.plan.states):
        name = one_line(state.name, 30)
        if state.name == current:
            lines.append(Text(f"▶ {name}", style="bold cyan"))
        elif (outcome := marks.get(state.name)) is None:
            # Behind us, but not on the way of this trial: passed once for all of them.
            once = place < _place(campaign) and state.name in passed
            lines.append(Text(f"{'✓' if once else '·'} {name}", style=FAINT))
        elif outcome in ("fail", "unknown", "timeout", "fenced") or outcome.startswith("refused"):
            lines.append(Text.assemble(("✗ ", "red"), name))
        else:
            lines.append(Text.assemble(("✓ ", "green"), name))
    if current in ENDS:
        lines.append(
            Text(f"{'✓' if current == 'done' else '■'} {current}", style="bold" if current == "done" else "red")
        )
    return lines


def _place(campaign: Campaign) -> int:
    current = campaign.visit.state if campaign.visit is not None else ""
    names = [state.name for state in campaign.plan.states]
    return names.index(current) if current in names else len(names)


def _window(lines: Sequence[Text], rows: int, place: int) -> list[Text]:
    """Return ``rows`` of the lines, with the one at ``place`` among them."""
    start = max(0, min(place - rows // 2, len(lines) - rows))
    return list(lines[start : start + rows])


def _decision(campaign: Campaign, width: int) -> list[Text]:
    decision = campaign.concluded
    if decision is None:
        return []
    good = decision.word in ("goal met", "improved", "found")
    lines = [Text(f"decision: {decision.word.upper()}", style="bold green" if good else "bold yellow")]
    if decision.ratio is not None:
        line = Text(f"  {one_line(decision.winner, 30)} against {one_line(decision.baseline, 20)}: ")
        line.append(percent(decision.ratio), style="bold")
        if decision.low is not None and decision.high is not None:
            line.append(f", {decision.level:.0%} interval {percent(decision.low)} … {percent(decision.high)}")
            line.append(f", {decision.launches} launches", style=FAINT)
            lines += [line, interval_line(decision, campaign.plan.goal, width)]
        else:
            lines.append(line.append(" (exploration only, no interval)", style=FAINT))
    if decision.because:
        lines.append(Text(f"  {one_line(decision.because, 300)}", style=FAINT))
    return lines


def _rule(width: int) -> Text:
    return Text("─" * width, style=FAINT)


def _happened(seen: Seen, width: int, rows: int | None, over: bool) -> Iterable[Text]:
    """Return the newest lines of what happened, under a rule with the viewer's hint."""
    rows = len(seen.happened) + 1 if rows is None else rows
    if rows < 2 or not seen.happened:
        return []
    rule = _rule(width)
    hint = one_line(seen.hint, 70)
    if hint and not over and len(hint) + 6 < width:
        rule = Text.assemble(("─" * (width - len(hint) - 3), FAINT), (f" {hint} ─", FAINT))
    return [rule, *(_event(line, width) for line in list(seen.happened)[-(rows - 1) :])]


def _event(line: str, width: int) -> Text:
    """Return a line of what happened; its columns stay where there is room for them."""
    shown = safe(line, keep_newlines=False).replace("\t", " ") if width >= WIDE else one_line(line, 300)
    return Text(shown[:300], style="red" if "✗" in shown[:24] else "")


def _seconds(seconds: float) -> str:
    """Write a short time so that it does not jump in width at each tick."""
    seconds = max(0.0, seconds)
    return f"{seconds:.1f}s" if seconds < 10 else duration_text(round(seconds))
