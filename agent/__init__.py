"""A campaign agent for people who tune and debug LLM inference servers on GPU hosts."""

__version__ = "0.1.0"
