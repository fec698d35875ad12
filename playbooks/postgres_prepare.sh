#!/bin/sh
# Make a database cluster for postgres-tune, once. Arguments: the folder for it, and where PostgreSQL's programs are.
# As root it is made for the user postgres, since PostgreSQL does not run as root.
set -eu
data=$1 bin=$2
if [ -e "$data/PG_VERSION" ]; then exit 0; fi
as() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --clear-groups -- "$@"; else "$@"; fi; }
mkdir -p "$data"
if [ "$(id -u)" = 0 ]; then chown postgres: "$data"; fi
chmod 700 "$data"
cd / && as "$bin/initdb" -D "$data" -U postgres --auth=trust --no-locale -E UTF8
