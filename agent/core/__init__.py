"""The pure half: data in, data out. Nothing here reads a clock, a file, a socket or the environment."""
