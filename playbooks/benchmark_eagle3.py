"""The benchmark of eagle3-tune: one stream, fixed prompts, fixed lengths, nothing from a cache.

It asks SGLang's own ``/generate`` (greedy, the end mark ignored), so every configuration writes the same number of
tokens, and prints one JSON document of the form ``agent-bench/1``: what each request took and counted, no averages.
The accept length follows from each request's own ``spec_verify_ct``; the server's running averages remember earlier
requests. Where the server is comes from the environment: AGENT_URL. Only the standard library, Python 3.8.
"""

import argparse
import hashlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

URL = os.environ.get("AGENT_URL") or "http://127.0.0.1:8000"
PROMPTS = [
    "Explain step by step how a compiler turns a for loop into machine code.",
    "Write a Python function that merges two sorted lists, and explain why it is correct.",
    "Summarise the causes of the First World War for a reader who knows none of them.",
    "Prove that the square root of two is irrational, then prove it in a second way.",
    "Describe how speculative decoding works and when it does not pay.",
    "Translate into French and comment on each choice: The ship had sailed before anybody noticed.",
]


def post(path, body):
    """Send JSON; return the open answer. Raises OSError for anything but status 200."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})  # noqa: S310
    return urllib.request.urlopen(request, timeout=300)  # noqa: S310 - the scheme is ours


def flush():
    """Empty the prefix cache, so that no prompt is answered from it. It is refused while a request is running."""
    for _ in range(20):
        try:
            with post("/flush_cache", {}) as answer:
                answer.read()
            return True
        except OSError:
            time.sleep(0.1)
    return False


def measure(prompt, tokens):
    """Send one request and return its record; a failed one is in the record as failed."""
    record = {"ok": False}
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    start, first, last, text, meta = time.perf_counter(), 0.0, 0.0, "", None
    try:
        with post("/generate", {"text": prompt, "sampling_params": sampling, "stream": True}) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    last = time.perf_counter()
                    first = first or last
                    text, meta = event["text"], event["meta_info"]
                elif line.startswith(b"data: [DONE]"):
                    record["ok"] = meta is not None
    except (OSError, ValueError, LookupError) as error:
        return {"ok": False, "error": f"{type(error).__name__}: {str(error)[:200]}"}
    if not record["ok"]:
        return {"ok": False, "error": "the stream ended early"}
    names = {"output_tokens": "completion_tokens", "verify_steps": "spec_verify_ct"}
    names.update(prompt_tokens="prompt_tokens", cached_tokens="cached_tokens")
    record.update({ours: meta[theirs] for ours, theirs in names.items() if theirs in meta})
    record["ttft_s"], record["latency_s"] = round(first - start, 6), round(last - start, 6)
    record["text_sha256"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    if "lab_seconds" in meta:  # a rehearsal: the server says how long this takes in simulated time
        record["latency_s"], record["ttft_s"] = meta["lab_seconds"], meta["lab_first_token_s"]
        record["simulated"] = True
    return record


def main():
    """Measure each prompt once, one after the other, and print the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=512, help="length of each answer")
    options = parser.parse_args()
    for prompt in PROMPTS[:2]:
        measure("Warm up. " + prompt, 64)
    flushed = flush()
    began, start = time.time(), time.perf_counter()
    records = [measure(prompt, options.tokens) for prompt in PROMPTS]
    wall_s = time.perf_counter() - start
    done = [record for record in records if record["ok"]]
    simulated = any(record.get("simulated") for record in done)
    if simulated:
        wall_s = sum(record["latency_s"] for record in done)
    document = {
        "schema": "agent-bench/1",
        "simulated": simulated,
        "endpoint": URL,
        "tool": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "parameters": {"requests": len(PROMPTS), "output_tokens": options.tokens, "stop_at_eos": False},
        "started": round(began, 3),
        "wall_s": round(wall_s, 6),
        "flushed": flushed,
        "requests": records,
    }
    sys.stdout.write(json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
