"""What other clients' mistakes do to well-formed requests: streamed requests that a vLLM refuses in its first event, beside good ones."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec
import orjson

from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.runtime.clock import Clock
from hmas.loadgen.sse import AnswerReader


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


OUT_OF_VOCABULARY = 10_000_000
MISTAKES = MappingProxyType(
    {
        "unknown type in a schema": _schema({"type": "nonsense"}),
        "type of a property": _schema({"type": "object", "properties": {"a": {"type": "whatever"}}}),
        "reference to nowhere": _schema({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}),
        "regular expression": {"structured_outputs": {"regex": "([a-z"}},
        "grammar": {"structured_outputs": {"grammar": "root ::= nothing"}},
        "empty choice": {"structured_outputs": {"choice": []}},
        "logit_bias out of the vocabulary": {"logit_bias": {str(OUT_OF_VOCABULARY): 5}},
        "logit_bias out of the vocabulary by one of two": {"logit_bias": {"7": 1, str(OUT_OF_VOCABULARY): 1}},
        "top_logprobs": {"logprobs": True, "top_logprobs": 50},
        "more top_logprobs": {"logprobs": True, "top_logprobs": 500},
        "stop_token_ids": {"stop_token_ids": [-5]},
        "allowed_token_ids": {"allowed_token_ids": [OUT_OF_VOCABULARY]},
    }
)
"""A dozen mistakes that vLLM 0.32 answers with HTTP 200 and an error event of code 400 where a stream is asked for."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What clients saw of one load.

    Attributes:
        good: Statuses of the well-formed requests and how often; `broken` is an answer without an end.
        bad: The same of the mistaken ones.
        ttft_ms, total_ms: Latencies of the well-formed requests that were answered, ascending.
    """

    good: dict[str, int]
    bad: dict[str, int]
    ttft_ms: list[float]
    total_ms: list[float]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """An open-loop load at steady distances.

    Attributes:
        model: The model's name.
        seconds: How long requests are sent.
        good_rps: Well-formed requests per second.
        bad_rps: Mistaken ones per second, 0 for none; they go through all of `MISTAKES` in turn, each with a text of its own.
        prompt_words, output_tokens: Size of a well-formed request.
    """

    model: str
    seconds: float
    good_rps: float = 2.0
    bad_rps: float = 0.0
    prompt_words: int = 60
    output_tokens: int = 32


async def measure(url: str, load: Load, clock: Clock) -> Served:
    """Sends the load to an OpenAI-compatible address, waits for every answer, and returns what clients saw."""
    good: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    ttft_ms: list[float] = []
    total_ms: list[float] = []
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def send(body: dict[str, Any]) -> tuple[str, AnswerReader]:
            reader = AnswerReader()
            async with session.post(f"{url}/v1/chat/completions", data=orjson.dumps(body)) as response:
                async for chunk in response.content.iter_any():
                    if response.status == 200:
                        reader.feed(chunk, clock.now_s())
                if response.status != 200:
                    return str(response.status), reader
                if reader.error is not None:
                    return f"200 with error {reader.error[0]}", reader
                return "200" if reader.done else "broken", reader

        async def one_good(number: int) -> None:
            start_s = clock.now_s()
            status, reader = await send(_good(load, number))
            good[status] += 1
            if status == "200":
                ttft_ms.append((reader.first_s - start_s) * 1000.0)
                total_ms.append((clock.now_s() - start_s) * 1000.0)

        async def one_bad(number: int) -> None:
            status, _ = await send(_bad(load, number))
            bad[status] += 1

        async with asyncio.TaskGroup() as group:
            group.create_task(_steadily(load.good_rps, load.seconds, one_good, clock))
            if load.bad_rps > 0:
                group.create_task(_steadily(load.bad_rps, load.seconds, one_bad, clock))
    return Served(good=dict(good), bad=dict(bad), ttft_ms=sorted(ttft_ms), total_ms=sorted(total_ms))


async def _steadily(rps: float, seconds: float, one: Callable[[int], Coroutine[Any, Any, None]], clock: Clock) -> None:
    """Starts one request after the other at equal distances, whatever became of those before, and waits for all."""
    start_s = clock.now_s()
    async with asyncio.TaskGroup() as group:
        for number in range(round(rps * seconds)):
            await asyncio.sleep(max(0.0, start_s + number / rps - clock.now_s()))
            group.create_task(one(number))


def _good(load: Load, number: int) -> dict[str, Any]:
    text = " ".join(f"word{(number * 31 + place) % 997}" for place in range(load.prompt_words))
    return _chat(load, text) | {"max_tokens": load.output_tokens, "min_tokens": load.output_tokens, "ignore_eos": True}


def _bad(load: Load, number: int) -> dict[str, Any]:
    fields = list(MISTAKES.values())[number % len(MISTAKES)]
    return _chat(load, f"mistake number {number}") | {"max_tokens": 8} | fields


def _chat(load: Load, text: str) -> dict[str, Any]:
    return {"model": load.model, "messages": [{"role": "user", "content": text}], "stream": True}


def quantiles(runs: list[Served], kind: str) -> dict[str, float]:
    """p50, p95 and p99 in ms over all answers of the slices."""
    values = sorted(value for run in runs for value in getattr(run, kind))
    return {f"p{q}": round(percentile(values, q), 2) for q in (50, 95, 99)}


def ratios(runs: list[Served], others: list[Served], kind: str) -> dict[str, float | None]:
    """The quantiles of one over those of the other; None where there is nothing to divide by."""
    over, under = quantiles(runs, kind), quantiles(others, kind)
    return {q: round(over[q] / under[q], 3) if under[q] else None for q in over}
