"""Views for people: what ``sqlite3 journal.db`` and Datasette show. The program itself reads entries, never these.

Units stand in the column names; ``*_utc`` is wall time, for orientation; durations come from CLOCK_BOOTTIME and
are NULL across a restart of the controller's machine.
"""

from __future__ import annotations

# ruff: noqa: S608 - everything put into these statements stands in this file

# SQLite takes JSON from a BLOB only by leniency: hence the casts.
_BODY = "CAST({0}body AS TEXT)"


def _field(path: str, table: str = "") -> str:
    return f"json_extract({_BODY.format(table)}, '$.{path}')"


def _utc(table: str = "") -> str:
    seconds = f"{table}wall_ns / 1000000000"
    return f"strftime('%Y-%m-%d %H:%M:%S', {seconds}, 'unixepoch') || printf('.%03d', {table}wall_ns / 1000000 % 1000)"


def _part(number: int, column: str) -> str:
    """Return a part of a request's path: lane/trial/launch/state/attempt/action, counted from 0."""
    words = f"""'["' || replace({column}, '/', '","') || '"]'"""
    return f"CASE WHEN json_valid({words}) THEN json_extract({words}, '$[{number}]') END"


def _output(path: str) -> str:
    """Return a value of a benchmark's own document; NULL when its output is a blob or no JSON."""
    text = _field("outcome.out.text", "b.")
    return f"CASE WHEN json_valid({text}) THEN json_extract({text}, '$.{path}') END"


_OK = "json_extract(r.value, '$.ok')"

VIEWS: dict[str, str] = {
    "timeline": f"""
SELECT seq, {_utc()} AS at_utc, kind, lane, host, CASE kind
    WHEN 'opened' THEN {_field("plan.name")}
    WHEN 'resumed' THEN {_field("controller")}
    WHEN 'noted' THEN {_field("request")} || ': ' || substr(coalesce({_field("part.text")}, '(bytes)'), 1, 120)
    WHEN 'observed' THEN request || ': ' || {_field("outcome.result")}
      || coalesce(' ' || {_field("outcome.status")}, '') || coalesce(' ' || {_field("outcome.why")}, '')
    WHEN 'instructed' THEN {_field("order.order")} || ' by ' || {_field("by")}
    WHEN 'requested' THEN request || ': ' || {_field("action.do")}
    WHEN 'judged' THEN {_field("guard")} || ': ' || {_field("verdict.result")} || ' ' || {_field("verdict.saw")}
    WHEN 'moved' THEN {_field("source")} || ' -' || {_field("outcome")} || '-> ' || {_field("state")}
    WHEN 'proposed' THEN {_field("trial.id")} || ' (' || {_field("trial.role")} || ') on ' || {_field("launch")}
    WHEN 'scored' THEN {_field("trial")} || ' on ' || {_field("launch")} || ': ' || {_field("values")}
    WHEN 'concluded' THEN {_field("word")} END AS what
FROM event""",
    "transitions": f"""
SELECT seq, {_utc()} AS at_utc, lane, {_field("trial")} AS trial, {_field("launch")} AS launch,
  {_field("source")} AS source, {_field("outcome")} AS outcome, {_field("state")} AS state,
  {_field("attempt")} AS attempt, {_field("because")} AS because
FROM event WHERE kind = 'moved'""",
    "guards": f"""
SELECT seq, {_utc()} AS at_utc, {_field("at")} AS visit, {_field("guard")} AS guard,
  {_field("verdict.result")} AS result, {_field("verdict.finding")} AS finding, {_field("verdict.saw")} AS saw,
  {_field("verdict.wanted")} AS wanted, {_field("verdict.remedy")} AS remedy, {_field("verdict.read")} AS read
FROM event WHERE kind = 'judged'""",
    "requests": f"""
SELECT a.seq AS asked_seq, b.seq AS answered_seq, a.request AS request, {_field("action.do", "a.")} AS action,
  a.host AS host, {_utc("a.")} AS asked_utc, {_utc("b.")} AS answered_utc,
  CASE WHEN a.boot = b.boot THEN round((b.boot_ns - a.boot_ns) / 1e9, 6) END AS took_s,
  {_field("outcome.result", "b.")} AS outcome, {_field("outcome.status", "b.")} AS status
FROM event AS a LEFT JOIN event AS b ON b.kind = 'observed' AND b.request = a.request
WHERE a.kind = 'requested'""",
    "trials": f"""
SELECT p.seq AS seq, {_utc("p.")} AS at_utc, {_field("trial.id", "p.")} AS trial,
  {_field("trial.role", "p.")} AS role, {_field("trial.stage", "p.")} AS stage, {_field("launch", "p.")} AS launch,
  {_field("trial.point", "p.")} AS point, {_field("valid", "s.")} AS valid, {_field("finding", "s.")} AS finding,
  {_field("values", "s.")} AS means, {_field("deviations", "s.")} AS deviations, {_field("repeats", "s.")} AS repeats
FROM event AS p LEFT JOIN event AS s ON s.kind = 'scored' AND s.seq > p.seq
  AND {_field("trial", "s.")} = {_field("trial.id", "p.")} AND {_field("launch", "s.")} = {_field("launch", "p.")}
WHERE p.kind = 'proposed'""",
    "launches": f"""
SELECT a.seq AS seq, {_utc("a.")} AS at_utc, {_part(2, "a.request")} AS launch, {_part(1, "a.request")} AS trial,
  a.host AS host, {_field("action.key", "a.")} AS host_key,
  rtrim({_field("outcome.out.text", "b.")}, char(10)) AS answer,
  (SELECT round((m.boot_ns - a.boot_ns) / 1e9, 3) FROM event AS m WHERE m.kind = 'moved' AND m.seq > a.seq
    AND m.boot = a.boot AND {_field("launch", "m.")} = {_part(2, "a.request")}
    AND {_field("source", "m.")} = 'health-wait' AND {_field("outcome", "m.")} = 'pass' LIMIT 1) AS ready_after_s,
  {_field("action.job.argv", "a.")} AS argv, {_field("action.job.env", "a.")} AS env
FROM event AS a LEFT JOIN event AS b ON b.kind = 'observed' AND b.request = a.request
WHERE a.kind = 'requested' AND {_field("action.do", "a.")} = 'start'
  AND {_field("action.job.role", "a.")} = 'server'""",
    "benchmarks": f"""
SELECT b.seq AS seq, {_utc("b.")} AS at_utc, {_part(1, "a.request")} AS trial, {_part(2, "a.request")} AS launch,
  row_number() OVER (PARTITION BY {_part(1, "a.request")}, {_part(2, "a.request")} ORDER BY b.seq) AS repeat,
  a.host AS host, {_field("outcome.result", "b.")} AS outcome, {_field("outcome.status", "b.")} AS status,
  CASE WHEN a.boot = b.boot THEN round((b.boot_ns - a.boot_ns) / 1e9, 3) END AS took_s,
  round(coalesce({_output("wall_s")}, {_output("metrics.duration_s")}), 3) AS wall_s,
  coalesce(json_array_length({_output("requests")}), {_output("metrics.requested")}) AS requests,
  (SELECT sum({_OK} IS NOT 1) FROM json_each({_output("requests")}) AS r) AS failed_requests,
  (SELECT sum(json_extract(r.value, '$.output_tokens')) FROM json_each({_output("requests")}) AS r
    WHERE {_OK} = 1) AS output_tokens,
  (SELECT round(avg(json_extract(r.value, '$.ttft_s')) * 1000, 3) FROM json_each({_output("requests")}) AS r
    WHERE {_OK} = 1) AS mean_ttft_ms,
  {_output("metrics")} AS metrics
FROM event AS b JOIN event AS a ON a.kind = 'requested' AND a.request = b.request
WHERE b.kind = 'observed' AND {_field("action.do", "a.")} = 'follow' AND {_part(5, "b.request")} LIKE 'bench%'""",
    "hosts": f"""
SELECT h.key AS host, json_extract(h.value, '$.address') AS address, {_field("controller", "o.")} AS first_controller,
  {_field("rehearsal", "o.")} AS rehearsal,
  (SELECT count(*) FROM event WHERE kind = 'requested' AND host = h.key) AS requests,
  (SELECT count(*) FROM event WHERE kind = 'observed' AND host = h.key AND {_field("outcome.result")} = 'lost') AS lost,
  (SELECT max(epoch) FROM event WHERE host = h.key) AS last_epoch,
  (SELECT {_utc()} FROM event WHERE host = h.key ORDER BY seq LIMIT 1) AS first_utc,
  (SELECT {_utc()} FROM event WHERE host = h.key ORDER BY seq DESC LIMIT 1) AS last_utc
FROM event AS o, json_each({_field("plan.hosts", "o.")}) AS h WHERE o.kind = 'opened'""",
    "decisions": f"""
SELECT seq, {_utc()} AS at_utc, {_field("word")} AS decision, {_field("metric")} AS metric,
  {_field("winner")} AS winner, {_field("baseline")} AS baseline, {_field("ratio")} AS ratio, {_field("low")} AS low,
  {_field("high")} AS high, {_field("level")} AS level, {_field("launches")} AS confirmation_launches,
  {_field("exit")} AS exit_code, {_field("because")} AS because
FROM event WHERE kind = 'concluded'""",
}
