"""Load an OpenAI-compatible endpoint and print one JSON document (``agent-bench/1``) of what was measured.

Runs on the server's own host with nothing but Python 3.8: this file is copied there and must not import from the
agent. It records, request by request, what the server and the clock said; means and percentiles are made later,
from the record. A request that fails is in the record as failed. Exit status 0 says that the document was printed,
not that the numbers are good. An API key comes from the environment and never leaves it.

A simulated server says with every answer how long it took in its own time; the clock on the wall would measure this
machine. Then those seconds are the record, and the document says ``"simulated": true``.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEY_VARIABLES = ("AGENT_API_KEY", "OPENAI_API_KEY", "LLAMA_API_KEY", "VLLM_API_KEY")
LINE_BYTES_MAX = 8 * 1024 * 1024
FLUSH_TRIES = 5
COUNTERS = {
    "drafts": ("llamacpp:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts_total"),
    "draft_tokens": ("llamacpp:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"),
    "accepted_tokens": (
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
    ),
    "cached_tokens": ("sglang:cached_tokens_total", "vllm:prefix_cache_hits_total"),
    "prompt_tokens": ("sglang:prompt_tokens_total", "vllm:prompt_tokens_total", "llamacpp:prompt_tokens_total"),
    "generated_tokens": (
        "llamacpp:tokens_predicted_total",
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
    ),
}
"""Counters of the engines; the difference over the measured window is kept."""


class FailedError(Exception):
    """A request did not end as it should; the message says how."""


class Client:
    """One endpoint. A connection per request, so that nothing is shared between requests."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self.host, self.port, self.key = host, port, key
        self.simulated = False
        self.crowd = 0
        """Told to a simulated server only: how many requests are kept in flight."""

    def clean_all(self, text: str) -> str:
        """Return text without the API key."""
        return text.replace(self.key, "[key]") if self.key else text

    def clean(self, text: str) -> str:
        """Return text that is safe to print: short, and without the API key."""
        return self.clean_all(text)[:300]

    def open(self, method: str, path: str, body: Any, timeout_s: float) -> http.client.HTTPResponse:
        """Send a request and return the answer with its head read; raise FailedError on anything but 200."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        headers = {"Connection": "close", "Accept": "*/*"}
        if self.crowd:
            headers["X-Lab-Concurrency"] = str(self.crowd)
        if self.key:
            headers["Authorization"] = "Bearer " + self.key
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        if response.status != 200:
            text = response.read(2000).decode("utf-8", "replace")
            connection.close()
            raise FailedError(f"HTTP {response.status}: {text}")
        return response

    def get(self, path: str, timeout_s: float = 10.0) -> str:
        """Return the text at this path, or '' when there is none."""
        try:
            with self.open("GET", path, None, timeout_s) as response:
                return response.read(LINE_BYTES_MAX).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException, FailedError):
            return ""

    def post(self, path: str) -> bool:
        """Whether an empty POST was answered with 200."""
        try:
            with self.open("POST", path, {}, 30.0) as response:
                response.read(1000)
                return True
        except (OSError, http.client.HTTPException, FailedError):
            return False

    def stream(self, path: str, body: Any, deadline: float) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield each event of a streamed answer with the time it came; raise FailedError if the stream breaks off."""
        try:
            response = self.open("POST", path, body, max(0.1, deadline - time.perf_counter()))
            with response:
                while True:
                    line = response.readline(LINE_BYTES_MAX)
                    now = time.perf_counter()
                    if now > deadline:
                        raise FailedError("no end within the time allowed")
                    if not line:
                        raise FailedError("the stream ended without its last mark")
                    text = line.decode("utf-8", "replace").strip()
                    if text == "data: [DONE]":
                        return
                    if text.startswith("data:"):
                        event = json.loads(text[5:])
                        if not isinstance(event, dict):
                            raise FailedError("an event that is no object: " + text)
                        if event.get("error"):
                            raise FailedError("error in the stream: " + json.dumps(event["error"]))
                        yield now, event
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise FailedError(f"{type(error).__name__}: {error}") from None


def request_body(options: argparse.Namespace, model: str, prompt: str, count: int) -> tuple[str, dict[str, Any]]:
    """Return path and body for one request: fixed length, greedy, streamed, without a prompt cache."""
    seed, ignore = options.seed, not options.stop_at_eos
    if options.api == "sglang":
        sampling = {"temperature": 0, "max_new_tokens": count, "ignore_eos": ignore, **options.request}
        return "/generate", {"text": prompt, "sampling_params": sampling, "stream": True}
    body: dict[str, Any] = {"model": model, "max_tokens": count, "temperature": 0, "seed": seed, "stream": True}
    body["stream_options"] = {"include_usage": True}
    if ignore:
        body["ignore_eos"] = True
    if options.api == "llamacpp":
        body["cache_prompt"] = False
    body.update(options.request)
    if options.chat:
        body["messages"] = [{"role": "user", "content": prompt}]
        return "/v1/chat/completions", body
    body["prompt"] = prompt
    return "/v1/completions", body


def event_text(event: dict[str, Any]) -> str:
    """Return the new text in an event of the OpenAI protocol."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta")
        if isinstance(delta, dict):
            return (delta.get("content") or "") + (delta.get("reasoning_content") or "")
        return choice.get("text") or ""
    return ""


def read_counts(event: dict[str, Any], record: dict[str, Any]) -> None:
    """Take what the engines tell about a request: usage, llama.cpp's timings, SGLang's meta_info, simulated time."""
    for place in (event, event.get("meta_info")):
        if isinstance(place, dict) and "lab_seconds" in place:
            record["lab_seconds"], record["lab_first_token_s"] = place["lab_seconds"], place.get("lab_first_token_s")
    usage = event.get("usage")
    if isinstance(usage, dict):
        record["output_tokens"] = usage.get("completion_tokens")
        record["prompt_tokens"] = usage.get("prompt_tokens")
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            record["cached_tokens"] = details.get("cached_tokens")
    timings = event.get("timings")
    if isinstance(timings, dict):
        # llama.cpp leaves these two out when nothing was drafted: with timings at hand that means none.
        record["draft_tokens"] = timings.get("draft_n", 0)
        record["accepted_tokens"] = timings.get("draft_n_accepted", 0)
        record["cached_tokens"] = timings.get("cache_n", record.get("cached_tokens"))
    meta = event.get("meta_info")
    if isinstance(meta, dict):
        names = {
            "output_tokens": "completion_tokens",
            "prompt_tokens": "prompt_tokens",
            "cached_tokens": "cached_tokens",
            "verify_steps": "spec_verify_ct",
            "draft_tokens": "spec_draft_token_num",
            "accepted_tokens": "spec_accept_token_num",
        }
        for ours, theirs in names.items():
            if theirs in meta:
                record[ours] = meta[theirs]


def measure(client: Client, options: argparse.Namespace, model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """Send one request and return its record."""
    path, body = request_body(options, model, prompt, tokens)
    record: dict[str, Any] = {"ok": False}
    text, first, last = "", 0.0, 0.0
    start = time.perf_counter()
    try:
        for now, event in client.stream(path, body, start + options.timeout):
            if options.api == "sglang":
                new = str(event.get("text") or "")  # everything so far, each time
                grown, text = new != text, new
            else:
                new = event_text(event)
                grown, text = bool(new), text + new
            if grown:
                first, last = first or now, now
            read_counts(event, record)
        record["ok"] = True
    except FailedError as error:
        record["error"] = client.clean(str(error))
    except Exception as error:  # an answer of an unforeseen shape fails its request, not the whole measurement
        record["error"] = client.clean(f"{type(error).__name__}: {error}")
    end = time.perf_counter()
    record["start_s"], record["end_s"] = start, end
    if first:
        record["ttft_s"] = round(first - start, 6)
        record["latency_s"] = round(last - start, 6)
    record["text_sha256"] = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    return record


def run(
    client: Client, options: argparse.Namespace, model: str, prompts: list[str], count: int, tokens: int
) -> list[dict[str, Any]]:
    """Send ``count`` requests, at most ``concurrency`` at a time, prompts in turn; return the records in order."""
    records: list[dict[str, Any]] = [{} for _ in range(count)]
    lock, left = threading.Lock(), iter(range(count))
    salt = random.Random(f"{options.seed} {tokens}")  # noqa: S311 - variety, not secrecy
    salts = [f"{salt.getrandbits(32):08x}" for _ in range(count)]

    def work() -> None:
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                return
            prompt = prompts[number % len(prompts)]
            if options.unique_prefix:
                prompt = f"[{salts[number]}] {prompt}"
            records[number] = measure(client, options, model, prompt, tokens)
            records[number]["prompt"] = number % len(prompts)

    threads = [threading.Thread(target=work) for _ in range(min(options.concurrency, count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return records


def simulated_window(records: list[dict[str, Any]], concurrency: int) -> float | None:
    """Replace wall times by the simulated ones that the answers told; return the window's length.

    Raise ValueError when only some of them told: half of it measured and half of it simulated is neither.
    """
    told = [record for record in records if "lab_seconds" in record]
    if not told:
        return None
    done = [record for record in records if record["ok"]]
    if not all("lab_seconds" in record for record in done):
        raise ValueError("some answers are simulated and some are not")
    for record in done:
        record["latency_s"], record["ttft_s"] = float(record["lab_seconds"]), float(record["lab_first_token_s"])
    return float(sum(record["latency_s"] for record in done)) / concurrency


def flush(client: Client) -> bool:
    """Empty the prefix cache; SGLang refuses while the last request is still being put away, so ask again."""
    for attempt in range(FLUSH_TRIES):
        if client.post("/flush_cache"):
            return True
        time.sleep(0.1 * (attempt + 1))
    return False


def counters(client: Client) -> dict[str, float]:
    """Return the engine's own counters, each summed over its labels; empty when it has no /metrics."""
    found: dict[str, float] = {}
    wanted = {name: ours for ours, names in COUNTERS.items() for name in names}
    for line in client.get("/metrics").splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in wanted:
            try:
                found[wanted[name]] = found.get(wanted[name], 0.0) + float(line.rsplit(" ", 1)[1])
            except (ValueError, IndexError):
                continue
    return found


def served_model(client: Client) -> str:
    """Return the name under which the server offers its model."""
    try:
        return str(json.loads(client.get("/v1/models"))["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        return ""


def fields(text: str) -> dict[str, Any]:
    """Return the JSON object that a text is; ValueError when it is none."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def applied(client: Client, options: argparse.Namespace) -> dict[str, Any] | None:
    """Return those of the further fields that the server says it went by, with its values; None: it does not say.

    Servers ignore what they do not know without a word. llama.cpp keeps the parameters of each slot's last request;
    the slot with the newest task served one of ours.
    """
    if options.api != "llamacpp" or not options.request:
        return None
    try:
        slots = [slot for slot in json.loads(client.get("/slots")) if slot.get("params")]
        used = max(slots, key=lambda slot: int(slot["id_task"]))["params"]
        return {name: used[name] for name in options.request if name in used}
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def arguments() -> argparse.ArgumentParser:
    """Return the parser of this script's flags."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=int(os.environ.get("AGENT_PORT") or 0))
    parser.add_argument("--api", choices=("openai", "llamacpp", "vllm", "sglang"), default="openai")
    parser.add_argument("--chat", action="store_true", help="use /v1/chat/completions")
    parser.add_argument("--model", default="", help="default: the first of /v1/models")
    parser.add_argument("--prompts", default="", help="a JSON list of texts")
    parser.add_argument("--prompts-file", default="", help="a file with a JSON list of texts")
    parser.add_argument("--workloads", default="", help="several windows, one after the other: JSON, see `loads`")
    parser.add_argument("--workloads-file", default="", help="a file with the same")
    parser.add_argument("--output-tokens", type=int, default=96)
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=1, help="requests before the measured ones, not counted")
    parser.add_argument("--warmup-tokens", type=int, default=32, help="how long their answers are, at most")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one request")
    parser.add_argument("--seed", type=int, default=0, help="of unique prefixes and of the server; -1 = a new one")
    parser.add_argument("--unique-prefix", action="store_true", help="begin each prompt differently: no cache hits")
    parser.add_argument("--flush", action="store_true", help="empty SGLang's prefix cache before measuring")
    parser.add_argument("--request", type=fields, default={}, help="a JSON object: further fields of each request")
    parser.add_argument("--stop-at-eos", action="store_true", help="let answers end by themselves")
    return parser


def read_prompts(options: argparse.Namespace) -> list[str]:
    """Return the prompts, or raise ValueError."""
    text = Path(options.prompts_file).read_text("utf-8") if options.prompts_file else options.prompts
    return texts(json.loads(text))


def texts(prompts: Any) -> list[str]:
    """Return a list of texts as it is; ValueError for anything else."""
    if not isinstance(prompts, list) or not prompts or not all(isinstance(item, str) for item in prompts):
        raise ValueError("prompts must be a JSON list of texts, at least one")
    return prompts


def loads(options: argparse.Namespace) -> list[tuple[str, argparse.Namespace, list[str]]]:
    """Return what is to be measured: a name, its options and its prompts for each window, '' for the only one.

    Several are given as ``{"prompts": [[TEXT, …], …], "workloads": [{"name", "prompts": INDEX, "requests", …}]}``.
    """
    text = Path(options.workloads_file).read_text("utf-8") if options.workloads_file else options.workloads
    if not text:
        return [("", options, read_prompts(options))]
    document = json.loads(text)
    found = []
    for row in document["workloads"]:
        own = argparse.Namespace(**vars(options))
        own.output_tokens, own.requests = int(row["output_tokens"]), int(row["requests"])
        own.concurrency = int(row["concurrency"])
        found.append((str(row["name"]), own, texts(document["prompts"][row["prompts"]])))
    if not found:
        raise ValueError("there is no workload")
    return found


PARAMETERS = (
    *("api", "chat", "output_tokens", "requests", "concurrency", "warmup"),
    *("timeout", "seed", "unique_prefix", "stop_at_eos", "request"),
)


def window(client: Client, options: argparse.Namespace, model: str, prompts: list[str]) -> dict[str, Any]:
    """Measure one window and return its part of the document; ValueError when it is neither real nor simulated."""
    flushed = options.flush and flush(client)
    before = counters(client)
    client.crowd = min(options.concurrency, options.requests) if client.simulated else 0
    records = run(client, options, model, prompts, options.requests, options.output_tokens)
    after = counters(client)
    zero = min(record["start_s"] for record in records)
    for record in records:
        record["start_s"] = round(record["start_s"] - zero, 6)
        record["end_s"] = round(record["end_s"] - zero, 6)
    wall_s = max(record["end_s"] for record in records)
    simulated_s = simulated_window(records, min(options.concurrency, options.requests))
    return {
        "simulated": simulated_s is not None,
        "parameters": {name: getattr(options, name) for name in PARAMETERS},
        "wall_s": round(wall_s if simulated_s is None else simulated_s, 6),
        "completed": sum(record["ok"] for record in records),
        "flushed": flushed,
        "applied": applied(client, options),
        "counters": {name: after[name] - before[name] for name in sorted(after) if name in before},
        "requests": records,
    }


def main() -> int:
    """Measure and print."""
    options = arguments().parse_args()
    try:
        wanted = loads(options)
        for _, own, _ in wanted:
            if min(own.requests, own.concurrency, own.output_tokens, own.port) < 1:
                raise ValueError("--port, --requests, --concurrency and --output-tokens are at least 1")
    except (OSError, ValueError, LookupError, TypeError) as error:
        sys.stderr.write(f"bench: {error}\n")
        return 2
    key = next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), "")
    client = Client(options.host, options.port, key)
    model = options.model or served_model(client)
    seed = random.SystemRandom().getrandbits(31) if options.seed < 0 else options.seed
    for place, (_, own, _) in enumerate(wanted):
        own.seed = seed + place
    _, first, prompts = wanted[0]
    short = min(first.output_tokens, options.warmup_tokens)
    warm = run(client, first, model, prompts, options.warmup, short) if options.warmup > 0 else []
    client.simulated = any("lab_seconds" in record for record in warm)
    started = time.time()
    try:
        windows = [{"name": name, **window(client, own, model, texts)} for name, own, texts in wanted]
    except (TypeError, ValueError) as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    everything = [texts for _, _, texts in wanted] if windows[0]["name"] else prompts
    document = {
        "schema": "agent-bench/1",
        "simulated": any(part["simulated"] for part in windows),
        "endpoint": f"http://{options.host}:{options.port}",
        "model": model,
        "tool": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "prompts": hashlib.sha256(json.dumps(everything).encode()).hexdigest(),
        "started": round(started, 3),
        "warmup_failed": sum(not record["ok"] for record in warm),
    }
    if windows[0]["name"]:
        document["parameters"], document["workloads"] = {"warmup": options.warmup}, windows
    else:
        document.update({name: value for name, value in windows[0].items() if name != "name"})
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
