"""Each check runs before embedded engines and, where one can be had, before a real vLLM."""

from collections.abc import Iterator

import pytest
from place import Place, hmas_up, vllm_up


@pytest.fixture(scope="session", params=["embedded", "vllm"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """An engine by itself, and the same engine behind a gateway."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "embedded":
        with hmas_up(folder, "sim") as doc:
            (engine,) = doc["engines"]
            yield Place("embedded", engine["url"], doc["gateway"], engine["models"][0])
        return
    with vllm_up(folder) as url, hmas_up(folder, f"vllm={url}") as doc:
        yield Place("vllm", url, doc["gateway"], "tiny")
