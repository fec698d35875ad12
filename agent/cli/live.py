"""The live view of a run on a terminal: ``agent.cli.picture`` drawn again whenever something happens.

It draws on the terminal's second screen, so a resized window leaves nothing behind, and at the end puts one last
picture into the scrollback. Drawing happens between inputs, in the thread of the loop, never in a signal handler;
whatever goes wrong in it is the view's own affair and never reaches the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.text import Text

from agent.cli.picture import Seen, render
from agent.cli.text import safe
from agent.core.campaign import Campaign
from agent.core.events import Entry

DRAW_S_MIN = 0.125
"""At most eight pictures a second."""
CLOCK_S = 1.0
"""While nothing happens the clocks go on once a second."""
LAST_LINES = 8
"""How much of what happened the last picture has."""
BEAT_S = 0.25
"""So often we look whether the window has another size."""

__all__ = ["LiveView", "make_console", "render"]


def make_console(file: IO[str] | None = None, **options: Any) -> Console:
    """Return a console that obeys nothing in the text it is given."""
    return Console(file=file or sys.stdout, markup=False, emoji=False, highlight=False, soft_wrap=False, **options)


def boot_id() -> str:
    """Return the machine's boot id, '' where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class LiveView:
    """A Display for terminals. ``hint`` says what the operator can do."""

    def __init__(
        self,
        out: IO[str] | None = None,
        *,
        hint: str = "Ctrl-C: start nothing more, leave the server; resumable",
        console: Console | None = None,
    ) -> None:
        self._console = console or make_console(out)
        self._seen = Seen(hint=hint)
        self._campaign: Campaign | None = None
        self._live: Live | None = None
        self._boot_id = boot_id()
        self._ticking = False
        self._paused = 0
        self._closed = False
        self._drawn_s = 0.0
        self._drawn_size = (0, 0)
        self._dirty = False
        self._timer: asyncio.TimerHandle | None = None
        self._said: list[str] = []
        self._hook: Callable[..., Any] | None = None
        self._suspend_before: Any = None

    @property
    def hint(self) -> str:
        """What the operator can do; it stands in the picture."""
        return self._seen.hint

    @hint.setter
    def hint(self, text: str) -> None:
        self._seen.hint = text

    # ------------------------------------------------------------ Display

    def say(self, text: str) -> None:
        """Show a remark; it stays in the scrollback unless more happens after it."""
        if self._live is None:
            self._print(Text(safe(text)))
            return
        self._said.append(text)
        self._seen.happened.extend(line for line in safe(text).split("\n") if line.strip())
        self._draw_soon()

    def show(self, entry: Entry, campaign: Campaign, *, live: bool) -> None:
        """Take an entry in. The clocks go on only after entries that are happening now."""
        with contextlib.suppress(Exception):  # what cannot be shown is still in the journal
            self._seen.take(entry, campaign)
        self._campaign, self._ticking = campaign, live
        if live:
            self._said.clear()
        if self._live is None and not self._paused and not self._closed:
            self._start()
        self._draw_soon()

    def pause(self) -> None:
        """Give the terminal back for a while, so that the operator can read a question and answer it."""
        self._paused += 1
        if self._paused == 1:
            self._stop()

    def unpause(self) -> None:
        """Go on after ``pause``."""
        self._paused = max(0, self._paused - 1)
        if not self._paused and not self._closed and self._campaign is not None:
            self._start()
            self._draw()

    def close(self) -> None:
        """Give the terminal back and leave the last picture in the scrollback. May be repeated."""
        if self._closed:
            return
        self._closed = True
        self._stop()
        atexit.unregister(self.close)
        if self._hook is not None:
            sys.excepthook, self._hook = self._hook, None
        if self._suspend_before is not None:
            signal.signal(signal.SIGTSTP, self._suspend_before)
        if self._campaign is not None:
            last = Seen(gpus=self._seen.gpus, gpus_s=self._seen.gpus_s)
            if not self._said and not self._campaign.over:  # else it is said below, or stands in the picture
                last.happened.extend(list(self._seen.happened)[-LAST_LINES:])
            self._print(render(self._campaign, self._size()[0], None, self._extra_s(), seen=last))
            for text in self._said:
                self._print(Text(safe(text)))

    # ------------------------------------------------------------ drawing

    def beat(self, *, ticking: bool | None = None) -> None:
        """Draw if there is a reason to: something new, another second, another size of the window."""
        if ticking is not None and ticking != self._ticking:
            self._ticking, self._dirty = ticking, True
        age_s = time.monotonic() - self._drawn_s
        new = self._dirty and age_s >= DRAW_S_MIN
        if self._live is not None and (new or age_s >= CLOCK_S or self._size() != self._drawn_size):
            self._draw()

    def _draw_soon(self) -> None:
        self._dirty = True
        self.beat()

    def _draw(self) -> None:
        if self._live is None or self._campaign is None:
            return
        self._dirty, self._drawn_s, self._drawn_size = False, time.monotonic(), self._size()
        width, height = self._drawn_size
        try:
            self._live.update(render(self._campaign, width, height, self._extra_s(), seen=self._seen), refresh=True)
        except OSError:
            self._live = None  # the terminal is gone; the run goes on

    def _extra_s(self) -> float:
        """Return the campaign time since the last entry; 0 when nobody works on the run."""
        campaign = self._campaign
        if campaign is None or not self._ticking or campaign.over or campaign.interrupted:
            return 0.0
        boot, at_ns = campaign.boot
        if boot != self._boot_id:
            return 0.0
        return max(0.0, (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - at_ns) / 1e9)

    def _size(self) -> tuple[int, int]:
        # Asked of the terminal itself: COLUMNS and LINES, which a parent may have exported, never change.
        with contextlib.suppress(OSError, ValueError):
            size = os.get_terminal_size(self._console.file.fileno())
            if size.columns > 0 and size.lines > 0:
                self._console.size = ConsoleDimensions(size.columns, size.lines)
        return max(1, self._console.width), max(1, self._console.height)

    def _print(self, what: Any) -> None:
        with contextlib.suppress(OSError):
            self._console.print(what, soft_wrap=True)

    # ------------------------------------------------------------ the terminal

    def _start(self) -> None:
        live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        try:
            live.start()
        except OSError:
            return
        self._live = live
        if self._hook is None:
            # An error that nobody catches is printed before atexit: by then the screen must be the first one again.
            atexit.register(self.close)
            self._hook = sys.excepthook
            sys.excepthook = self._uncaught
            with contextlib.suppress(ValueError):  # not the main thread
                self._suspend_before = signal.signal(signal.SIGTSTP, self._suspend)
        self._set_timer()

    def _uncaught(self, *error: Any) -> None:
        hook = self._hook or sys.__excepthook__
        self.close()
        hook(*error)

    def _suspend(self, number: int, frame: object) -> None:
        """Ctrl-Z: leave the shell its own screen until we are brought back."""
        self.pause()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.unpause()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()

    def _set_timer(self) -> None:
        with contextlib.suppress(RuntimeError):  # no loop: whoever shows us calls beat()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(DRAW_S_MIN if self._dirty else BEAT_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._live is not None:
            self.beat()
            self._set_timer()


def fits_terminal() -> bool:
    """Say whether standard output is a terminal that can show the view."""
    encoding = (getattr(sys.stdout, "encoding", "") or "").lower()
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "") and "utf" in encoding
