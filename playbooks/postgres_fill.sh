#!/bin/sh
# Fill the database anew before each measurement, so that every setting starts from the same tables.
# Arguments: pgbench's scale (100,000 rows each), and where PostgreSQL's programs are.
set -eu
"$2/pgbench" -h 127.0.0.1 -p "$AGENT_PORT" -U postgres -i -q -s "$1" postgres
"$2/psql" -h 127.0.0.1 -p "$AGENT_PORT" -U postgres -q -c checkpoint postgres
