"""How actions reach machines: transports, the host script and host jobs."""
