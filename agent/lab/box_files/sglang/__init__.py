"""A simulated SGLang for the lab: the real flags, log lines and HTTP answers, no model and no GPU.

Plain standard library, because these files run inside a lab box with a bare interpreter. Nothing outside the lab
imports them.
"""

__version__ = "0.5.9"
