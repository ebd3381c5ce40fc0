"""KV events of a real vLLM, through a gateway: the exact index has what the engine's cache has, and routing goes by it.

What to set for one: see tests/engines/vllm_server.py.
"""

import socket
import sys
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from vllm_server import OPTIONS, served

sys.path.append(str(Path(__file__).resolve().parents[1] / "controller"))
from gateway_kit import eventually, running, start_sim
from typing_kit import known

from hmas.controller.config.schema import EngineConfig
from hmas.controller.config.section import KvEventsConfig

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(300)]
BLOCK = 128
"""Tokens of a block of vLLM on a CPU."""
BEGINNING = "You answer for the bank, in short words, and name each time the paragraph that you rely on. " * 40


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def endpoints() -> KvEventsConfig:
    return KvEventsConfig(endpoint=f"tcp://127.0.0.1:{free_port()}", replay_endpoint=f"tcp://127.0.0.1:{free_port()}", topic="kv-events")


@pytest.fixture(scope="module")
def vllm(tmp_path_factory, endpoints):
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoints.endpoint.replace("127.0.0.1", "*"),
        "replay_endpoint": endpoints.replay_endpoint.replace("127.0.0.1", "*"),
        "topic": endpoints.topic,
    }
    options = ["--kv-events-config", orjson.dumps(events).decode(), "--enable-prompt-tokens-details"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        patch.delenv("HMAS_VLLM_URL", raising=False)
        patch.setattr("vllm_server.OPTIONS", [*OPTIONS, *options])
        yield from served(tmp_path_factory.mktemp("vllm-events") / "vllm.log")


async def test_the_index_has_what_the_engine_has_and_a_chat_goes_there(vllm, endpoints, tmp_path):
    decoy = await start_sim("decoy", model="tiny")
    engines = [EngineConfig(name="real", url=vllm, kv_events=endpoints), EngineConfig(name="decoy", url=decoy.url)]
    async with running(tmp_path, sims=[decoy], engines_config=engines) as rig:
        kv_events = known(rig.gateway.kv_events)

        def report() -> dict[str, Any]:
            return known(kv_events.report("real"))

        async def ask(question: str) -> tuple[str, int, float]:
            """The instance, the prompt tokens that it had cached, and the router's score for them."""
            messages = [{"role": "system", "content": BEGINNING}, {"role": "user", "content": question}]
            answer = await rig.post({"model": "tiny", "messages": messages, "max_tokens": 4})
            assert answer.status == 200, answer.body
            told = (await rig.admin("GET", f"/admin/requests/{answer.headers['x-request-id']}")).json["attempts"][0]
            details = answer.json["usage"].get("prompt_tokens_details") or {}
            score = {one["scorer"]: one["score"] for one in told["scores"]}.get("prefix", 0.0)
            return told["instance"], details.get("cached_tokens") or 0, score

        await eventually(lambda: report()["state"] == "live", 10.0)
        first, cached, _ = await ask("What does a transfer cost?")
        assert (first, cached) == ("real", 0)
        await eventually(lambda: report()["blocks"] >= 4, 10.0)
        second, cached, score = await ask("What does a card cost?")
        assert second == "real"
        assert cached >= 4 * BLOCK
        assert score > 0.5
        await eventually(lambda: kv_events.tokens.results["done"] >= 1, 10.0)
        assert set(kv_events.tokens.results) == {"done"}
        blocks = report()["blocks"]
        async with aiohttp.ClientSession() as session:
            # Another client, at the engine itself: the index knows that, too, and what is gone when the cache is emptied.
            other = {"model": "tiny", "prompt": [number % 900 + 50 for number in range(3 * BLOCK + 5)], "max_tokens": 1}
            async with session.post(f"{vllm}/v1/completions", json=other) as response:
                assert response.status == 200
            await eventually(lambda: report()["blocks"] == blocks + 3, 10.0)
            answer = await rig.post(other, "/v1/completions")
            assert answer.headers["x-hmas-instance"] == "real"
            await eventually(lambda: report()["state"] == "live" and "real" in kv_events.index.complete, 10.0)
            found, tokens, score = await ask("What does a loan cost?")
            assert (found, tokens >= 4 * BLOCK, score > 0.5) == ("real", True, True)
            async with session.post(f"{vllm}/reset_prefix_cache") as response:
                assert response.status == 200
            # vLLM publishes what has happened with its next step.
            async with session.post(f"{vllm}/v1/completions", json=other | {"prompt": "short"}) as response:
                assert response.status == 200
        await eventually(lambda: report()["blocks"] == 0 and "real" in kv_events.index.complete, 10.0)
        _, tokens, score = await ask("What does a cheque cost?")
        assert (tokens, score) == (0, 0.0), "by what was sent, it would still be there"
        seen = report()
    assert (seen["faults"], seen["gaps"], seen["restarts"]) == ({}, 0, 0)
    # A gateway that starts later knows it all from the replay.
    decoy = await start_sim("decoy", model="tiny")
    async with running(tmp_path / "later", sims=[decoy], engines_config=[engines[0], EngineConfig(name="decoy", url=decoy.url)]) as rig:
        kv_events = known(rig.gateway.kv_events)
        await eventually(lambda: "real" in kv_events.index.complete and known(kv_events.report("real"))["blocks"] >= 4, 10.0)
        assert known(kv_events.report("real"))["replayed"] > 0
