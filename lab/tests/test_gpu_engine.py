"""How vLLM is started on a GPU, and what is sent to it."""

import json
from pathlib import Path

import pytest
from aiohttp import web
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.frontdoor.settings import GPU
from hmas_lab.gpu_engine import SHAPES, GpuServer, check_lengths
from hmas_lab.questions import Question

from hmas.controller.core.types import TaskType
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.process import LoadSpec, request_body
from hmas.planning import StudyError


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_one_that_attention_can_be_computed_for(shape: str):
    words = GpuServer(python=Path("/bin/python3"), model=Path("/models/smollm2"), shape=shape).command(8000, "m")
    said = json.loads(words[words.index("--hf-overrides") + 1])
    assert said["num_attention_heads"] % said["num_key_value_heads"] == 0
    assert words[words.index("--load-format") + 1] == "dummy", "weights of that shape are nowhere to be read"


@pytest.mark.parametrize("tokens", [12, 7])
async def test_an_engine_that_ends_by_itself_is_refused(tokens: int):
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"usage": {"completion_tokens": tokens}})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        if tokens == 12:
            await check_lengths(url, "m")
        else:
            with pytest.raises(StudyError, match="7 tokens where 12"):
                await check_lengths(url, "m")
    finally:
        await runner.cleanup()


def test_answers_get_the_length_of_the_data_and_clients_do_not_say_it():
    load = DoorLoad(GPU, [Question("What is the capital of France?", TaskType.QA, 321)], load_mixture()[1])
    spec = LoadSpec(url="http://127.0.0.1:1", model="m", length_channel="vllm")
    bodies = [json.loads(request_body(one, spec)) for one in load.arrivals(0, rps=10.0, seconds=4.0)]
    assert {body["vllm_xargs"]["hmas_output_tokens"] for body in bodies} == {321}
    assert {body.get("max_tokens") for body in bodies} == {None, GPU.cap}
    assert not any("seed" in body for body in bodies)
