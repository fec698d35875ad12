"""Hostile links, and servers in containers: real sshd, real podman, real processes."""
