#!/bin/sh
# Known vulnerabilities of the packages that are installed in .venv, by pip-audit in an environment of its own.
# Exit 1 when one is found. What could not be asked about (no network, an index without advisories) is counted and
# said, and fails nothing: no answer is not "nothing known".
set -eu
cd "$(dirname "$0")/.."
own="${XDG_CACHE_HOME:-$HOME/.cache}/agent/pip-audit"
python=.venv/bin/python
if [ ! -x "$own/bin/pip-audit" ]; then
  if ! { "$python" -m venv "$own" && "$own/bin/python" -m pip --disable-pip-version-check -qq install pip-audit; }; then
    echo "advisories: pip-audit cannot be installed here; nothing was asked"
    rm -rf "$own"
    exit 0
  fi
fi
found=$(mktemp)
trap 'rm -f "$found"' EXIT
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
timeout 300 "$own/bin/pip-audit" --progress-spinner off --skip-editable --format json --path "$site" >"$found" 2>/dev/null || :
"$python" - "$found" <<'PYTHON'
import json, pathlib, sys
try:
    packages = json.loads(pathlib.Path(sys.argv[1]).read_text())["dependencies"]
except (ValueError, KeyError):
    sys.exit(print("advisories: no answer; nothing is known"))
bad = [(one, hole) for one in packages for hole in one.get("vulns", ())]
for one, hole in bad:
    fixed = ", ".join(hole.get("fix_versions", ())) or "none yet"
    print(f"advisories: {one['name']} {one['version']}: {hole['id']} (fixed in: {fixed})")
asked = sum("vulns" in one for one in packages)
print(f"advisories: {asked} of {len(packages)} packages asked about, {len(bad)} known vulnerabilities")
sys.exit(bool(bad))
PYTHON
