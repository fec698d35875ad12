"""``python -m agent`` is ``agent``."""

from agent.cli.main import entry

entry()
