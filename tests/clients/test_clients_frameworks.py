"""Frameworks over those packages: OpenAI Agents, LangChain, litellm, instructor, pydantic-ai, each by every API that it speaks.

What a small model writes in an agent's loop may differ from run to run on a real vLLM, so there only the kind of the result is compared.
"""

from typing import Any

import pytest
from place import Place, same

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

QUESTION = "Name three colours."


def text_or_kind(place: Place, text: str) -> Any:
    return text if place.embedded else bool(text)


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_openai_agents(place: Place, api: str):
    def ask(url: str, model: str) -> Any:
        import openai

        import agents

        agents.set_tracing_disabled(True)
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
        # The Responses model takes an answer that a cap has cut for an error.
        settings = agents.ModelSettings(max_tokens=300, temperature=0.0, extra_body={"sim": {"output_tokens": 8}})
        spoken = kind(model=model, openai_client=client)
        agent = agents.Agent(name="a", instructions="You are terse.", model=spoken, model_settings=settings)
        return text_or_kind(place, agents.Runner.run_sync(agent, QUESTION).final_output)

    same(place, ask)


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_openai_agents_streamed_with_a_tool(place: Place, api: str):
    """The model is made to call the tool first; its answer goes back to the model."""
    import asyncio

    def ask(url: str, model: str) -> Any:
        import openai

        import agents

        agents.set_tracing_disabled(True)
        cities: list[str] = []

        @agents.function_tool
        def weather(city: str) -> str:
            """The weather of a city."""
            cities.append(city)
            return "rain"

        async def run() -> Any:
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
            settings = agents.ModelSettings(max_tokens=900, temperature=0.0, tool_choice="required")
            spoken = kind(model=model, openai_client=client)
            agent = agents.Agent(name="a", instructions="You are terse.", tools=[weather], model=spoken, model_settings=settings)
            result = agents.Runner.run_streamed(agent, "Weather in Bergen?", max_turns=3)
            kinds = {event.type async for event in result.stream_events()}
            return text_or_kind(place, result.final_output), sorted(kinds), bool(cities)

        return asyncio.run(run())

    if not place.embedded:
        pytest.skip("SmolLM2-135M does not end its arguments within its context: the loop has no outcome to compare")
    assert same(place, ask)[2]


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_langchain(place: Place, responses: bool):
    def ask(url: str, model: str) -> Any:
        from langchain_openai import ChatOpenAI

        chat = ChatOpenAI(
            model=model, base_url=f"{url}/v1", api_key="none", max_retries=0, temperature=0.0, max_tokens=12, use_responses_api=responses
        )
        whole = chat.invoke(QUESTION)
        streamed = "".join(chunk.text for chunk in chat.stream(QUESTION))
        return text_or_kind(place, whole.text), text_or_kind(place, streamed), whole.usage_metadata["output_tokens"]

    same(place, ask)


def test_langchain_tools(place: Place):
    def ask(url: str, model: str) -> Any:
        from langchain_openai import ChatOpenAI

        def weather(city: str) -> str:
            """The weather of a city."""
            return city

        chat = ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="none", max_retries=0, temperature=0.0, max_tokens=60)
        answer = chat.bind_tools([weather], tool_choice="weather").invoke("Weather in Bergen?")
        return [call["name"] for call in answer.tool_calls], len(answer.invalid_tool_calls)

    # What SmolLM2-135M writes as arguments may not fit their schema, or have no end.
    same(place, ask, fails=False if place.embedded else None)


LITELLM = {"chat": ("openai", "/v1"), "anthropic": ("anthropic", "")}


@pytest.mark.parametrize("route", LITELLM)
@pytest.mark.parametrize("stream", [False, True])
def test_litellm(place: Place, route: str, stream: bool):
    def ask(url: str, model: str) -> Any:
        import litellm

        provider, path = LITELLM[route]
        answer = litellm.completion(
            model=f"{provider}/{model}",
            api_base=url + path,
            api_key="none",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=12,
            temperature=0.0,
            stream=stream,
            num_retries=0,
        )
        if stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
            return text_or_kind(place, text)
        return text_or_kind(place, answer.choices[0].message.content), answer.usage.completion_tokens

    same(place, ask)


def test_litellm_responses(place: Place):
    def ask(url: str, model: str) -> Any:
        import litellm

        answer = litellm.responses(
            model=f"openai/{model}", api_base=f"{url}/v1", api_key="none", input=QUESTION, max_output_tokens=12, temperature=0.0
        )
        return answer.usage.output_tokens, [item.type for item in answer.output]

    same(place, ask)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_instructor(place: Place, api: str):
    def ask(url: str, model: str) -> Any:
        import anthropic
        import instructor
        import openai
        import pydantic

        class City(pydantic.BaseModel):
            """A city."""

            name: str = pydantic.Field(max_length=10)

        if api == "openai":
            client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
        else:
            client = instructor.from_anthropic(anthropic.Anthropic(base_url=url, api_key="none", max_retries=0))
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "A city"}], "max_tokens": 60, "max_retries": 0}
        asked["extra_body"] = {"temperature": 0.0}
        found = client.create(model=model, response_model=City, **asked)
        return text_or_kind(place, found.name)

    # What SmolLM2-135M writes as arguments may not fit their schema, or have no end.
    same(place, ask, fails=False if place.embedded else None)


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_pydantic_ai(place: Place, api: str):
    def ask(url: str, model: str) -> Any:
        from pydantic_ai import Agent
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
        from pydantic_ai.providers.openai import OpenAIProvider

        if api == "anthropic":
            spoken: Any = AnthropicModel(model, provider=AnthropicProvider(base_url=url, api_key="none"))
        else:
            kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
            spoken = kind(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
        agent = Agent(spoken, instructions="You are terse.", model_settings={"max_tokens": 16, "temperature": 0.0})
        result = agent.run_sync(QUESTION)
        return text_or_kind(place, result.output)

    same(place, ask)
