"""What is asked of a host, and how the answer is read: command and parser pairs."""
