"""Ask a server fixed questions, greedily, and print one JSON document (``agent-accuracy/1``) with its answers.

Runs on the server's own host with nothing but Python 3.8, beside ``bench.py``, whose way to the server it uses. It
judges nothing. With ``--logprobs`` each question is asked a second time for the probabilities of its tokens: only the
first answer is the answer, since some engines do not speculate while they tell probabilities.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import bench  # type: ignore[import-not-found]  # it lies beside this file, in the folder of the job

ALTERNATIVES = 4
TEXT_CHARS_MAX = 4000


def ask(client: Any, failed: Any, model: str, prompt: str, options: argparse.Namespace, logprobs: bool) -> Any:
    """Return the first choice of a completion; raise ``failed`` when there is none."""
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": options.tokens, "temperature": 0, "seed": 0}
    if options.api == "llamacpp":
        body["cache_prompt"] = False
    body.update(json.loads(options.request))
    if logprobs:
        body["logprobs"] = ALTERNATIVES
    try:
        with client.open("POST", "/v1/completions", body, options.timeout) as response:
            document = json.loads(response.read(8 << 20))
        return document["choices"][0], document
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise failed(f"{type(error).__name__}: {error}") from None


def chosen(found: Any) -> Any:
    """Return the tokens of ``logprobs`` as ``[text, log probability, [[text, log probability], …]]``.

    Engines name their columns ``token`` and ``tokens``, and what follows such a name in quotes is taken for a secret
    on its way to the record. What has neither form is left as it came.
    """
    if not isinstance(found, dict):
        return found
    rows = found.get("content")
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):  # llama.cpp, and chat completions
        return [
            [
                row.get("token"),
                row.get("logprob"),
                [[other.get("token"), other.get("logprob")] for other in row.get("top_logprobs") or ()],
            ]
            for row in rows
        ]
    tokens, values = found.get("tokens"), found.get("token_logprobs")
    if isinstance(tokens, list) and isinstance(values, list):  # completions of vllm and sglang
        tops = found.get("top_logprobs") or []
        more = [list(map(list, top.items())) if isinstance(top, dict) else [] for top in tops]
        more += [[] for _ in range(len(tokens) - len(more))]
        return [list(row) for row in zip(tokens, values, more)]  # noqa: B905 - Python 3.8 runs this
    return found


def answer(client: Any, failed: Any, model: str, question: dict[str, Any], options: argparse.Namespace) -> Any:
    """Return the record of one question."""
    prompt = str(question["prompt"])
    record: dict[str, Any] = {"ok": False, "expect": question.get("expect") or []}
    record["prompt_sha256"] = hashlib.sha256(prompt.encode()).hexdigest()[:16]
    try:
        choice, document = ask(client, failed, model, prompt, options, False)
        record["text"], record["ok"] = str(choice.get("text") or "")[:TEXT_CHARS_MAX], True
        record["simulated"] = "lab_seconds" in document
    except failed as error:
        record["error"] = client.clean(str(error))
        return record
    if options.logprobs:
        try:
            record["logprobs"] = chosen(ask(client, failed, model, prompt, options, True)[0].get("logprobs"))
        except (failed, AttributeError) as error:
            record["no_logprobs"] = client.clean(str(error))
    return record


def main() -> int:
    """Ask and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api", default="openai")
    parser.add_argument("--questions", default="", help="a JSON list of {prompt, expect: [TEXT, …]}")
    parser.add_argument("--questions-file", default="", help="a file with the same")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--logprobs", action="store_true")
    parser.add_argument("--request", default="{}", help="a JSON object: further fields of each request")
    options = parser.parse_args()
    try:
        text = Path(options.questions_file).read_text("utf-8") if options.questions_file else options.questions
        questions = json.loads(text)
        whole = isinstance(questions, list) and all(isinstance(item, dict) for item in questions)
        if not whole or not all(item.get("prompt") for item in questions):
            raise ValueError("questions are a JSON list of objects, each with a prompt")
        if not isinstance(json.loads(options.request), dict):
            raise ValueError("--request takes a JSON object")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"accuracy: {error}\n")
        return 2
    key = next((os.environ[name] for name in bench.KEY_VARIABLES if os.environ.get(name)), "")
    client = bench.Client("127.0.0.1", options.port, key)
    model = bench.served_model(client)
    answers = [answer(client, bench.FailedError, model, item, options) for item in questions]
    document = {
        "schema": "agent-accuracy/1",
        "endpoint": f"http://127.0.0.1:{options.port}",
        "model": model,
        "simulated": any(record.pop("simulated", False) for record in answers),
        "questions": hashlib.sha256(text.encode()).hexdigest(),
        "tokens": options.tokens,
        "answers": answers,
    }
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
