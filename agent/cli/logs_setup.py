"""The program's own log: JSON lines in the run's folder, redacted. Never the only record of anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog


def open_log(path: Path, clean: Callable[[bytes], bytes], **bound: str) -> Any:
    """Return a logger that appends redacted JSON lines to ``path``."""
    file = path.open("a", buffering=1)

    class Redacting:
        def msg(self, line: str) -> None:
            file.write(clean(line.encode()).decode("utf-8", "backslashreplace") + "\n")

        log = debug = info = warn = warning = error = critical = exception = failure = msg

    logger = structlog.wrap_logger(
        Redacting(),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.BoundLogger,
        cache_logger_on_first_use=False,
    )
    return logger.bind(**bound)
