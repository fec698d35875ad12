"""Server kinds: what is special about each engine, as data and pure functions."""
