"""Settings of the whole test tree."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(scope="session")
def schema_vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real vLLM of random weights that holds its answers to a JSON schema."""
    from lm_kit import ROOT, vllm

    model = os.environ.get("HMAS_VLLM_MODEL")
    if not model:
        pytest.skip("needs the tiny model: set HMAS_VLLM_MODEL (make test-vllm does)")
    # A small model goes on with blanks for ever where it may.
    compact = ("--structured-outputs-config", '{"disable_any_whitespace": true, "backend": "xgrammar"}')
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with vllm(ROOT / Path(model), log, "--served-model-name", "tiny", *compact, context=4096) as url:
        yield url
