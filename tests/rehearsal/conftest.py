"""What rehearsals share."""

from __future__ import annotations

from tests.rehearsal.rehearse import rehearse

__all__ = ["rehearse"]
