"""The campaign: a fold over the journal (`state`), and what follows from it (`decide`, `steps`, `choices`)."""

from .decide import decide, evidence_of
from .state import Campaign, evolve

__all__ = ["Campaign", "decide", "evidence_of", "evolve"]
