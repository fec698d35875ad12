"""What an engine will make of a set of flags, foretold before anybody waits for a launch. Pure.

These are claims about programs of other people. ``tests/truth`` holds every one of them against what the engines
themselves answered; nothing belongs here that was only read somewhere. What is not known (the card, the model's
architecture) is left open rather than guessed: a prediction that is silent costs a launch, a wrong one costs trust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prediction:
    """What the engine will say.

    ``overrides`` holds flags, by their own names, whose value in effect will differ from what was asked for or, where
    nobody asked, from what it is without the other flags. ``stricter`` names what the engine takes and we should not.
    """

    refused: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    stricter: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """What is known of the model and the card; None is unknown."""

    architecture: str | None = None
    context: int | None = None
    heads: int | None = None
    draft_context: int | None = None
    hopper: bool | None = None


class Asked:
    """Flags under their own names, read with the engine's defaults in mind."""

    def __init__(self, flags: Mapping[str, Any], version: str, target: Target) -> None:
        self.flags: dict[str, Any] = {
            name: value for name, value in flags.items() if value is not None and value is not False
        }
        self.version = release(version)
        self.target = target

    def number(self, name: str, default: float | None = None) -> Any:
        """Return a flag's number; the default where it is not given or not a number."""
        value = self.flags.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return default
        return value

    def word(self, name: str) -> str | None:
        """Return a flag's value as text, None when it is not given."""
        value = self.flags.get(name)
        return None if value is None else str(value)

    def given(self, *names: str) -> bool:
        """Whether any of the flags is given."""
        return any(name in self.flags for name in names)


@dataclass(frozen=True)
class Claim:
    """One thing that we say of an engine.

    ``engine`` is False where the engine takes it without a word and our check is meant to be the stricter one.
    ``since`` and ``until`` bound the releases, both inclusive, for which somebody has looked.
    """

    says: str
    when: Callable[[Any], bool]
    engine: bool = True
    since: str = "0"
    until: str = "9999"

    def applies(self, asked: Asked) -> bool:
        """Whether the claim is made for this release and these flags."""
        return release(self.since) <= asked.version <= release(self.until) and self.when(asked)


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release: 0.5.23.post1 and 0.5.23+cpu are (0, 5, 23)."""
    numbers: list[int] = []
    for part in version.lstrip("v").split("+")[0].split(".")[:3]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def judge(claims: Sequence[Claim], asked: Asked, overrides: Callable[[], Iterator[tuple[str, Any]]]) -> Prediction:
    """Return the first refusal with nothing else, or what will be changed and what we would not have taken."""
    refused = next((claim.says for claim in claims if claim.engine and claim.applies(asked)), None)
    stricter = tuple(claim.says for claim in claims if not claim.engine and claim.applies(asked))
    if refused is not None:
        return Prediction(refused, {}, stricter)
    changed = {name: value for name, value in overrides() if asked.flags.get(name) != value}
    return Prediction(None, changed, stricter)


def predict_sglang(flags: Mapping[str, Any], version: str, target: Target | None = None) -> Prediction:
    """Return what SGLang of this version makes of flags under their own names (``tensor-parallel-size``)."""
    from .predict_sglang import CLAIMS, Sglang, overrides

    asked = Sglang(flags, version, target or Target())
    return judge(CLAIMS, asked, lambda: overrides(asked))


def predict_vllm(flags: Mapping[str, Any], version: str, target: Target | None = None) -> Prediction:
    """Return what vLLM of this version makes of flags under their own names."""
    from .predict_vllm import CLAIMS, Vllm, overrides

    asked = Vllm(flags, version, target or Target())
    return judge(CLAIMS, asked, lambda: overrides(asked))
