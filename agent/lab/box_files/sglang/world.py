"""What a program inside the box knows of its lab: the folder, the specification, the faults, its launch number.

The folder is found from where this file lies (``FOLDER/lib/pythonX.Y/site-packages/sglang``), never from the
environment: a launch may come with any environment.
"""

from __future__ import annotations

import fcntl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import devices

FOLDER = Path(devices.FOLDER)


@dataclass
class World:
    """The lab as one launch sees it."""

    folder: Path
    spec: dict[str, Any]
    launch: int = 0
    """0 is the hand-started server, 1 the first launch after it, and so on."""
    faults: dict[str, dict[str, Any]] = field(default_factory=dict)

    def real_s(self, simulated_s: float) -> float:
        """Return the wall seconds that ``simulated_s`` of the model's time take in this lab."""
        return simulated_s / float(self.spec["time_scale"])

    def fault(self, name: str) -> dict[str, Any] | None:
        """Return the parameters of a fault that holds for this launch, or None."""
        return self.faults.get(name)

    def path(self, name: str) -> Path:
        """Return a file of the box: as named, or below ``FOLDER/root`` where the box has no mounts of its own."""
        path = Path(name)
        inside = self.folder / "root" / name.lstrip("/")
        return inside if not path.exists() and inside.exists() else path


def _holds(fault: dict[str, Any], launch: int) -> bool:
    wanted = fault.get("launches")
    return launch > 0 if wanted is None else launch in wanted


def open_launch() -> World:
    """Count this launch and return the world as it sees it. The one that finds ``hand-started`` is number 0."""
    spec = devices.load_spec()
    hand_started = FOLDER / "hand-started"
    if hand_started.exists():
        hand_started.unlink()
        launch = 0
    else:
        with (FOLDER / "launches").open("a+") as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            counter.seek(0)
            launch = len(counter.read()) + 1
            counter.write("x")
    faults = {str(fault["fault"]): fault for fault in spec["faults"] if _holds(fault, launch)}
    return World(folder=FOLDER, spec=spec, launch=launch, faults=faults)
