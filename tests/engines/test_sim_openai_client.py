"""OpenAI's own Python client, which nobody here wrote, against the embedded engine."""

import openai
import pytest
from typing_kit import of_type


@pytest.fixture
async def client(sim):
    async with openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0) as client:
        yield client


MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}},
}


async def test_stream(client):
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, extra_body={"sim": {"output_tokens": 9}}
    )
    chunks = [chunk async for chunk in stream]
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) == 9
    assert chunks[-1].usage.completion_tokens == 9


async def test_whole_tools_logprobs_models_embeddings(client):
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=[TOOL], tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("look_up", '{"key":"text"}')
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=3, max_tokens=2)
    assert [len(entry.top_logprobs) for entry in answer.choices[0].logprobs.content] == [3, 3]
    text = await client.completions.create(model="tiny", prompt="once", max_tokens=3)
    assert text.usage.completion_tokens == 3
    assert [model.id async for model in await client.models.list()] == ["tiny"]
    rows = (await client.embeddings.create(model="tiny", input=["a", "b"])).data
    assert len(rows[0].embedding) == 64


async def test_errors(client):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
        await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "word " * 5000}])
    assert of_type(dict, caught.value.body)["code"] == 400
