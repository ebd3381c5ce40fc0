"""Settings of the whole test tree."""

import os

from hypothesis import settings

# Tests beside each other leave no processor idle, and they wait for what agents answer.
os.environ.setdefault("HMAS_AGENTS__SPARE_CPU_ONLY", "false")

# How long an example takes says something about the machine, not about the code: speed is measured in lab/benchmarks/.
settings.register_profile("tree", deadline=None)
settings.load_profile("tree")
