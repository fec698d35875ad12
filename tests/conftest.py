"""What holds for every test."""

from hypothesis import settings

# Machines are shared: how long an example takes says nothing, unless a test says that it is about time.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
