"""What every guard has, and the four ways to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, ValidationError
from pydantic_core import PydanticCustomError

from ..values import Finding, Result, Value, Verdict, parse_duration, parse_percent

if TYPE_CHECKING:
    from ..actions import Section
    from ..evidence import Evidence
    from ..plan import Server


def visible(text: str) -> str:
    """Return text of unknown origin so that it can be shown: what does not print becomes an escape."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def passed(saw: str) -> Verdict:
    """Say that it holds, and what was seen."""
    return Verdict(result=Result.PASS, saw=visible(saw))


def waiting(saw: str, wanted: str = "", finding: Finding | None = None) -> Verdict:
    """Say that it does not hold yet and may still come."""
    return Verdict(result=Result.WAIT, saw=visible(saw), wanted=wanted, finding=finding)


def unknown(saw: str, wanted: str = "", finding: Finding | None = None, remedy: str = "") -> Verdict:
    """Say that the evidence does not tell, and what would."""
    return Verdict(result=Result.UNKNOWN, saw=visible(saw), wanted=wanted, finding=finding, remedy=remedy)


def failed(finding: Finding, saw: str, wanted: str, remedy: str = "", also: tuple[Finding, ...] = ()) -> Verdict:
    """Say that it does not hold, of which class, and what would help."""
    return Verdict(result=Result.FAIL, finding=finding, saw=visible(saw), wanted=wanted, remedy=remedy, also=also)


def _seconds(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


def _fraction(value: Any) -> Any:
    return parse_percent(value) if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds)]
"""Seconds; a playbook writes ``90s`` or ``15m``."""

Fraction = Annotated[float, BeforeValidator(_fraction)]
"""A share of one; a playbook writes ``3%``."""


class Guard(Value):
    """The common part. ``poll`` guards may answer WAIT and are asked again with newer observations."""

    poll: ClassVar[bool] = False
    guard: str

    def judge(self, evidence: Evidence) -> Verdict:
        """Return the verdict on this evidence. Pure."""
        raise NotImplementedError

    def needs(self) -> tuple[Section, ...]:
        """Return sections that the probe of the state must have for this guard, beside the usual ones."""
        return ()

    def asks(self, server: Server) -> tuple[Section, ...]:
        """Return the same where the question depends on the server; ``needs`` unless a guard says otherwise."""
        return self.needs()

    def wants(self) -> str:
        """Say what it asks for, in words: for predictions, which are written down before a test."""
        options = self.model_dump(mode="json", exclude_defaults=True, exclude={"guard"}, by_alias=True)
        return " ".join([self.guard, *(f"{name}={value}" for name, value in options.items())])

    def patterns(self) -> tuple[str, ...]:
        """Return extended regular expressions (POSIX) of log lines that this guard must get to see."""
        return ()


def by_name(name: str) -> Guard:
    """Return the guard of this name with its defaults; ValidationError when there is none, or when it needs options."""
    front: list[type[Guard]] = [Guard]
    while front:
        kind = front.pop()
        if kind.model_fields["guard"].default == name:
            return kind.model_validate({"guard": name}, strict=True)
        front += kind.__subclasses__()
    error = PydanticCustomError("no_guard", "no guard is called {name}", {"name": name})
    raise ValidationError.from_exception_data("guard", [{"type": error, "loc": ("guard",), "input": name}])


def names(items: list[str] | tuple[str, ...], most: int = 4) -> str:
    """Write a list for people, with at most ``most`` entries."""
    rest = len(items) - most
    return ", ".join(items[:most]) + (f" and {rest} more" if rest > 0 else "")
