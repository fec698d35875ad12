"""The campaign: a fold over the journal (`state`), and what follows from it (`decide`, `steps`, `choices`).

Who only reads a record needs the fold; importing what decides would double the time of `agent show`.
"""

from .state import Campaign, evolve

__all__ = ["Campaign", "evolve"]
