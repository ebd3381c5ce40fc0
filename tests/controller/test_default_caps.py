"""A plain completion whose body sets no cap has the one that its engines set then."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from gateway_kit import MODEL, Sim, chat, running, start_sim

from hmas.controller.config.schema import EngineConfig
from hmas.controller.core.types import Request
from hmas.controller.gateway.requests import completion

PATH = "/v1/completions"


def ask(**fields: Any) -> bytes:
    return orjson.dumps({"model": MODEL, "prompt": "hello", "sim": {"output_tokens": 4}} | fields)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    found: list[Request] = []

    def record(**fields: Any) -> Request:
        found.append(Request(**fields))
        return found[-1]

    monkeypatch.setattr(completion, "Request", record)
    return found


def configs(sims: list[Sim], *kinds: str) -> list[EngineConfig]:
    return [EngineConfig(name=sim.name, url=sim.url, kind=kind) for sim, kind in zip(sims, kinds, strict=True)]


async def test_vllm_ends_a_completion_without_a_cap_after_16_tokens(tmp_path: Path, submitted: list[Request]):
    sims = [await start_sim("a")]
    async with running(tmp_path, sims=sims, engines_config=configs(sims, "vllm")) as rig:
        for fields in ({}, {"max_tokens": None}, {"prompt": ["x", "y"], "n": 2, "min_tokens": 3}, {"min_tokens": 40}, {"max_tokens": 900}):
            await rig.post(ask(**fields), PATH)
        await rig.post(chat())
        bodies = sims[0].bodies
    assert [request.max_output_tokens for request in submitted] == [16, 16, 64, 16, 900, None]
    assert [request.min_output_tokens for request in submitted] == [0, 0, 12, 16, 0, 0]
    assert bodies[0] == ask(), "the body goes on as it came"


@pytest.mark.parametrize("kind", ["sim", "openai"])
async def test_one_engine_without_such_a_default_leaves_it_open(tmp_path: Path, submitted: list[Request], kind: str):
    sims = [await start_sim("a"), await start_sim("b")]
    async with running(tmp_path, sims=sims, engines_config=configs(sims, "vllm", kind)) as rig:
        assert (await rig.post(ask(), PATH)).status == 200
    assert submitted[0].max_output_tokens is None
