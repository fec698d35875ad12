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
    "decisions": f"""
SELECT seq, {_utc()} AS at_utc, {_field("word")} AS decision, {_field("metric")} AS metric,
  {_field("winner")} AS winner, {_field("baseline")} AS baseline, {_field("ratio")} AS ratio, {_field("low")} AS low,
  {_field("high")} AS high, {_field("level")} AS level, {_field("launches")} AS confirmation_launches,
  {_field("exit")} AS exit_code, {_field("because")} AS because
FROM event WHERE kind = 'concluded'""",
}
