"""The soak of eagle3-tune: requests of mixed length, several at a time. It fails when one of them fails.

A configuration that is fast for one stream may still run out of cache, or fall over, under load. No speed is read
here. Where the server is comes from the environment: AGENT_URL. Only the standard library, Python 3.8.
"""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

URL = os.environ.get("AGENT_URL") or "http://127.0.0.1:8000"
LENGTHS = (32, 64, 96, 160, 256)


def ask(number):
    """Send one request; return '' when it ended as it should, else why not."""
    tokens = LENGTHS[number % len(LENGTHS)]
    text = f"Request {number}. List facts about the number {number}, as many as you can. " * (1 + number % 4)
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    data = json.dumps({"text": text, "sampling_params": sampling}).encode()
    request = urllib.request.Request(URL + "/generate", data, {"Content-Type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310 - the scheme is ours
            found = json.load(answer)["meta_info"]["completion_tokens"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"request {number}: {type(error).__name__}: {error}"
    return "" if found == tokens else f"request {number}: {found} of {tokens} tokens"


def main():
    """Send them all and say how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--concurrency", type=int, default=8)
    options = parser.parse_args()
    with ThreadPoolExecutor(options.concurrency) as pool:
        failures = [why for why in pool.map(ask, range(options.requests)) if why]
    sys.stdout.write(f"{options.requests} requests, {len(failures)} failed\n")
    for why in failures[:10]:
        sys.stdout.write(why + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
