"""The live view: the terminal is given back, questions can be answered, and nothing reaches into the loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agent.cli import live, picture
from agent.cli.display import JsonLines, PlainLines
from agent.cli.live import LiveView, make_console, render
from agent.cli.run import make_display
from agent.cli.session import Session
from agent.core.actions import Ask
from agent.core.plan import Budget
from tests.cli.runs import entries, folds, opened
from tests.cli.test_picture import last


@pytest.fixture(scope="module")
def whole() -> list[Any]:
    return entries(budget=Budget(launches=12, time_s=600.0))


class Terminal(io.StringIO):
    """A terminal that can go away."""

    gone = False

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(5, "Input/output error")
        return super().write(text)

    def isatty(self) -> bool:
        return True


def view_of(out: Terminal, size: tuple[int, int] = (80, 24)) -> LiveView:
    return LiveView(console=make_console(out, width=size[0], height=size[1], force_terminal=True))


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    hook = sys.excepthook
    yield Terminal()
    assert sys.excepthook is hook, "the view is still there"


def test_the_terminal_is_given_back_with_the_last_picture(whole: list[Any], terminal: Terminal) -> None:
    """Second screen and hidden cursor during the run; then both undone, the picture and the last words remain."""
    view = view_of(terminal)
    view.say("run xyz")
    assert terminal.getvalue() == "run xyz\n"
    for entry, campaign in folds(whole):
        view.show(entry, campaign, live=True)
    view.say("journal: /somewhere")
    view.close()
    view.close()
    written = terminal.getvalue()
    assert written.count("\x1b[?1049h") == written.count("\x1b[?1049l") == 1
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    remains = written[written.rindex("\x1b[?1049l") :]
    assert "decision: GOAL MET" in remains
    assert "confirm-2-winner" in remains
    assert remains.rstrip().endswith("journal: /somewhere")


def test_a_burst_of_entries_is_drawn_at_most_eight_times_a_second(
    whole: list[Any], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that goes 10 ms on for each entry."""
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    view = view_of(terminal)
    for entry, campaign in folds(whole):
        now[0] += 0.010
        view.show(entry, campaign, live=True)
    drawn = terminal.getvalue().count("\x1b[H")
    assert 2 < drawn <= len(whole) * 0.010 * 8 + 3
    view.close()


def test_the_clock_goes_on_while_nothing_happens(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """One picture a second, in the loop that runs anyway, and none once it is over."""
    monkeypatch.setattr(live, "CLOCK_S", 0.05)
    monkeypatch.setattr(live, "BEAT_S", 0.02)
    recorded = entries(crash_after=60)
    view = view_of(terminal)

    async def wait() -> None:
        for entry, campaign in folds(recorded):
            view.show(entry, campaign, live=True)
        before = terminal.getvalue().count("\x1b[H")
        async with asyncio.timeout(20):
            while terminal.getvalue().count("\x1b[H") - before < 4:
                await asyncio.sleep(0.02)
        view.close()
        size = len(terminal.getvalue())
        await asyncio.sleep(0.1)
        assert len(terminal.getvalue()) == size

    asyncio.run(wait())


def test_a_question_gets_the_terminal_for_itself(whole: list[Any], terminal: Terminal) -> None:
    """While it is paused entries are taken in and nothing is drawn; remarks are printed plainly."""
    view = view_of(terminal)
    steps = folds(whole)
    for _ in range(30):
        view.show(*next(steps), live=True)
    view.pause()
    assert terminal.getvalue().endswith("\x1b[?1049l") or "\x1b[?25h" in terminal.getvalue()[-20:]
    size = len(terminal.getvalue())
    view.show(*next(steps), live=True)
    view.beat()
    assert len(terminal.getvalue()) == size
    view.say("    ours: pid 1 [bold]\x1b[31m")
    assert terminal.getvalue()[size:] == "    ours: pid 1 [bold]\\x1b[31m\n"
    view.unpause()
    view.show(*next(steps), live=True)
    assert terminal.getvalue().count("\x1b[?1049h") == 2
    view.close()
    assert terminal.getvalue().count("\x1b[?1049l") == 2


def test_a_terminal_that_goes_away_does_not_end_the_run(whole: list[Any], terminal: Terminal) -> None:
    """The window is closed during the run: not one exception reaches the loop."""
    view = view_of(terminal)
    for entry, campaign in folds(whole):
        terminal.gone = entry.seq > 50
        view.show(entry, campaign, live=True)
        view.beat()
    view.say("the end")
    view.close()


def test_a_defect_of_the_view_does_not_end_the_run(
    whole: list[Any], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown as text instead."""

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("[bold]0[/bold]")

    monkeypatch.setattr(picture, "_lines", broken)
    view = view_of(terminal)
    for entry, campaign in folds(whole[:40]):
        view.show(entry, campaign, live=True)
    view.close()
    assert "this view cannot be drawn: ZeroDivisionError: [bold]0[/bold]" in terminal.getvalue()


def test_an_error_that_nobody_catches_is_printed_where_it_can_be_read(terminal: Terminal) -> None:
    """The screen is given back before the traceback is printed."""
    said: list[str] = []
    before, sys.excepthook = sys.excepthook, lambda *error: said.append(terminal.getvalue())
    try:
        view = view_of(terminal)
        for entry, campaign in folds(entries(crash_after=20)):
            view.show(entry, campaign, live=True)
        sys.excepthook(RuntimeError, RuntimeError("x"), None)
        assert said[0].count("\x1b[?1049l") == 1
    finally:
        sys.excepthook = before


def test_a_picture_can_be_exported(whole: list[Any]) -> None:
    """What the README shows is the same picture."""
    campaign, seen = last(whole)
    console = Console(record=True, width=100, file=io.StringIO(), markup=False, emoji=False, highlight=False)
    console.print(render(campaign, 100, None, seen=seen))
    assert "GOAL&#160;MET" in console.export_svg(title="agent")


@pytest.mark.parametrize(
    ("isatty", "term", "encoding", "json", "plain", "expected"),
    [
        (True, "xterm-256color", "utf-8", False, False, LiveView),
        (True, "xterm-256color", "utf-8", False, True, PlainLines),
        (True, "xterm-256color", "utf-8", True, False, JsonLines),
        (True, "dumb", "utf-8", False, False, PlainLines),
        (True, "", "utf-8", False, False, PlainLines),
        (True, "xterm", "latin-1", False, False, PlainLines),
        (False, "xterm", "utf-8", False, False, PlainLines),
    ],
)
def test_the_display_fits_where_the_output_goes(
    monkeypatch: pytest.MonkeyPatch, isatty: bool, term: str, encoding: str, json: bool, plain: bool, expected: type
) -> None:
    """The live view only on a terminal that can show it, and only when nothing else is wanted."""

    class Out(io.StringIO):
        pass

    Out.encoding = encoding  # type: ignore[misc]
    out = Out()
    monkeypatch.setattr(out, "isatty", lambda: isatty)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", term)
    assert type(make_display(argparse.Namespace(json=json, plain=plain))) is expected


def test_the_operator_is_asked_with_the_view_out_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pause, list and question, answer, unpause; also when the answer never comes."""
    told: list[str] = []

    class Told(PlainLines):
        def say(self, text: str) -> None:
            told.append(text)

        def pause(self) -> None:
            told.append("pause")

        def unpause(self) -> None:
            told.append("unpause")

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    async def answer() -> str:
        told.append("asked")
        if len(told) > 4:
            raise EOFError
        return "yes\n"

    monkeypatch.setattr(sys, "stdin", Tty())
    monkeypatch.setattr(sys, "stdout", Tty())
    monkeypatch.setattr("agent.cli.session.read_line", answer)
    session = object.__new__(Session)
    session.display = Told()
    action = Ask(question="End it?", lines=("pid 1 \x1b[2J",), digest="d")
    assert asyncio.run(session._ask(action)) is True
    assert told == ["pause", "\n    pid 1 \\x1b[2J", "asked", "unpause"]
    assert sys.stdout.getvalue() == "End it? [yes/no] "  # type: ignore[attr-defined]
    with pytest.raises(EOFError):
        asyncio.run(session._ask(action))
    assert told[-1] == "unpause"


# ---------------------------------------------------------------- on a real terminal


class Tmux:
    """A terminal of a given size, with what it shows."""

    def __init__(self, name: str) -> None:
        self.base = ["tmux", "-L", name, "-f", "/dev/null"]

    def do(self, *words: str) -> str:
        done = subprocess.run([*self.base, *words], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout

    def wait(self, text: str, seconds: float = 30) -> str:
        """Return the screen once it shows ``text``."""
        end = time.monotonic() + seconds
        while text not in (shown := self.do("capture-pane", "-p", "-S", "-200")):
            assert time.monotonic() < end, shown
            time.sleep(0.1)
        return shown

    def redrawn(self, first: str, seconds: float = 10) -> list[str]:
        """Return the lines of the screen once the first of them begins with ``first``."""
        end = time.monotonic() + seconds
        while not (shown := self.do("capture-pane", "-p").rstrip("\n").split("\n"))[0].startswith(first):
            assert time.monotonic() < end, shown
            time.sleep(0.1)
        return shown


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux")
    terminal = Tmux(f"agent-test-{tmp_path.name}")
    terminal.do("new-session", "-d", "-x", "80", "-y", "24", "bash --norc")
    try:
        yield terminal
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            terminal.do("kill-server")


@pytest.mark.real
def test_on_a_real_terminal_it_survives_resizing_and_gives_the_screen_back(tmux: Tmux) -> None:
    """80x24, smaller, larger; afterwards the shell's screen is back, with the last picture and the exit status."""
    tmux.do("send-keys", f"{sys.executable} -m tests.cli.runs --pace 0.02; echo STATUS $?", "Enter")
    tmux.wait("▶ ")
    assert tmux.do("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip() == "1 0"
    for width, height in ((40, 10), (120, 40), (15, 3), (80, 24)):
        tmux.do("resize-window", "-x", str(width), "-y", str(height))
        shown = tmux.redrawn("scripted"[: width - 6])
        assert sum(line.startswith("scripted") for line in shown) == 1
    shown = tmux.wait("STATUS 0")
    assert tmux.do("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip() == "0 1"
    assert "run scripted" in shown
    assert "decision: GOAL MET" in shown
    assert "nothing is left running" in shown


@pytest.mark.real
def test_on_a_real_terminal_ctrl_z_leaves_the_shell_its_own_screen(tmux: Tmux) -> None:
    """Suspended and brought back."""
    tmux.do("send-keys", f"{sys.executable} -m tests.cli.runs --pace 0.02; echo STATUS $?", "Enter")
    tmux.redrawn("scripted")
    tmux.do("send-keys", "C-z")
    tmux.wait("Stopped")
    assert tmux.do("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip() == "0 1"
    tmux.do("send-keys", "fg", "Enter")
    tmux.redrawn("scripted")
    assert tmux.do("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip() == "1 0"


@pytest.mark.real
def test_on_a_real_terminal_a_traceback_can_be_read(tmux: Tmux) -> None:
    """An error nobody catches, in the middle of a run."""
    tmux.do("send-keys", f"{sys.executable} -m tests.cli.runs --fail-at 60; echo STATUS $?", "Enter")
    shown = tmux.wait("STATUS 1")
    assert "RuntimeError: a defect of the loop" in shown
    assert tmux.do("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip() == "0 1"
    assert opened().plan.name in shown  # where it stood is there as well
