"""A benchmark for the tiny server: a user's own script, with the numbers it measured."""

import json
import os
import time
import urllib.request

N, TOKENS = 3, 80
began = time.monotonic()
for _ in range(N):
    request = urllib.request.Request(
        os.environ["AGENT_URL"] + "/v1/completions",
        data=json.dumps({"prompt": "p", "max_tokens": TOKENS}).encode(),
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == TOKENS
seconds = time.monotonic() - began
rate = N * TOKENS / seconds
print(
    json.dumps(
        {
            "metrics": {
                "completed": N,
                "requested": N,
                "output_tokens": N * TOKENS,
                "duration_s": seconds,
                "output_tok_s": rate,
            }
        }
    )
)
