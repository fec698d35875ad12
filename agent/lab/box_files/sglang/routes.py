"""Every route of the simulated server and what it answers."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from . import __version__, log
from .engine import Answer, Engine
from .profiler import Profiler
from .web import Reply, Request

CONTEXT = 262144
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


def _health_failed(engine: Engine) -> None:
    at = time.strftime("%H:%M:%S")
    log.say(
        "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. "
        f"tic start time: {at}. last_heartbeat time: {at}"
    )


def status_of_health(engine: Engine) -> int:
    """Return the status of /health now, a one-token request included."""
    if engine.phase in ("loading", "starting", "exiting"):
        return 503
    if engine.is_hung():
        time.sleep(engine.world.real_s(20))
        _health_failed(engine)
        return 503
    if engine.world.fault("health-503-in-prefill") and (engine.running or time.monotonic() < engine.busy_until + 1.0):
        _health_failed(engine)
        log.say(
            "Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0, token usage: 0.31, #running-req: 0, "
            "#queue-req: 11, input throughput (token/s): 1410.22, cuda graph: False",
            0,
        )
        return 503
    return 200


class Routes:
    """The handler of all requests."""

    def __init__(self, engine: Engine, top: dict[str, Any], facts: dict[str, Any]) -> None:
        """Keep the tokenizer process's copy of the arguments (``top``) and what start-up found out (``facts``)."""
        self.engine, self.top, self.facts = engine, top, facts
        self.profiler = Profiler(engine)
        self.started = time.time()
        self.asked = threading.local()
        self.table = {
            "/health": self.health, "/health_generate": self.health, "/server_info": self.server_info,
            "/get_server_info": self.server_info, "/model_info": self.model_info, "/get_model_info": self.model_info,
            "/v1/models": self.models, "/generate": self.generate, "/v1/completions": self.completions,
            "/v1/chat/completions": self.completions, "/flush_cache": self.flush, "/metrics": self.metrics,
            "/start_profile": self.start_profile, "/stop_profile": self.stop_profile,
        }  # fmt: skip

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        said = request.headers.get("x-lab-concurrency", "")
        self.asked.crowd = int(said) if said.isdecimal() and 1 <= int(said[:6]) <= 4096 else 1
        handler = self.table.get(request.path)
        if handler is None:
            return Reply.of({"detail": "Not Found"}, 404)
        if request.path.startswith("/health"):
            return handler(request)
        key = self.top.get("api_key")
        if key and request.headers.get("authorization") != f"Bearer {key}":
            return Reply.of({"error": "Unauthorized"}, 401)
        if self.engine.phase == "loading":
            return Reply.of({"detail": "not ready"}, 503)
        return handler(request)

    def health(self, request: Request) -> Reply:
        """Answer /health: proof that one token came back, nothing more. With ``early-200`` not even that."""
        if self.engine.phase == "loading" and self.engine.world.fault("early-200"):
            return Reply(200)
        return Reply(status_of_health(self.engine))

    def server_info(self, request: Request) -> Reply:
        """Answer with both copies of the configuration; what is true stands in ``internal_states``."""
        engine = self.engine
        state = {
            **engine.config,
            "last_gen_throughput": round(engine.last_tok_s, 4),
            "memory_usage": self.facts["memory_usage"],
            "effective_max_running_requests_per_dp": engine.config["max_running_requests"],
        }
        length = engine.accept_length_logged()
        if engine.speculative and length is not None:
            state["avg_spec_accept_length"] = length
        return Reply.of(
            {
                **self.top,
                "max_total_num_tokens": self.facts["max_total_num_tokens"],
                "max_req_input_len": CONTEXT - 6,
                "status": "ready",
                "internal_states": [state],
                "version": __version__,
                "lab": True,
                "lab_time_scale": engine.world.spec["time_scale"],
                "lab_launch": engine.world.launch,
            }
        )

    def model_info(self, request: Request) -> Reply:
        """Answer who is served: the identity check."""
        return Reply.of(
            {
                "model_path": self.top["model_path"],
                "tokenizer_path": self.top["tokenizer_path"],
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self.top["weight_version"],
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": self.facts["model_type"],
                "architectures": self.facts["architectures"],
                "lab": True,
            }
        )

    def models(self, request: Request) -> Reply:
        """Answer /v1/models, which a hung engine answers too."""
        name = self.top["served_model_name"]
        card = {
            "id": name,
            "object": "model",
            "created": int(self.started),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": CONTEXT,
        }
        return Reply.of({"object": "list", "data": [card]})

    def flush(self, request: Request) -> Reply:
        """Empty the cache; the text is the same for both outcomes, the status is not."""
        return Reply(200 if self.engine.flush() else 400, FLUSHED.encode(), "text/plain; charset=utf-8")

    def start_profile(self, request: Request) -> Reply:
        """Begin a profile."""
        if not self.profiler.start(request.json()):
            return Reply(500, b"Internal Server Error", "text/plain; charset=utf-8")
        return Reply(200, b"Start profiling.\n", "text/plain; charset=utf-8")

    def stop_profile(self, request: Request) -> Reply:
        """End a profile; the files are written when this answers."""
        if not self.profiler.stop():
            return Reply(500, b"Internal Server Error", "text/plain; charset=utf-8")
        return Reply(200, b"Stop profiling. This will take some time.\n", "text/plain; charset=utf-8")

    def generate(self, request: Request) -> Reply:
        """Answer the native endpoint; ``meta_info`` holds this request's own counters."""
        body = request.json()
        prompt = body.get("text")
        if prompt is None and isinstance(body.get("input_ids"), list):
            prompt = " ".join(map(str, body["input_ids"]))
        if not isinstance(prompt, str) or not prompt:
            raise ValueError("Either text or input_ids should be provided.")
        sampling = body.get("sampling_params") or {}
        tokens = int(sampling.get("max_new_tokens", 128))
        if body.get("stream"):
            return Reply(kind="text/event-stream", chunks=self._events(self._native_stream(prompt, tokens)))
        result = self._run(prompt, tokens)
        return Reply.of(self._native(result, result.text, result.completion_tokens))

    def _run(self, prompt: str, tokens: int, sleep: bool = True) -> Answer:
        crowd = getattr(self.asked, "crowd", 1)
        result = self.engine.generate(prompt, max(1, tokens), sleep=sleep, crowd=crowd)
        self.profiler.check()
        return result

    def _native(self, result: Answer, text: str, tokens: int, finished: bool = True) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "finish_reason": {"type": "length", "length": tokens} if finished else None,
            "prompt_tokens": result.prompt_tokens,
            "weight_version": self.top["weight_version"],
            "completion_tokens": tokens,
            "cached_tokens": result.cached_tokens,
            "e2e_latency": round(result.seconds, 6),
        }
        if finished:
            meta |= {"lab_seconds": round(result.seconds, 6), "lab_first_token_s": round(result.first_token_s, 6)}
        if finished and self.engine.speculative:
            meta |= self._spec_meta(result)
        return {"text": text, "output_ids": [1000 + index % 97 for index in range(tokens)], "meta_info": meta}

    def _spec_meta(self, result: Answer) -> dict[str, Any]:
        drafted = result.verify_ct * (self.engine.config["speculative_num_draft_tokens"] - 1)
        accepted = result.completion_tokens - result.verify_ct
        return {
            "spec_verify_ct": result.verify_ct,
            "spec_accept_length": result.completion_tokens / result.verify_ct,
            "spec_accept_rate": accepted / drafted if drafted else 0.0,
            "spec_accept_token_num": accepted,
            "spec_draft_token_num": drafted,
        }

    def _paced(self, prompt: str, tokens: int) -> Iterator[tuple[Answer, str, int, bool]]:
        """Yield the answer piece by piece at the pace of its lab; pieces that are due together come together."""
        result = self._run(prompt, tokens, sleep=False)
        began, words = time.monotonic(), result.text.split(" ")
        sent, piece = 0, max(1, round(result.completion_tokens / result.verify_ct))
        while sent < tokens:
            share = min(1.0, (time.monotonic() - began) / max(1e-9, self.engine.world.real_s(result.seconds)))
            due = max(sent + piece, int(share * tokens)) if share < 1 else tokens
            due = min(tokens, due)
            wait = began + self.engine.world.real_s(result.seconds) * due / tokens - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            first, last = len(words) * sent // tokens, len(words) * due // tokens
            text = " ".join(words[first:last])
            yield result, (" " if first and text else "") + text, due, due >= tokens
            sent = due

    def _native_stream(self, prompt: str, tokens: int) -> Iterator[dict[str, Any]]:
        text = ""
        for result, piece, done, finished in self._paced(prompt, tokens):
            text += piece
            yield self._native(result, text, done, finished)

    @staticmethod
    def _events(values: Iterator[dict[str, Any]]) -> Iterator[bytes]:
        for value in values:
            yield b"data: " + json.dumps(value).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def completions(self, request: Request) -> Reply:
        """Answer the OpenAI endpoints, streamed or not; the last piece carries the simulated seconds."""
        body = request.json()
        chat = request.path.endswith("/chat/completions")
        prompt = body.get("prompt")
        if chat:
            prompt = "\n".join(str(message.get("content", "")) for message in body.get("messages") or [])
        if isinstance(prompt, list):
            prompt = prompt[0] if prompt and isinstance(prompt[0], str) else " ".join(map(str, prompt))
        if not isinstance(prompt, str) or not prompt:
            raise ValueError("The prompt is empty.")
        tokens = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        if body.get("stream"):
            return Reply(kind="text/event-stream", chunks=self._events(self._openai_stream(prompt, tokens, body, chat)))
        result = self._run(prompt, tokens)
        return Reply.of(self._openai(result, result.text, chat, stream=False, finished=True, usage=True))

    def _openai_stream(self, prompt: str, tokens: int, body: dict[str, Any], chat: bool) -> Iterator[dict[str, Any]]:
        result = None
        for result, piece, _, finished in self._paced(prompt, tokens):
            yield self._openai(result, piece, chat, stream=True, finished=finished, usage=False)
        if result and (body.get("stream_options") or {}).get("include_usage"):
            last = self._openai(result, "", chat, stream=True, finished=True, usage=True)
            yield {**last, "choices": []}

    def _openai(
        self, result: Answer, text: str, chat: bool, *, stream: bool, finished: bool, usage: bool
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": "length" if finished else None,
            "matched_stop": None,
        }
        if chat:
            choice["delta" if stream else "message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        kind = ("chat.completion" if chat else "text_completion") + (".chunk" if chat and stream else "")
        value: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "object": kind,
            "created": int(time.time()),
            "model": self.top["served_model_name"],
            "choices": [choice],
        }
        if finished:
            value |= {"lab_seconds": round(result.seconds, 6), "lab_first_token_s": round(result.first_token_s, 6)}
        if usage:
            total = result.prompt_tokens + result.completion_tokens
            details = {"cached_tokens": result.cached_tokens} if self.engine.config["enable_cache_report"] else None
            value["usage"] = {
                "prompt_tokens": result.prompt_tokens, "total_tokens": total,
                "completion_tokens": result.completion_tokens, "prompt_tokens_details": details, "reasoning_tokens": 0,
            }  # fmt: skip
        return value

    def metrics(self, request: Request) -> Reply:
        """Answer Prometheus text, only with --enable-metrics."""
        if not self.top["enable_metrics"]:
            return Reply.of({"detail": "Not Found"}, 404)
        engine = self.engine
        rows = {
            "num_running_reqs": engine.running, "num_queue_reqs": 0, "token_usage": 0.0, "cache_hit_rate": 0.0,
            "gen_throughput": engine.last_tok_s, "max_total_num_tokens": self.facts["max_total_num_tokens"],
            "spec_accept_length": engine.accept_length_logged() or 0.0, "prompt_tokens_total": engine.prompt_total,
            "generation_tokens_total": engine.tokens_total, "cached_tokens_total": engine.cached_total,
            "num_requests_total": engine.served, "is_cuda_graph": int(not engine.config["disable_cuda_graph"]),
        }  # fmt: skip
        labels = f'{{model_name="{self.top["served_model_name"]}",engine_type="unified",tp_rank="0",lab="true"}}'
        lines = []
        for name, value in rows.items():
            lines += [
                f"# TYPE sglang:{name} {'counter' if name.endswith('_total') else 'gauge'}",
                f"sglang:{name}{labels} {value}",
            ]
        return Reply(200, ("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4")
