"""What the tests of a real SGLang ask it, and how they wait."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from uuid import uuid4

import numpy as np
import orjson

from hmas.engines.base import Engine, EngineSnapshot

COMPLETIONS = "/v1/completions"


def rid(number: int) -> str:
    """A request id as the gateway makes them: 32 hexadecimal digits."""
    return f"{number:032x}"


def prompt(seed: int, tokens: int) -> list[int]:
    """Token ids, others for every seed."""
    return np.random.default_rng([seed, tokens]).integers(10, 8000, tokens).tolist()


def document(ids: list[int], output_tokens: int, **fields: object) -> bytes:
    """A greedy completion of a fixed length, which finds nothing in the prefix cache however often it is asked."""
    asked = {"model": "tiny", "prompt": ids, "max_tokens": output_tokens, "ignore_eos": True, "temperature": 0.0}
    return orjson.dumps(asked | {"cache_salt": uuid4().hex, "return_token_ids": True, "logprobs": 1} | fields)


async def read(response) -> bytes:
    body = b"".join([chunk async for chunk in response.chunks()])
    await response.close()
    return body


async def ask(engine: Engine, number: int, ids: list[int], output_tokens: int, *, priority: int = 0, **fields: object) -> dict:
    """The whole answer."""
    body = document(ids, output_tokens, **fields)
    response = await engine.send(COMPLETIONS, body, {}, request_id=rid(number), priority=priority)
    data = await read(response)
    assert response.status == 200, data
    return orjson.loads(data)


def tokens(answer: dict) -> list[int]:
    """The answer's token ids, all of which must be there."""
    assert answer["choices"][0]["finish_reason"] == "length"
    return answer["choices"][0]["token_ids"]


def same(answer: dict, undisturbed: dict) -> bool:
    """Whether two greedy answers were computed from the same context.

    Random weights say one token for ever, so the tokens' log probabilities are compared: from run to run they differ by less than 0.02 (the
    shape of a step rounds them otherwise), and by 0.2 to 0.5 where one token of the prompt is another. Where the rounding decides between
    two equally likely tokens the answers part, and nothing behind that can be compared.
    """
    ours, theirs = tokens(answer), tokens(undisturbed)
    if len(ours) != len(theirs):
        return False
    part = next((index + 1 for index, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other), len(ours))
    one, other = (reply["choices"][0]["logprobs"]["token_logprobs"][:part] for reply in (answer, undisturbed))
    return bool(np.allclose(one, other, rtol=0.0, atol=0.05))


def start(work: Coroutine) -> asyncio.Future:
    return asyncio.ensure_future(work)


def waits(count: int) -> Callable[[EngineSnapshot], bool]:
    """So many requests wait."""
    return lambda now: now.waiting == count


async def until(engine: Engine, condition: Callable[[EngineSnapshot], bool]) -> EngineSnapshot:
    deadline_s = time.monotonic() + 30
    while not condition(snapshot := await engine.snapshot(0.0)):
        assert time.monotonic() < deadline_s, snapshot
    return snapshot
