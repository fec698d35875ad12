"""Configurations of models that fit each other; no weights: arguments are resolved before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

_LLAMA = {
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
MODELS = {
    "llama": {**_LLAMA, "architectures": ["LlamaForCausalLM"]},
    "llama-eagle": {**_LLAMA, "architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1},
    "llama-head": {**_LLAMA, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1},
    "llama-eagle3": {
        **_LLAMA,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 2048,
    },
}


def write(root: Path) -> None:
    """Write one directory a model below ``root``."""
    for name, config in MODELS.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
