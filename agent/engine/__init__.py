"""The one loop, and what it stands on: the ledger that compares or appends, and the inputs that feed it.

A run, a resume and a replay are the same loop over the same code. They differ in data only: how much is recorded
already, and whether a world follows the record. Nothing here knows SSH, SQLite or a terminal.
"""

from .ledger import Clock, Ledger, ReplayMismatch
from .loop import drive
from .world import World

__all__ = ["Clock", "Ledger", "ReplayMismatch", "World", "drive"]
