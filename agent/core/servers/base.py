"""What a server kind knows. One instance per kind; all methods are pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..actions import Section
from ..observations import SectionResult
from ..values import Finding

if TYPE_CHECKING:
    from ..plan import Server, Trial


@dataclass(frozen=True)
class Effective:
    """The configuration a server really runs with, by flag name without dashes, and where it was read.

    ``values`` holds only what could be read; a flag that is not in it is unknown, not equal.
    """

    values: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    version: str = ""


@dataclass(frozen=True)
class Fatal:
    """A log line that means the start has failed, or will."""

    finding: Finding
    line: str


class ServerKind:
    """Everything that differs between engines. Subclasses override; the defaults are for ``command``."""

    name = "command"
    identity_argv: tuple[str, ...] = ()
    """Words that stand in the command line of such a server's main process."""
    help_words: tuple[str, ...] = ("--help",)
    """What makes the server print all its flags and end."""

    def argv(self, server: Server, trial: Trial) -> tuple[str, ...]:
        """Return the whole command line: the server's command, then flags in their order, dashes added.

        ``true`` gives a bare flag, ``false`` and None give nothing, a tuple repeats its values after one flag.
        """
        words = list(server.command)
        for name, value in trial.flags.items():
            if value is None or value is False:
                continue
            if server.flag_form:
                said = (
                    "true" if value is True else ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                )
                words.extend(word.replace("{name}", name).replace("{value}", said) for word in server.flag_form)
                continue
            words.append(f"--{name}")
            if value is not True:
                words.extend(str(item) for item in (value if isinstance(value, tuple) else (value,)))
        return tuple(words)

    def health_url(self, server: Server) -> str:
        """Return the URL that says 200 once the model is loaded, as seen from the server's own host.

        ``run:`` and a command of quoted words: the server is up when that ends with status 0.
        """
        if server.health_command:
            return "run:" + shlex.join(word.replace("{port}", str(server.port)) for word in server.health_command)
        return f"http://127.0.0.1:{server.port}{server.health}"

    def watch_patterns(self) -> tuple[str, ...]:
        """Return extended regular expressions (POSIX, for ``grep -E``) of log lines worth a journal entry."""
        return ("[Ee]rror", "[Ee]xception", "[Oo]ut of memory")

    def phase(self, line: str) -> str | None:
        """Return the phase of the start that this log line begins, or None."""
        return None

    def fatal(self, line: str) -> Fatal | None:
        """Return what this log line condemns the start to, or None."""
        return None

    def identity(self, trial: Trial) -> Mapping[str, str]:
        """Return what the running server must say of itself (for example its model path)."""
        return {}

    def model(self, server: Server, trial: Trial) -> str:
        """Return the path, or name on a hub, of the model that is asked for; '' where that cannot be compared."""
        return ""

    def called(self, server: Server, trial: Trial) -> tuple[str, ...]:
        """Return the names that the model may be offered by; () where any will do."""
        return ()

    def inspect(self, server: Server, trial: Trial) -> tuple[Section, ...]:
        """Return read-only requests that show the effective configuration and one deterministic answer."""
        return ()

    def canonical(self, name: str) -> str:
        """Return the name under which a flag is compared."""
        return name.lstrip("-").replace("_", "-")

    def effective(self, sections: Mapping[str, SectionResult], log: tuple[str, ...]) -> Effective | None:
        """Read the effective configuration, or None when the evidence does not show it."""
        return None

    def release(self, sections: Mapping[str, SectionResult], log: tuple[str, ...]) -> str:
        """Return the engine's release as it says itself; '' when it does not."""
        found = self.effective(sections, log)
        return found.version if found is not None else ""

    def answer(self, sections: Mapping[str, SectionResult]) -> str | None:
        """Return the text of the deterministic answer, or None when there is none."""
        return None

    def speculates(self, trial: Trial) -> bool:
        """Whether this trial asks for speculative decoding."""
        return False

    def longest_accept(self, trial: Trial) -> int | None:
        """Return how many tokens one verification can give at most; None when the flags do not say."""
        return None

    def graphs(self, trial: Trial) -> bool:
        """Whether decoding without a CUDA graph would be another configuration than was asked for."""
        return False

    def workers(self, server: Server, trial: Trial) -> int:
        """Return how many processes the server has at least when it is up."""
        return 1

    def engine_profile(self, server: Server, seconds: float) -> tuple[Section, ...]:
        """Return the requests that make the engine profile itself; () when it cannot."""
        return ()
