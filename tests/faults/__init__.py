"""The fault matrix: what is broken while a campaign runs, and what must hold afterwards all the same."""
