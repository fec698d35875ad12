"""What the simulated model says: the same words for the same prompt, and a right answer to a few plain questions."""

from __future__ import annotations

import hashlib
import re

FACTS = (
    (r"capital of france", " Paris"), (r"capital of germany", " Berlin"), (r"capital of japan", " Tokyo"),
    (r"capital of italy", " Rome"), (r"capital of spain", " Madrid"), (r"\b2\s*\+\s*2\b", " 4"),
    (r"\b1\s*\+\s*1\b", " 2"),
    (r"\b7\s*[*x×]\s*6\b|\b6\s*[*x×]\s*7\b", " 42"), (r"1, 2, 3,?\s*$", " 4, 5, 6"), (r"say (hello|hi)\b", " Hello"),
)  # fmt: skip
WORDS = (
    "the",
    "lab",
    "box",
    "answers",
    "with",
    "words",
    "that",
    "carry",
    "no",
    "meaning",
    "but",
    "never",
    "repeat",
    "one",
    "token",
    "for",
    "long",
    "so",
    "a",
    "check",
    "of",
    "the",
    "output",
    "finds",
    "nothing",
    "wrong",
    "while",
    "every",
    "figure",
    "beside",
    "them",
    "comes",
    "from",
    "one",
    "surface",
    "through",
    "known",
    "points",
    "and",
    "not",
    "from",
    "any",
    "model",
)


def count_tokens(prompt: str) -> int:
    """Count tokens the simple way: four characters each."""
    return max(1, (len(prompt) + 3) // 4)


def answer(prompt: str, tokens: int) -> str:
    """Return ``tokens`` tokens of text, deterministic in the prompt."""
    head = next((text for pattern, text in FACTS if re.search(pattern, prompt.lower().rstrip())), "")
    if head and tokens > 1:
        head += "."
    offset = hashlib.sha256(prompt.encode(errors="surrogatepass")).digest()[0]
    rest = max(0, tokens - len(re.findall(r"\w+|[^\w\s]", head)))
    return head + "".join(f" {WORDS[(offset + index) % len(WORDS)]}" for index in range(rest))
