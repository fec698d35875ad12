#!/bin/sh
# Ask the real engines anew and compare: with the fixtures in the repository, and with what we foretell.
#   truth.sh [--write] [sglang] [sglang-0.5.9] [vllm]     --write replaces the fixtures
set -eu
cd "$(dirname "$0")/../.."
root=${TRUTH_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/agent-truth}
write=
[ "${1:-}" != --write ] || { write=1 && shift; }
[ $# -gt 0 ] || set -- sglang sglang-0.5.3 sglang-0.5.9 vllm
scripts/truth/setup.sh "$@"

folder=$(mktemp -d) status=0
trap 'rm -rf "$folder"' EXIT
cp tests/truth/*.jsonl "$folder" 2>/dev/null || :
for engine; do
  echo "truth: asking $engine; a few minutes"
  kind=${engine%%-*} older=
  [ "$kind" = "$engine" ] || older=$root/$engine
  "$root/$kind/bin/python" "scripts/truth/observe_$kind.py" "$folder/$engine.jsonl" $older 2>"$folder/$engine.log" || {
    tail -20 "$folder/$engine.log" >&2
    exit 1
  }
  # The day is no difference, and everything else is.
  plain='1s/"date":"[^"]*"//'
  sed "$plain" "tests/truth/$engine.jsonl" >"$folder/$engine.before" 2>/dev/null || :
  sed "$plain" "$folder/$engine.jsonl" >"$folder/$engine.after"
  if diff "$folder/$engine.before" "$folder/$engine.after" >"$folder/$engine.diff"; then
    echo "truth: $engine answers as before"
  else
    status=1
    echo "truth: $engine answers otherwise than the fixture:"
    cut -c1-400 "$folder/$engine.diff" | head -40
  fi
  [ -z "$write" ] || { cp "$folder/$engine.jsonl" "tests/truth/$engine.jsonl" && status=0; }
done
TRUTH_FIXTURES=$folder .venv/bin/pytest -q -p no:cacheprovider tests/truth || status=1
exit $status
