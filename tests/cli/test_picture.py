"""The picture of a run: it fits, tells the truth, and obeys nothing that stands in it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len

from agent.cli.live import make_console, render
from agent.cli.picture import Seen
from agent.cli.trial_table import _label
from agent.core.campaign import Campaign
from agent.core.campaign.parts import Record
from agent.core.events import Concluded, Instructed, Interrupt, Moved, Noted, Observed, Proposed, Requested
from agent.core.observations import Completed, Refused, SectionResult
from agent.core.plan import Budget, Host, Server, Trial
from agent.core.probes.gpu import read_gpus
from agent.core.values import Output
from tests.cli.runs import entries, folds
from tests.support.scripted import Box

SIZES = [(80, 24), (120, 40), (40, 10), (200, 60), (64, 18), (63, 17), (20, 4), (7, 3), (1, 1), (80, None)]
HOSTILE = (
    "\x1b[31mred\x9b5m [bold]b[/bold] [/usr/bin/x] :smile: \u202eback\r\n\ttab\u200bzero\x07 \U0001f600 \u6f22\u5b57"
)


def text_of(campaign: Campaign, width: int, height: int | None, extra_s: float = 0.0, **options: Any) -> str:
    """Render to plain text, and check that it fits."""
    out = io.StringIO()
    console = make_console(out, width=width, height=height or 100, color_system=None, force_terminal=False)
    console.print(render(campaign, width, height, extra_s, **options))
    lines = out.getvalue().split("\n")[:-1]
    assert max(cell_len(line) for line in lines) <= width
    assert height is None or len(lines) <= height
    return out.getvalue()


def last(recorded: list[Any]) -> tuple[Campaign, Seen]:
    """Fold everything."""
    seen, state = Seen(), Campaign()
    for entry, state in folds(recorded):
        seen.take(entry, state)
    return state, seen


@pytest.fixture(scope="module")
def whole() -> list[Any]:
    return entries(budget=Budget(launches=12, time_s=600.0))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_moment_of_a_campaign_fits_every_size(whole: list[Any], size: tuple[int, int | None]) -> None:
    """No exception, no line that is too wide, no line too many, at every entry of a whole campaign."""
    seen = Seen(hint="Ctrl-C ends it")
    for entry, campaign in folds(whole):
        seen.take(entry, campaign)
        if entry.seq < 60 or entry.seq % 5 == 0 or entry.seq > len(whole) - 20:
            assert "cannot be drawn" not in text_of(campaign, *size, 1.5, seen=seen)


def test_what_an_operator_wants_to_know_stands_at_80_by_24(whole: list[Any]) -> None:
    """While the third trial is benchmarked: state, repeat, trials with values, best, launches, what happened."""
    seen = Seen()
    for entry, campaign in folds(whole):
        seen.take(entry, campaign)
        event = entry.event
        if isinstance(event, Requested) and "m-16" in event.request and event.request.endswith("bench-start.2"):
            break
    text = text_of(campaign, 80, 24, 3.0, seen=seen)
    for fact in ("scripted", "01234567", "box = scripted", "output_tok_s +20 %", "launches", "4/12", "/10m"):
        assert fact in text
    assert "▶ benchmark" in text
    assert "3.0s of 30m" in text
    assert "✓ health-wait" in text
    assert "· decide" in text
    assert "repeat 2 of 2" in text
    assert "best m-4" in text
    assert "in exploration" in text
    assert "SPEC_OFF" in text
    assert "▶ m-16" in text
    assert "★ m-4" in text
    assert "health-wait ─pass→ benchmark" in text
    baseline = next(line for line in text.splitlines() if " baseline " in line and "±" in line)
    assert " 2 " in baseline


def test_the_decision_and_its_interval_are_in_the_picture_at_the_end(whole: list[Any]) -> None:
    """Word, estimate, interval, the scale with no change and the goal on it; confirmation launches are marked."""
    campaign, seen = last(whole)
    text = text_of(campaign, 80, 24, seen=seen)
    assert "decision: GOAL MET" in text
    assert "m-16 against baseline: +1" in text
    assert "95% interval" in text
    scale = next(line for line in text.splitlines() if "◎ goal" in line)
    assert [sign for sign in scale.split("  0 no")[0] if sign in "0◎├●┤"] == list("0◎├●┤")
    rows = text_of(campaign, 80, 40, seen=seen).splitlines()
    assert any("◆ confirm-1-baseline" in row for row in rows)
    pair = next(row for row in rows if "◆ confirm-1-winner" in row)
    assert " +14" in pair  # against the other one of its pair
    assert "✓ done after" in text
    assert "in exploration" in text  # the best is still shown as what it is


def test_the_newest_the_best_and_the_baseline_stay_when_trials_do_not_fit(whole: list[Any]) -> None:
    """Trials scroll; these three do not."""
    campaign, seen = last(whole)
    campaign.concluded = None
    shown = [line for line in text_of(campaign, 40, 12, seen=seen).splitlines() if "±" in line]
    assert len(shown) < len(campaign.history)
    names = " ".join(shown)
    assert "★ m-16" in names
    assert "baseline" in names
    assert campaign.history[-1].trial.id == "confirm-2-baseline"
    assert "confirm-2-ba…" in names
    assert "not shown" in text_of(campaign, 40, 12, seen=seen)


@pytest.mark.parametrize("size", SIZES[:6], ids=str)
def test_a_rehearsal_says_so_first_always(size: tuple[int, int | None]) -> None:
    """Also while it is cut, held or over, and when drawing fails."""
    for cut in (5, 60, None):
        campaign, seen = last(entries(crash_after=cut, rehearsal="lab of 8 simulated H200"))
        assert text_of(campaign, *size, seen=seen).startswith("REHEARSAL")
    campaign.history = None  # type: ignore[assignment]
    text = text_of(campaign, *size, seen=seen)
    assert text.startswith("REHEARSAL")
    assert "cannot be drawn" in text


def test_a_hold_says_why_and_how_to_go_on() -> None:
    """The host is leased by another campaign: held in probe."""
    box = Box(refuse=lambda r, a: Refused(code="BUSY", text="BUSY ab epoch 3 age 5") if a.do == "acquire" else None)
    campaign, seen = last(entries(box))
    for size in SIZES[:4]:
        text = text_of(campaign, *size, seen=seen)
        assert "HELD in probe" in text
        assert "go on: agent" in text
    text = text_of(campaign, 80, 24, seen=seen)
    assert "agent resume 01234567" in text
    assert "the host is leased" in text
    assert "■ hold" in text
    assert "✗ probe" in text


def test_an_interrupted_run_says_that_the_server_is_left() -> None:
    """The last picture of a run that was ended by Ctrl-C."""
    recorded = entries(crash_after=60)
    order = Instructed(order=Interrupt(), by="test")
    recorded.append(type(recorded[-1])(**{**_fields(recorded[-1]), "seq": len(recorded) + 1, "event": order}))
    campaign, seen = last(recorded)
    text = text_of(campaign, 80, 24, seen=seen)
    assert "■ interrupted in" in text
    assert "the server is left as it is" in text
    assert "agent resume 01234567" in text


def _fields(entry: Any) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in type(entry).__dataclass_fields__}


def test_a_failed_start_shows_its_class_in_the_table() -> None:
    """A server that dies: CRASH beside its trial."""
    campaign, seen = last(entries(Box(dies=lambda action: "4" in action.job.argv)))
    line = next(line for line in text_of(campaign, 120, 40, seen=seen).splitlines() if " m-4 " in line)
    assert "CRASH" in line


def test_what_is_left_of_the_time_stands_whole_at_80_columns(whole: list[Any]) -> None:
    """The line of the budgets is not cut, and only a state that follows a start speaks of one."""
    told = 0
    for entry, campaign in folds(whole):
        if entry.seq % 20 or campaign.visit is None or campaign.concluded is not None:
            continue
        text = text_of(campaign, 80, 24, 3700.0)
        (budgets,) = [line for line in text.splitlines() if line.startswith("launches ")]
        assert "…" not in budgets
        told += budgets.endswith("to go")
        assert ("no line of the start yet" in text) <= (campaign.visit.state == "health-wait"), campaign.visit.state
    assert told > 3


def test_a_cut_label_begins_with_a_whole_word() -> None:
    """Half a flag's name would read like another flag."""
    record = Record(Trial(id="t", role="candidate", point={"flags.speculative-num-steps": 3}), "l1")
    assert _label(record, 40) == "speculative-num-steps=3"
    assert _label(record, 16) == "…num-steps=3"
    assert _label(record, 9) == "…steps=3"


def test_the_phases_of_a_start_each_with_its_time() -> None:
    """A watched start: past phases with how long they took, the newest with its age, the health code."""
    recorded = entries(crash_after=80)
    first = recorded[0].event
    server = first.plan.server.model_copy(update={"kind": "sglang"})
    changed = first.model_copy(update={"plan": first.plan.model_copy(update={"server": server})})
    recorded[0] = type(recorded[0])(**{**_fields(recorded[0]), "event": changed})
    place = next(i for i, e in enumerate(recorded) if isinstance(e.event, Noted) and e.event.request.endswith("watch"))
    campaign, _ = last(recorded[:place])
    assert "no line of the start yet" in text_of(campaign, 80, 24, 1.0)
    assert campaign.visit is not None
    watch = campaign.visit.of("watch")[-1]
    watch.parts = [
        (campaign.now, "log 0 [2026-01-01 10:00:00 TP0] Load weight begin. avail mem=139.0 GB\nhealth 0"),
        (campaign.now + 12.0, "log 9 [2026-01-01 10:00:12 TP0] Capture cuda graph begin. This can take up to minutes."),
    ]
    campaign.now += 15.0
    text = text_of(campaign, 80, 24, 2.0)
    assert "12s › " in text
    assert " 5.0s" in text
    assert "health no answer" in text


GPUS = """index, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]
0, GPU-a, NVIDIA H200, 71204, 143771, 98
1, GPU-b, NVIDIA H200, [N/A], 143771, [N/A]
"""


def test_gpus_are_shown_as_bars_and_what_is_unknown_as_unknown() -> None:
    """Memory and load for each GPU, the age of the probe; never 0 for a cell that is no number."""
    server = Server(kind="llamacpp", host="box", port=1, gpus=2, command=("serve",), flags={"threads": 1})
    campaign, seen = last(entries(crash_after=30, server=server))
    seen.gpus, seen.gpus_s = read_gpus(SectionResult(status=0, out=GPUS)), campaign.now
    for size in [(80, 24), (120, 40), (80, None)]:
        text = text_of(campaign, *size, 12.0, seen=seen)
        assert "GPUs 2" in text
        assert "probed 12s ago" in text
        assert "69.5/140G" in text
        assert " 98 %" in text
        assert "memory ?" in text
        assert "load ?" in text
    assert "GPUs 2" in text_of(campaign, 40, 12, seen=seen)
    campaign, _ = last(entries(crash_after=30))
    assert "GPU" not in text_of(campaign, 80, 24, seen=seen)  # this server uses none


def test_the_newest_probe_with_gpus_counts() -> None:
    """Learnt from the answers as they pass; a probe without that section, or cut in it, changes nothing."""
    recorded = entries(crash_after=40)
    envelope = _fields(recorded[-1])
    mark = "#0123456789abcdef"
    seen, campaign = Seen(), last(recorded)[0]

    def answer(out: str) -> None:
        event = Observed(request="main/x/l1/probe/1/probe", outcome=Completed(status=0, out=Output.of(out)))
        seen.take(type(recorded[-1])(**{**envelope, "event": event}), campaign)

    answer(f"{mark}\n{mark} begin ports\n\n{mark} end ports rc=0")
    assert seen.gpus is None
    answer(f"{mark}\n{mark} begin gpus\n{GPUS}\n{mark} end gpus rc=0")
    assert seen.gpus is not None
    assert [gpu.used_mib for gpu in seen.gpus.gpus] == [71204, None]
    answer(f"{mark}\n{mark} begin gpus\n{GPUS}")
    assert [gpu.used_mib for gpu in seen.gpus.gpus] == [71204, None]


def hostile_run() -> tuple[Campaign, Seen]:
    """Put hostile text wherever text can come from outside."""
    server = Server(kind="llamacpp", host="box", port=1, gpus=0, command=("serve",), flags={"threads": 1})
    hosts = {"box": Host(name="box", address=HOSTILE)}
    recorded = entries(Box(dies=lambda action: "4" in action.job.argv), name=HOSTILE, hosts=hosts, server=server)
    changed = []
    for entry in recorded:
        event = entry.event
        if isinstance(event, Proposed):
            point = dict.fromkeys(event.trial.point, HOSTILE)
            event = event.model_copy(
                update={"because": HOSTILE, "trial": event.trial.model_copy(update={"point": point})}
            )
        elif isinstance(event, (Moved, Concluded)):
            event = event.model_copy(update={"because": HOSTILE})
        elif event.kind == "judged":
            verdict = event.verdict.model_copy(update={"saw": HOSTILE, "wanted": HOSTILE, "remedy": HOSTILE})
            event = event.model_copy(update={"verdict": verdict})
        changed.append(type(entry)(**{**_fields(entry), "event": event}))
    return last(changed)


def test_hostile_text_is_shown_and_not_obeyed() -> None:
    """No escape, no markup, no emoji code, no direction mark takes effect at any size."""
    campaign, seen = hostile_run()
    seen.hint = HOSTILE
    for decided in (True, False):
        if not decided:
            campaign.concluded = None
        for size in [*SIZES, (300, 80)]:
            text = text_of(campaign, *size, seen=seen)
            assert not {sign for sign in text if sign != "\n" and not sign.isprintable()}
            assert "cannot be drawn" not in text
    text = text_of(campaign, 300, 80, seen=seen)
    assert "\\x1b[31mred" in text
    assert "[bold]b[/bold] [/usr/bin/x] :smile: \\u202eback" in text
