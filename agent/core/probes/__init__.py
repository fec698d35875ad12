"""What is asked of a host, and how the answer is read: command and parser pairs.

A reader never guesses: what cannot be read is None, and an empty answer is not the same as no answer.
"""

from __future__ import annotations

from .host import host_probe

__all__ = ["host_probe"]
