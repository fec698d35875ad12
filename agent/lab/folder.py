"""The lab's folder: what lies where, and how it is laid out before anything starts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

from .spec import DRAFT, MODEL, LabSpec

STUB = Path(__file__).parent / "box_files" / "sglang"
MARK = "This is a lab: its GPUs and its model are simulated, its processes and its SSH server are real.\n"
SHIM = """#!{python} -IS
import sys
sys.path.insert(0, {site!r})
from sglang.{module} import main
sys.exit(main(sys.argv[1:]))
"""
HEAD = "lm_head.weight"
DRAFT_CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 7168,
    "target_hidden_size": 7168,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "vocab_size": 163840,
    "draft_vocab_size": 32000,
    "torch_dtype": "bfloat16",
    "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
}
MODEL_CONFIG = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 7168},
}


class Folder:
    """Paths of one lab."""

    def __init__(self, path: Path) -> None:
        """Name the folder; see ``lay_out``."""
        self.path = path.resolve()
        self.bin = self.path / "bin"
        self.site = self.path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        self.home = self.path / "home"
        self.keys = self.path / "keys"
        self.client_key = self.keys / "client"
        self.host_key = self.keys / "host"
        self.known_hosts = self.keys / "known_hosts"
        self.ssh_config = self.path / "ssh_config"
        self.info = self.path / "box.json"
        self.ready = self.path / "ready"

    def lay_out(self, spec: LabSpec) -> None:
        """Create everything but the keys. Raise FileExistsError when a lab was here already."""
        if self.info.exists() or (self.path / "lab.json").exists():
            raise FileExistsError(f"{self.path} was a lab already: give a fresh folder")
        for name in ("bin", "usrbin", "home", "keys", "host", "tmp", "mnt", "root", "gpu/servers", "gpu/gone"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        self.keys.chmod(0o700)
        (self.path / "LAB").write_text(MARK)
        (self.path / "lab.json").write_text(self._spec_json(spec))
        python = Path(sys._base_executable if hasattr(sys, "_base_executable") else sys.executable).resolve()
        shutil.copytree(STUB, self.site / "sglang", ignore=shutil.ignore_patterns("__pycache__"))
        (self.path / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
        for name in ("python3", "python"):
            (self.bin / name).symlink_to(python)
        for folder in ("bin", "usrbin"):
            shim = self.path / folder / "nvidia-smi"
            shim.write_text(SHIM.format(python=python, site=str(self.site), module="smi"))
            shim.chmod(0o755)
        for name, text in self._files(spec).items():
            file = self.path / "root" / name.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def _spec_json(self, spec: LabSpec) -> str:
        value = spec.model_dump(mode="json")
        raw = [hashlib.sha256(f"{spec.hostname}/{index}".encode()).hexdigest() for index in range(spec.gpus)]
        value["uuids"] = [f"GPU-{x[:8]}-{x[8:12]}-{x[12:16]}-{x[16:20]}-{x[20:32]}" for x in raw]
        slow = spec.order("slow-release")
        if slow:
            value["release_s"] = [slow.seconds, slow.seconds]
        return json.dumps(value, indent=1)

    @staticmethod
    def _files(spec: LabSpec) -> dict[str, str]:
        draft = dict(DRAFT_CONFIG)
        ids = [-1, 2, 30] if spec.order("wrong-layer-ids") else list(spec.layer_ids)
        draft["eagle_config"] = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": ids}
        index = {
            "metadata": {"lab": True},
            "weight_map": {"fc.weight": "model.safetensors", "midlayer.self_attn.q_proj.weight": "model.safetensors"},
        }
        if not spec.order("draft-head-missing"):
            index["weight_map"] |= {HEAD: "model.safetensors"}  # type: ignore[operator]
        return {
            f"{MODEL}/config.json": json.dumps(MODEL_CONFIG, indent=2) + "\n",
            f"{DRAFT}/config.json": json.dumps(draft, indent=2) + "\n",
            f"{DRAFT}/model.safetensors.index.json": json.dumps(index, indent=2) + "\n",
            **spec.files,
        }

    def environment(self, user: str) -> dict[str, str]:
        """Return what every shell of the box starts with."""
        usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {
            # Last, the programs beside this interpreter: a real llama.cpp server runs in a lab too.
            "PATH": f"{self.bin}:{usual}:{Path(sys.executable).parent}",
            "HOME": str(self.home),
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/sh",
            "TMPDIR": str(self.path / "tmp"),
            "LANG": "C.UTF-8",
            "AGENT_HOST_BASE": str(self.path / "host"),
            "LAB_FOLDER": str(self.path),
            "LAB": "1",
        }

    def write_access(self, host: str, port: int, user: str, aliases: tuple[str, ...], public_key: str) -> None:
        """Write known_hosts and an ssh_config in which every alias leads to the box."""
        names = [f"[{host}]:{port}", *aliases, *(f"[{alias}]:{port}" for alias in aliases)]
        self.known_hosts.write_text(f"{','.join(names)} {public_key}\n")
        self.ssh_config.write_text(
            f"Host {' '.join(aliases)}\n"
            f"    HostName {host}\n    Port {port}\n    User {user}\n"
            f"    IdentityFile {self.client_key}\n    IdentitiesOnly yes\n"
            f"    UserKnownHostsFile {self.known_hosts}\n    StrictHostKeyChecking yes\n"
        )

    def write_private(self, path: Path, data: bytes) -> None:
        """Write a key that only its owner can read."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
