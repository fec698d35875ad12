# ruff: noqa: E501 - a row is a line
"""Bad input: each row is refused with its code, at its place, with advice; near misses pass."""

from __future__ import annotations

import pytest

from . import HEAD, plan, problems

SECRET = "hf_" + "a1B2" * 8

# (id, text, code, line, column, a part of the remedy)
ROWS: list[tuple[str, str | bytes, str, int, int, str]] = [
    ("B1 duplicate key", HEAD + "seed: 1\nseed: 2\n", "E_YAML_DUPKEY", 8, 1, "one of the two"),
    ("B2 a bool for a word", HEAD.replace("playbook: x", "playbook: true"), "E_TYPE", 1, 11, 'quote it: "true"'),
    ("B2 no is a word", HEAD + "goal: {strict: no}\n", "E_TYPE", 7, 16, "true or false"),
    ("B2 on is a word", HEAD + "on: 1\n", "E_UNKNOWN_FIELD", 7, 1, "known: accuracy, aim"),
    ("B3 sexagesimal port", HEAD.replace("18080", "22:22"), "E_TYPE", 5, 9, "digits"),
    ("B3 sexagesimal time", HEAD + "budget: {time: 1:30}\n", "E_TYPE", 7, 16, "1m30s"),
    ("B4 octal", HEAD + "seed: 0755\n", "E_OCTAL", 7, 7, "'0755' or 0o755"),
    ("B4 not even octal", HEAD + "seed: 0809\n", "E_OCTAL", 7, 7, "write '0809'"),
    ("B5 a float for a word", HEAD + "server2: 1\n".replace("server2: 1", "lab: {}") + "goal: {metric: 1.10}\n", "E_TYPE", 8, 16, '"1.10"'),
    ("B5 exponent", HEAD.replace("playbook: x", "playbook: 1e3"), "E_TYPE", 1, 11, '"1e3"'),
    ("B5 a number for a variable", HEAD + "  env: {DEBUG: 1}\n", "E_TYPE", 7, 16, 'quote it: "1"'),
    ("B6 empty", HEAD + "  host:\n", "E_NULL", 7, 3, "leave the key out"),
    ("B6 tilde", HEAD + "  host: ~\n", "E_NULL", 7, 9, "leave the key out"),
    ("B6 null flag", HEAD + "  flags: {a: null}\n", "E_NULL", 7, 14, "unset"),
    ("B7 tag", HEAD + "seed: !!int 3\n", "E_YAML_TAG", 7, 7, "leave the tag out"),
    ("B7 python", HEAD + "lab: !!python/object/apply:os.system [id]\n", "E_YAML_TAG", 7, 6, "leave the tag out"),
    ("B7 handle", HEAD + "lab: !a!b c\n", "E_YAML_TAG", 7, 6, "leave the tag out"),
    ("B8 aliases", HEAD + "lab: {a: &a 1, b: [" + ", ".join(["*a"] * 33) + "]}\n", "E_YAML_EXPANSION", 7, 148, "write the values out"),
    ("B9 cycle", HEAD + "lab: &a {b: *a}\n", "E_YAML_CYCLE", 7, 13, "remove the alias"),
    ("B9 merge", HEAD + "lab: {<<: {a: 1}}\n", "E_YAML_MERGE", 7, 7, "write the keys out"),
    ("B10 depth", HEAD + "lab: " + "[" * 51 + "]" * 51, "E_YAML_DEPTH", 7, 56, "nest less"),
    ("B10 depth of 2000", HEAD + "lab: " + "[" * 2000 + "]" * 2000, "E_YAML_DEPTH", 7, 1005, "nest less"),
    ("B10 size", HEAD + "#" * (1 << 20), "E_YAML_SIZE", 1, 1, "split it"),
    ("B11 two documents", HEAD + "---\na: 1\n", "E_YAML_MULTIDOC", 7, 1, "a file of its own"),
    ("B11 empty", "", "E_SCHEMA_TOP", 1, 1, "playbook: NAME"),
    ("B11 comment only", "# nothing\n", "E_SCHEMA_TOP", 1, 1, "playbook: NAME"),
    ("B11 list", "- playbook: x\n", "E_SCHEMA_TOP", 1, 1, "playbook: NAME"),
    ("B12 UTF-16", HEAD.encode("utf-16"), "E_ENCODING", 1, 1, "UTF-8"),
    ("B12 UTF-16 without a mark", HEAD.encode("utf-16-le"), "E_ENCODING", 1, 1, "UTF-8"),
    ("B12 not UTF-8", HEAD.encode() + b"lab: {a: \xff}", "E_ENCODING", 7, 10, "UTF-8"),
    ("B12 NUL", HEAD + 'lab: {a: "\x00"}', "E_CONTROL", 7, 11, "remove it"),
    ("B12 escaped NUL", HEAD + 'lab: {a: "x\\0"}', "E_CONTROL", 7, 10, "remove it"),
    ("B12 ESC", HEAD + "# \x1b[31m\n", "E_CONTROL", 7, 3, "remove it"),
    ("B13 unknown key", HEAD + "sede: 3\n", "E_UNKNOWN_FIELD", 7, 1, "did you mean `seed`?"),
    ("B13 below", HEAD + "benchmark:\n  repeat: 3\n", "E_UNKNOWN_FIELD", 8, 3, "did you mean `repeats`?"),
    ("B13 in a union", HEAD + "benchmark: {repeats: {mim: 3}}\n", "E_UNKNOWN_FIELD", 7, 23, "did you mean `min`?"),
    ("B13 in a stage", HEAD + "search: {stages: [{name: a, flag: {}}]}\n", "E_UNKNOWN_FIELD", 7, 29, "did you mean `flags`?"),
    ("B14 number", HEAD + "lab: {1: a}\n", "E_KEY_TYPE", 7, 7, 'quote it: "1"'),
    ("B14 bool", HEAD + "lab: {true: a}\n", "E_KEY_TYPE", 7, 7, 'quote it: "true"'),
    ("B14 list", HEAD + "lab: {[a]: a}\n", "E_KEY_TYPE", 7, 7, "quote it"),
    ("B14 null", HEAD + "lab: {~: a}\n", "E_KEY_TYPE", 7, 7, 'quote it: "~"'),
    ("B15 infinite", HEAD + "  flags: {a: .inf}\n", "E_NUMBER", 7, 14, "write a number"),
    ("B15 not a number", HEAD + "  flags: {a: .nan}\n", "E_NUMBER", 7, 14, "write a number"),
    ("B15 too large a float", HEAD + "  flags: {a: 1e999}\n", "E_NUMBER", 7, 14, "fewer digits"),
    ("B15 digits", HEAD + "seed: " + "9" * 5000 + "\n", "E_NUMBER", 7, 7, "18 digits"),
    ("B15 no unit", HEAD + "budget: {time: 5}\n", "E_DURATION", 7, 16, "write 5s"),
    ("B15 bad unit", HEAD + "budget: {time: 5min}\n", "E_DURATION", 7, 16, "15m"),
    ("B15 negative", HEAD + "states: {probe: {timeout: -5s}}\n", "E_RANGE", 7, 27, "5s"),
    ("B15 nothing", HEAD + "states: {probe: {timeout: 0s}}\n", "E_RANGE", 7, 27, "5s"),
    ("B15 too long", HEAD + "states: {probe: {timeout: 8d}}\n", "E_RANGE", 7, 27, "7d or less"),
    ("B15 share", HEAD + "goal: {improve: 2}\n", "E_TYPE", 7, 17, "write 2%"),
    ("B15 port", HEAD.replace("18080", "70000"), "E_RANGE", 5, 9, "at most 65535"),
    ("B16 pattern", HEAD + "assumptions: {a: {guard: log_lacks, pattern: '(a'}}\n", "E_REGEX_SYNTAX", 7, 46, "RE2"),
    ("B16 look-ahead", HEAD + "assumptions: {a: {guard: log_has, pattern: 'a(?=b)'}}\n", "E_REGEX_SYNTAX", 7, 44, "RE2"),
    ("B17 one condition", HEAD + "  replaces: {port: 8000}\n", "E_KILL_TOO_BROAD", 7, 3, "two of argv"),
    ("B17 none", HEAD + "  replaces: {}\n", "E_KILL_TOO_BROAD", 7, 3, "two of argv"),
    ("B17 words of everybody", HEAD + "  replaces: {argv: [python3, '.*'], port: 80}\n", "E_KILL_TOO_BROAD", 7, 3, "two of argv"),
    ("B17 an interpreter", HEAD + "  replaces: {exe: /usr/bin/python3.11, user: root}\n", "E_KILL_TOO_BROAD", 7, 3, "two of argv"),
    ("B18 pid", HEAD + "  replaces: {pid: 4711}\n", "E_KILL_PID", 7, 19, "argv"),
    ("B18 kill", HEAD.replace("[agent-llama-server]", "[sh, -c, 'kill -9 4711; x']"), "E_KILL_PID", 6, 12, "replaces"),
    ("B18 kill words", HEAD.replace("[agent-llama-server]", "[kill, '-9', '4711']"), "E_KILL_PID", 6, 12, "replaces"),
    ("B18 pkill", HEAD.replace("[agent-llama-server]", "[sh, -c, 'pkill -f x']"), "E_KILL_SHELL", 6, 12, "replaces"),
    ("B18 killall", HEAD + "benchmark: {args: [killall, x]}\n", "E_KILL_SHELL", 7, 19, "replaces"),
    ("B18 kill by command", HEAD.replace("[agent-llama-server]", "[sh, -c, 'kill -9 $(cat pid)']"), "E_KILL_SHELL", 6, 12, "replaces"),
    ("B18 kill by GPU", HEAD.replace("[agent-llama-server]", "[sh, -c, 'nvidia-smi -q | xargs kill']"), "E_KILL_SHELL", 6, 12, "replaces"),
    ("B18 fuser", HEAD.replace("[agent-llama-server]", "[sh, -c, 'fuser -k /dev/nvidia0']"), "E_KILL_SHELL", 6, 12, "replaces"),
    ("B18 in a state", HEAD + "states: {a: {after: probe, do: [{script: x, args: [pkill, x]}]}}\n", "E_KILL_SHELL", 7, 51, "replaces"),
    ("B20 secret in a value", HEAD + "  flags: {a: '${secret.X}'}\n", "E_SECRET_IN_ARGV", 7, 14, "secrets"),
    ("B20 key as a flag", HEAD + "  flags: {api-key: abc}\n", "E_SECRET_IN_ARGV", 7, 20, "environment variable"),
    ("B21 under secrets", HEAD + "  secrets: {DB_PASSWORD: correct-horse-battery}\n", "E_SECRET_LITERAL", 7, 26, "{env: DB_PASSWORD}"),
    ("B20 a word of a command", HEAD.replace("[agent-llama-server]", "[agent-llama-server, --api-key, hunter2hunter]"), "E_SECRET_IN_ARGV", 6, 33, "server.secrets"),
    ("B20 a header", HEAD + 'benchmark: {tool: command, command: [curl, -H, "Authorization: Bearer hunter2"], metrics: {output_tok_s: {json: a}}}\n', "E_SECRET_IN_ARGV", 7, 48, "server.secrets"),
    ("B21 token", HEAD + f"  env: {{X: {SECRET}}}\n", "E_SECRET_LITERAL", 7, 12, "secrets"),
    ("B21 sk", HEAD + "lab: {}\nbenchmark: {args: [sk-" + "a" * 24 + "]}\n", "E_SECRET_LITERAL", 8, 20, "secrets"),
    ("B21 private key", HEAD + "  env:\n    K: |\n      -----BEGIN OPENSSH PRIVATE KEY-----\n", "E_SECRET_LITERAL", 8, 8, "secrets"),
    ("B21 by its name", HEAD + "  env: {HF_TOKEN: swordfish}\n", "E_SECRET_LITERAL", 7, 19, "{env: HF_TOKEN}"),
    ("B21 in a sweep", HEAD + "search: {stages: [{name: a, env: {API_KEY: {sweep: [abc]}}}]}\n", "E_SECRET_LITERAL", 7, 53, "{env: API_KEY}"),
    ("B21 a number", HEAD + "  flags: {api-key: 12345}\n", "E_SECRET_IN_ARGV", 7, 20, "environment variable"),
    ("B21 in the lab", HEAD + f"lab: {{a: [{SECRET}]}}\n", "E_SECRET_LITERAL", 7, 11, "secrets"),
    ("B21 in a prompt", HEAD + f"benchmark: {{prompts: ['say {SECRET}']}}\n", "E_SECRET_LITERAL", 7, 23, "secrets"),
    ("B21 for sudo", HEAD.replace("demo", "{address: a, sudo: {password: abcdefgh}}"), "E_SECRET_LITERAL", 2, 44, "{env:"),
    ("B21 as sudo", HEAD.replace("demo", "{address: a, sudo: abcdefgh}"), "E_SECRET_LITERAL", 2, 33, "{env:"),
    ("B21 in a key", HEAD + f"  flags: {{{SECRET}: 1}}\n", "E_SECRET_LITERAL", 7, 11, "take it out"),
    ("B22 template", HEAD + "  flags: {a: '{{ x }}'}\n", "E_TEMPLATE", 7, 14, "{expr: …}"),
    ("B22 block", HEAD + "  flags: {a: '{% if x %}'}\n", "E_TEMPLATE", 7, 14, "{expr: …}"),
    ("B22 command", HEAD + "  flags: {a: $(id)}\n", "E_TEMPLATE", 7, 14, "{expr: …}"),
    ("B22 variable", HEAD + "  env: {A: '${HOME}/x'}\n", "E_TEMPLATE", 7, 12, "{expr: …}"),
    ("B23 no such variable", HEAD + "  flags: {a: {expr: flgs.b + 1}}\n", "E_UNDEFINED_VAR", 7, 21, "did you mean `flags`?"),
    ("B23 no such flag", HEAD + "  flags: {a: {expr: flags.b + 1}}\n", "E_EXPR", 7, 21, "every value"),
    ("B23 itself", HEAD + "  flags: {a: {expr: flags.a + 1}}\n", "E_VAR_CYCLE", 7, 21, "has a value"),
    ("B23 types", HEAD + "  flags: {a: {expr: \"1 + 'a'\"}}\n", "E_EXPR", 7, 21, "CEL"),
    ("B25 option", HEAD.replace("demo", "-oProxyCommand=x"), "E_HOST_SYNTAX", 2, 14, "root@gpu-box"),
    ("B25 blank", HEAD.replace("demo", "a b"), "E_HOST_SYNTAX", 2, 14, "root@gpu-box"),
    ("B25 semicolon", HEAD.replace("demo", "u@h;x"), "E_HOST_SYNTAX", 2, 14, "root@gpu-box"),
    ("B25 newline", HEAD.replace("demo", '"a\\nb"'), "E_HOST_SYNTAX", 2, 14, "root@gpu-box"),
    ("B25 long", HEAD.replace("demo", "a" * 300), "E_HOST_SYNTAX", 2, 14, "root@gpu-box"),
    ("B25 option as user", HEAD.replace("demo", "-l@h"), "E_HOST_SYNTAX", 2, 14, "root@gpu-box"),
    ("B25 port", HEAD.replace("demo", "'u@h:99999'"), "E_HOST_SYNTAX", 2, 14, "user@host:22"),
    ("B25 name", HEAD.replace("box:", "b ox:"), "E_NAME", 2, 9, "my-name"),
    ("B26 up", HEAD + "benchmark: {script: ../x.py}\n", "E_PATH", 7, 21, "relative"),
    ("B26 absolute", HEAD + "benchmark: {script: /etc/passwd}\n", "E_PATH", 7, 21, "relative"),
    ("B26 home", HEAD + "benchmark: {script: ~root/x}\n", "E_PATH", 7, 21, "relative"),
    ("B26 glob", HEAD + "benchmark: {script: 'x*.py'}\n", "E_PATH", 7, 21, "relative"),
    ("B26 up in the middle", HEAD + "benchmark: {script: a/../../x.py}\n", "E_PATH", 7, 21, "relative"),
    ("B28 unknown target", HEAD + "states: {launch: {on: {fail: nowhere}}}\n", "E_GRAPH", 7, 30, "known:"),
    ("B28 unknown place", HEAD + "states: {a: {after: lunch, do: [probe]}}\n", "E_GRAPH", 7, 21, "did you mean `launch`?"),
    ("B28 unreachable", HEAD + "states: {launch: {on: {pass: decide, fail: decide}}}\n", "E_GRAPH", 7, 1, "lead an outcome"),
    ("B28 cycle", HEAD + "states: {health-wait: {on: {fail: kill}}}\n", "E_GRAPH", 7, 1, "decide"),
    ("B28 no end on a stop", HEAD + "states: {a: {do: [launch], on: {pass: done}}}\n", "E_GRAPH", 7, 10, "write `finally:"),
    ("B28 no way out", HEAD + "states: {a: {do: [probe], on: {pass: b}}, b: {do: [decide], on: {next: b}}}\n", "E_GRAPH", 7, 43, "lead an outcome"),
    ("B28 same stage twice", HEAD + "search: {stages: [{name: a, flags: {b: 1}}, {name: a, flags: {b: 2}}]}\n", "E_DUP_STEP", 7, 52, "its own"),
    ("B28 a reserved name", HEAD + "states: {done: {after: probe, do: [probe]}}\n", "E_GRAPH", 7, 10, "another name"),
    ("B29 PATH", HEAD + "  env: {PATH: /x}\n", "E_ENV_NAME", 7, 9, "full path"),
    ("B29 LD_PRELOAD", HEAD + "  env: {LD_PRELOAD: x.so}\n", "E_ENV_NAME", 7, 9, "full path"),
    ("B29 BASH_ENV", HEAD + "search: {base: {env: {BASH_ENV: x}}}\n", "E_ENV_NAME", 7, 23, "full path"),
    ("B29 ours", HEAD + "  env: {AGENT_RUN_KEY: x}\n", "E_ENV_NAME", 7, 9, "another name"),
    ("port of a sweep", HEAD + "search: {stages: [{name: a, flags: {port: {sweep: [18080, 2]}}}]}\n", "E_CONFLICT", 7, 59, "leave the flag out"),
    ("port of a range", HEAD + "search: {stages: [{name: a, flags: {port: {sweep: 1..2}}}]}\n", "E_CONFLICT", 7, 51, "leave the flag out"),
    ("port of a trial", HEAD + "trials: [{flags: {port: 99}}]\n", "E_CONFLICT", 7, 25, "leave the flag out"),
    ("port of a point", HEAD + "search: {stages: [{name: a, points: [{flags: {port: unset}}]}]}\n", "E_CONFLICT", 7, 53, "leave the flag out"),
    ("port of the base", HEAD + "search: {base: {flags: {port: 99}}, stages: [{name: a, flags: {b: 1}}]}\n", "E_CONFLICT", 7, 31, "leave the flag out"),
    ("port derived", HEAD + "search: {base: {flags: {port: {expr: '1 + 1'}}}, stages: [{name: a, flags: {b: 1}}]}\n", "E_CONFLICT", 7, 31, "leave the flag out"),
    ("port of a hypothesis", HEAD + "aim: debug\nhypotheses: {a: {because: b, change: {flags: {port: 99}}, predict: {reaches: launch}}}\n", "E_CONFLICT", 8, 53, "leave the flag out"),
    ("port of a bisection", HEAD + "aim: debug\nbisect: {flag: {name: port, values: [18080, 99]}, bad: {reaches: launch}}\n", "E_CONFLICT", 8, 45, "leave the flag out"),
    ("port of a list of changes", HEAD + "aim: debug\nbisect: {any_of: [{name: a, flags: {port: 1}}, {name: b, flags: {c: 1}}], bad: {reaches: launch}}\n", "E_CONFLICT", 8, 43, "leave the flag out"),
    ("port of a cure", HEAD + "on_fail: {GPU_OOM: {flags: {port: {add: 1}}}}\n", "E_CONFLICT", 7, 35, "leave the flag out"),
    ("more GPUs in a sweep", HEAD.replace("llamacpp", "sglang") + "  tensor_parallel: 4\ntrials: [{flags: {tp: 2}}, {flags: {tp: 8}}]\n", "E_CONFLICT", 8, 41, "`server: {gpus: 8}`"),
    ("more GPUs than are said", HEAD.replace("llamacpp", "sglang") + "  flags: {tp: 8}\n", "E_CONFLICT", 7, 15, "`server: {gpus: 8}`"),
    ("goodput without limits", HEAD + "goal: {metric: goodput_req_s}\n", "E_MISSING", 7, 16, "slo: {ttft: 500ms"),
    ("a share without limits", HEAD + "goal: {limits: ['slo_share >= 0.9']}\n", "E_MISSING", 7, 17, "slo: {ttft: 500ms"),
    ("a tool's flag without a tool", HEAD + "search: {stages: [{name: a, benchmark: {--request-rate: {sweep: [1, 2]}}}]}\n", "E_CONFLICT", 7, 41, "or name a `tool`"),
    ("cold requests on a GPU", HEAD + "  gpus: 1\nbenchmark: {warmup: 0}\n", "E_CONFLICT", 8, 21, "accuracy, {guard: gpus_steady, blind_ok: true}]"),
    ("a flag that the load lacks", HEAD + "benchmark: {args: [--seeed, '3']}\n", "E_REF", 7, 20, "did you mean `--seed`?"),
    ("cold requests", HEAD + "benchmark: {warmup: 0}\n", "E_CONFLICT", 7, 21, "{guard: bench_valid, cold_ok: true}, drafting"),
    ("no group", HEAD + "benchmark: {tool: command, command: [x], metrics: {output_tok_s: {pattern: tps}}}\n", "E_PATTERN", 7, 76, "([0-9.]+)"),
    ("bounds that nothing keeps", HEAD + "states: {benchmark: {guards: [{guard: metric, name: accept_len, above: 3, below: 1}]}}\n", "E_CONFLICT", 7, 82, "more than `above`"),
    ("a prediction that nothing keeps", HEAD + "aim: debug\nhypotheses: {a: {because: b, predict: {metric: accept_len, above: 3, below: 3}}}\n", "E_CONFLICT", 8, 77, "more than `above`"),
    ("limits that nothing keeps", HEAD + "goal: {limits: ['ttft_ms_p99 <= 5', 'ttft_ms_p99 >= 50']}\n", "E_CONFLICT", 7, 37, "leave one out"),
    ("a limit below nothing", HEAD + "goal: {limits: ['ttft_ms_p99 <= -5']}\n", "E_LIMIT", 7, 17, "write ttft_ms_p99 <= 5"),
    ("a limit with an exponent", HEAD + "goal: {limits: ['output_tok_s >= 1e99']}\n", "E_LIMIT", 7, 17, "output_tok_s >= 500"),
    ("a limit with its own name", HEAD + "goal: {limits: ['tps < 3']}\n", "E_LIMIT", 7, 17, "write tps <= 3"),
    ("a limit without a sign", HEAD + "goal: {limits: ['tps 3']}\n", "E_LIMIT", 7, 17, "write tps >= 3"),
    ("a share below nothing", HEAD + "goal: {improve: -2%}\n", "E_RANGE", 7, 17, "write 2%"),
    ("no time at all", HEAD + "benchmark: {timeout: 1ms}\n", "E_RANGE", 7, 22, "write 5s"),
    ("longer than the context", HEAD + "  flags: {ctx-size: 4096}\nbenchmark: {output_tokens: 4096}\n", "E_CONFLICT", 8, 28, "raise `ctx-size`"),
    ("GPUs hidden", HEAD + "  gpus: 2\n  env: {CUDA_VISIBLE_DEVICES: ''}\n", "E_VALUE", 8, 31, "indices"),
    ("GPUs odd", HEAD + "  gpus: 2\n  env: {CUDA_VISIBLE_DEVICES: '0;1'}\n", "E_VALUE", 8, 31, "nvidia-smi -L"),
    ("GPUs too few", HEAD + "  gpus: 2\n  env: {HIP_VISIBLE_DEVICES: '3'}\n", "E_CONFLICT", 8, 30, "name 2"),
    ("GPUs twice", HEAD + "  gpus: 2\n  env: {CUDA_VISIBLE_DEVICES: '3,3'}\n", "E_CONFLICT", 8, 31, "name 2"),
    ("B29 equals", HEAD + "  env: {A=B: x}\n", "E_ENV_NAME", 7, 9, "no ="),
    ("B29 library path", HEAD + "  env: {LD_LIBRARY_PATH: /x}\n", "E_ENV_NAME", 7, 9, "allow_env"),
    ("hypotheses of no debug campaign", HEAD + "hypotheses: {a: {because: b, change: {flags: {c: 1}}, predict: {metric: accept_len, above: 1.8}}}\n", "E_CONFLICT", 7, 1, "aim: debug"),
    ("optuna without a sample", HEAD + "search: {stages: [{name: a, flags: {b: {sweep: 1..3, strategy: optuna}}}]}\n", "E_MISSING", 7, 19, "sample: 8"),
    ("a word of a list", HEAD.replace("llamacpp", "llamcpp"), "E_VALUE", 4, 9, "did you mean `llamacpp`?"),
    ("a missing key", HEAD.replace("  port: 18080\n", ""), "E_MISSING", 3, 1, "write `port: …`"),
    ("a sweep in the base", HEAD + "search: {base: {flags: {a: {sweep: [1]}}}}\n", "E_VALUE", 7, 28, ""),
    ("no such guard", HEAD + "assumptions: {a: gpus_cleen}\n", "E_GUARD", 7, 18, "did you mean `gpus_clean`?"),
    ("no guard at all", HEAD + "states: {verify-clean: {guards: []}}\n", "E_GUARD", 7, 33, "at least no_process"),
    ("a guard's key", HEAD + "assumptions: {a: {guard: gpus_balanced, sprad: 5%}}\n", "E_UNKNOWN_FIELD", 7, 41, "did you mean `spread`?"),
    ("dashes", HEAD + "  flags: {--ctx-size: 1}\n", "E_FLAG_NAME", 7, 11, "ctx-size"),
    ("port said twice", HEAD + "  flags: {port: 1}\n", "E_CONFLICT", 7, 17, "leave the flag out"),
    ("YAML itself", HEAD + "a: b: c\n", "E_YAML_SYNTAX", 7, 5, "quote"),
    ("an old version", "%YAML 1.1\n---\n" + HEAD, "E_YAML_VERSION", 1, 1, "%YAML"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code", "line", "column", "remedy"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_refused(text: str | bytes, code: str, line: int, column: int, remedy: str) -> None:
    """One problem, with its code and place; the advice says what to write."""
    found = problems(text)
    assert [(one.code, one.line, one.column) for one in found] == [(code, line, column)], "\n".join(map(str, found))
    assert remedy in found[0].remedy
    assert found[0].file == "p.yaml"
    assert SECRET not in str(found[0])


NEAR_MISSES = {
    "quoted words": HEAD + 'lab: {a: "true", b: "0755", c: "1.10", "2": x, "no": y}\n',
    "on as a key": HEAD + "states: {launch: {on: {fail: hold}}}\n",
    "no is a word": HEAD.replace("playbook: x", "playbook: no"),
    "a byte order mark": b"\xef\xbb\xbf" + HEAD.encode(),
    "CRLF": HEAD.replace("\n", "\r\n"),
    "an alias": HEAD + "lab: {a: &a [1, 2], b: *a}\n",
    "a document end": "---\n" + HEAD + "...\n",
    "depth 50": HEAD + "lab: {a: " + "[" * 48 + "]" * 48 + "}\n",
    "hexadecimal": HEAD + "seed: 0x1F\n",
    "octal of today": HEAD + "seed: 0o17\n",
    "a long time": HEAD + "budget: {time: 30d}\n",
    "seven days": HEAD + "states: {probe: {timeout: 7d}}\n",
    "two conditions": HEAD + "  replaces: {argv: [sglang.launch_server], port: 8000}\n",
    "user and exe": HEAD + "  replaces: {exe: /opt/llama/llama-server, user: root}\n",
    "kill in a name": HEAD.replace("[agent-llama-server]", '[./killer, --kill-timeout, "3", --skill, kill]'),
    "tokens that are none": HEAD + "  env: {TOKENIZERS_PARALLELISM: 'false'}\n  flags: {max-total-tokens: 1}\n",
    "braces in prompts": HEAD + "benchmark: {prompts: ['{{ say }} $(this)']}\n",
    "a dollar": HEAD + "  flags: {a: 'US$ 5', b: '{x}'}\n",
    "a shell that is named": HEAD.replace("[agent-llama-server]", "[sh, -c, 'exec x --seed $(date +%s) ${Y}']"),
    "json": HEAD + "  flags: {speculative-config: '{\"method\": \"ngram\"}'}\n",
    "shell signs": HEAD + "  flags: {a: '; rm -rf /', b: '-x', c: \"two\\nlines\"}\n",
    "an address": HEAD.replace("demo", "'root@[fe80::1]:2222'"),
    "a user": HEAD.replace("demo", "my_user@gpu-01.cluster.example.org:22"),
    "local": HEAD.replace("demo", "local"),
    "a file below": HEAD + "benchmark: {script: load/bench.py}\n",
    "library path, meant": HEAD + "  env: {LD_LIBRARY_PATH: /x}\n  allow_env: [LD_LIBRARY_PATH]\n",
    "AGENTS": HEAD + "  env: {AGENTS: '3', Path: x}\n",
    "a secret by reference": HEAD + "  secrets: {HF_TOKEN: {env: HF_TOKEN}}\n",
    "a token of text": HEAD + "  flags: {eos-token: x, max-tokens: 5}\n  env: {HF_TOKEN: unset}\n",
    "a header without a secret": HEAD.replace("[agent-llama-server]", "[agent-llama-server, --eos-token, x, --api-key, --max-tokens, '5']"),
    "a short hf_": HEAD + "  flags: {hf-repo: hf_small}\n",
    "a null that is meant": HEAD + "assumptions: {a: {guard: file_is, path: /x, json: {a.b: null}}}\n",
    "port said the same": HEAD + "  flags: {port: 18080}\n",
    "expressions in order": HEAD + "  flags: {a: {expr: flags.b + 1}, b: {expr: flags.x + 1}, x: 1}\n",
    "an own graph": HEAD + "states: {a: {do: [probe], on: {pass: b}}, b: {do: [decide], on: {next: a, finish: done}}}\n",
    "everything commented": HEAD + "# {{ x }} $(id) kill -9 1\n",
}  # fmt: skip


@pytest.mark.parametrize("text", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses_pass(text: str | bytes) -> None:
    """What only looks like bad input is accepted."""
    assert problems(text) == ()


def test_all_problems_are_reported_in_the_order_of_the_file() -> None:
    """One look shows everything, whatever found it."""
    text = HEAD.replace("18080", "22:22") + "seed: 07\nseed: 8\ngoal: {improve: 2}\nfinally: winer\n"
    assert [(one.code, one.line) for one in problems(text)] == [
        ("E_TYPE", 5), ("E_OCTAL", 7), ("E_YAML_DUPKEY", 8), ("E_TYPE", 9), ("E_VALUE", 10),
    ]  # fmt: skip


def test_a_secret_is_never_echoed_wherever_it_stands() -> None:
    """Neither values nor keys, nor what YAML itself complains about."""
    places = (
        f"playbook: {SECRET}\n",
        f"lab: {{1: 2}}\n{SECRET}: 1\n",
        f"server: {SECRET}\n",
        f"a: {SECRET}\na: b: {SECRET}\n",
    )
    for text in (
        *places,
        HEAD + f"seed: {SECRET}\n",
        HEAD + f"  flags: {{a: [{SECRET}]}}\n",
        HEAD + f"{SECRET}: 1\n{SECRET}: 2\n",
    ):
        found = problems(text)
        assert found
        assert SECRET not in "\n".join(map(str, found))


def test_a_message_has_place_code_field_and_advice() -> None:
    """What a person reads."""
    (one,) = problems(HEAD + "benchmark:\n  repeat: 3\n")
    assert str(one) == "p.yaml:8:3: E_UNKNOWN_FIELD: benchmark.repeat: no such key\n    did you mean `repeats`?"


def test_there_are_at_most_a_hundred() -> None:
    """A file that is wrong throughout says so, and stays readable."""
    found = problems(HEAD + "".join(f"k{number}: 1\n" for number in range(500)))
    assert len(found) == 101
    assert found[-1].code == "E_MORE"


def test_values_arrive_literally() -> None:
    """Nothing in a value is expanded, whatever a shell would make of it."""
    words = plan(NEAR_MISSES["shell signs"]).server.flags
    assert (words["a"], words["b"], words["c"]) == ("; rm -rf /", "-x", "two\nlines")
