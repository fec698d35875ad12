"""The journal: an append-only, chained record of one run in SQLite."""
