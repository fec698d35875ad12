"""What several of the journal's tests use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def spoil() -> Callable[[Path, bytes, bytes], None]:
    """Change bytes of a file the way a hex editor does."""

    def change(path: Path, old: bytes, new: bytes) -> None:
        content = path.read_bytes()
        assert content.count(old) == 1
        assert len(old) == len(new)
        path.write_bytes(content.replace(old, new))

    return change
