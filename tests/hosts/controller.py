"""A controller as a process of its own, to be killed: takes the lease and starts one job. Arguments: way, key, mark."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.hosts.world import Way


async def main(address: str, config: str, base: str, key: str, mark: str, size: int) -> None:
    """Start the job and say so."""
    way = Way(address, Path(config) if config else None, Path(base))
    async with way.open(owner="same") as box:
        print("ready", flush=True)
        sys.stdin.readline()
        _, state = await box.start(*job(mark, size), key=key)
        print(state.word, flush=True)


def job(mark: str, size: int) -> tuple[str, ...]:
    """Return a command whose effect is counted, and that is complete only with its last byte."""
    return ("sh", "-c", f"echo begun >>{mark}; : {'x' * size}; echo whole >>{mark}; sleep 0.2")


if __name__ == "__main__":
    address, config, base, key, mark, size = sys.argv[1:]
    asyncio.run(main(address, config, base, key, mark, int(size)))
