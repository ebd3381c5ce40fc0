"""Settings of the whole test tree."""

import gc
import os

import pytest
from hypothesis import settings

# Tests beside each other leave no processor idle, and they wait for what agents answer.
os.environ.setdefault("HMAS_AGENTS__SPARE_CPU_ONLY", "false")

# How long an example takes says something about the machine, not about the code: speed is measured in lab/benchmarks/.
settings.register_profile("tree", deadline=None)
# `make check` tries fewer where a test does not say how many: what it leaves out, `make test` tries.
settings.register_profile("fast", settings.get_profile("tree"), max_examples=25)
settings.load_profile("tree")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What a run has loaded and collected stays to its end: no collection of garbage looks through its half a million objects again."""
    gc.collect()
    gc.freeze()
