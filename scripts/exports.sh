#!/bin/sh
# Test the exports to trackers with the real packages: scripts/exports.sh [mlflow] [wandb] [trackio]; all without a name.
# They go into a folder of their own, 0.2 GB each: what the agent itself is tested with, and its users install, stays as
# it is. CI asks for MLflow.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ $# != 0 ] || set -- mlflow wandb trackio
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for extra in "$@"; do
  "$python" - "$extra" >"$folder/needs" <<'PYTHON'
import pathlib, sys, tomllib
extras = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
print(*extras[sys.argv[1]], sep="\n")
PYTHON
  echo "exports: installing $extra"
  "$python" -m pip --disable-pip-version-check -qq install --target "$folder/$extra" -r "$folder/needs"
  echo "exports: testing $extra"
  PYTHONPATH="$folder/$extra" "$python" -c "import $extra" # a test of a package that is missing would be skipped
  PYTHONPATH="$folder/$extra" "$python" -m pytest -q -n 0 tests/cli/test_exports.py -k "$extra"
done
