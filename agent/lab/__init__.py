"""A simulated GPU box behind a real SSH server: rehearsal, demo, tests."""
