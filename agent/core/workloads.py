"""Named sets of prompts for benchmarks. Data only: what is sent, not how.

``copy`` makes a model repeat code it has just read: n-gram and draft speculation accept most of it. ``free`` asks for
prose that nothing in the prompt foretells: they accept little. ``mixed`` alternates, the way real traffic does.
A change to a prompt changes every number measured with it: add a new set instead.
"""

from __future__ import annotations

_ORDER = """class Order:
    def __init__(self, order_id, customer_name, total_amount, currency):
        self.order_id = order_id
        self.customer_name = customer_name
        self.total_amount = total_amount
        self.currency = currency

    def describe(self):
        return f"{self.order_id} {self.customer_name} {self.total_amount} {self.currency}"
"""

_QUEUE = """def drain(queue, handler, limit):
    handled = 0
    failed = []
    while queue and handled < limit:
        message = queue.pop(0)
        try:
            handler(message)
        except ValueError as error:
            failed.append((message, str(error)))
        handled += 1
    return handled, failed
"""


def _copy(block: str) -> str:
    return (
        "Repeat the following text exactly, three times.\n\n"
        f"{block}\n\nFirst copy:\n\n{block}\n\nSecond copy:\n\n"
    )  # fmt: skip


COPY = (_copy(_ORDER), _copy(_QUEUE))

FREE = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.\n\n",
    "Describe an ordinary morning in a harbour town, seen by somebody who has come back after twenty years.\n\n",
    "Explain to a curious child why the sky turns red in the evening, without using any technical word.\n\n",
    "Write the opening of a letter from an engineer who has decided to leave the city and keep bees.\n\n",
)

_EDIT = (
    "Rewrite this function so that it returns a dictionary instead of a tuple. Answer with the function only.\n\n"
    f"{_QUEUE}\n"
)
_JSON = "Convert to JSON lines.\n" + "".join(
    f'{{"id": {number}, "name": "user{number}", "active": true, "role": "reader"}}\n' for number in range(1, 9)
)

MIXED = (COPY[0], FREE[0], _EDIT, FREE[2], _JSON, FREE[3])

SETS: dict[str, tuple[str, ...]] = {"copy": COPY, "free": FREE, "mixed": MIXED}
"""By the name that ``benchmark.prompts`` uses."""
