"""A simulated GPU box behind a real SSH server: rehearsal, demo, tests.

What is real: the SSH server, the shells, the processes and their signals, the ports, the files. What is simulated:
the GPUs (an ``nvidia-smi`` that reads simulated devices) and the model's speed (one surface with seeded noise).
Importing this package is cheap; asyncssh is imported by ``agent.lab.box`` only.
"""

from .info import BoxInfo, find, start, stop
from .spec import FAULTS, Existing, Fault, LabSpec

__all__ = ["FAULTS", "BoxInfo", "Existing", "Fault", "LabSpec", "find", "start", "stop"]
