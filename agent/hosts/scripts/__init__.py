"""Scripts that the agent carries to a host, and the server that comes with the extra ``llamacpp``."""
