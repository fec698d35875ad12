"""``agent init``: write the shortest useful playbook."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

TEMPLATES = {
    "sglang": """\
server:
  kind: sglang
  host: box
  port: 30000
  tensor_parallel: 1
  command: [python3, -m, sglang.launch_server]
  flags: {model-path: /data/models/MODEL}
assumptions: {flags-known: {guard: flags_known}}   # asked of the installed server before anything is ended or loaded
search:
  stages: [{name: chunk, flags: {chunked-prefill-size: {sweep: [2048, 4096, 8192]}}}]
""",
    "vllm": """\
server:
  kind: vllm
  host: box
  port: 8000
  tensor_parallel: 1
  command: [vllm, serve, /data/models/MODEL]
assumptions: {flags-known: {guard: flags_known}}   # asked of the installed server before anything is ended or loaded
search:
  stages: [{name: batch, flags: {max-num-batched-tokens: {sweep: [2048, 8192]}}}]
""",
    "llamacpp": """\
server:
  kind: llamacpp
  host: box
  port: 8080
  command: [llama-server]
  flags: {model: /data/models/MODEL.gguf, threads: 4, metrics: true}
search:
  stages:
    - {name: batch, flags: {ubatch-size: {sweep: [256, 512]}}}
""",
}


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("init", help="write the shortest useful playbook")
    command.add_argument("playbook", type=Path, help="the file to write; it must not be there yet")
    command.add_argument("--kind", choices=sorted(TEMPLATES), default="sglang")
    where = "an ssh alias, user@host:port, or local"
    command.add_argument("--host", default="root@gpu-box", metavar="ADDRESS", help=where)
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Write the file, whole or not at all; return the exit code."""
    from agent.errors import AgentError

    name = "".join(char if char.isalnum() else "-" for char in args.playbook.stem.lower()).strip("-") or "campaign"
    text = (
        f"playbook: {name}\n"
        "goal: {metric: output_tok_s, improve: 3%}\n"
        f'hosts: {{box: "{args.host}"}}\n'
        f"{TEMPLATES[args.kind]}"
        "benchmark: {prompts: mixed, output_tokens: 256, requests: 8, repeats: 3}\n"
        "finally: winner\n"
    )
    try:
        with args.playbook.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise AgentError(f"{args.playbook} is there already", "choose another name", "E_EXISTS") from None
    except OSError as error:
        raise AgentError(f"{args.playbook}: {error.strerror}", "choose another place", "E_WRITE") from None
    print(f"wrote {args.playbook}; put in your model and host, then:")
    print(f"  agent check {args.playbook} && agent plan {args.playbook}")
    return 0
