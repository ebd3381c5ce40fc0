"""Settings of the whole test tree."""

from hypothesis import settings

# How long an example takes says something about the machine, not about the code: speed is measured in benchmarks/.
settings.register_profile("tree", deadline=None)
settings.load_profile("tree")
