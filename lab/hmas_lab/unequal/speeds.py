"""How fast an engine is with one request alone, asked directly."""

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import aiohttp
import msgspec

from hmas.planning import StudyError

TOKENS = 24
"""Tokens after the first over which the time of a token is measured."""
ANSWER_S = 120.0


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a request alone.

    Attributes:
        first_ms: Until the first token, with the prompt.
        token_ms: Of each token after it.
    """

    first_ms: float
    token_ms: float

    @property
    def answer_ms(self) -> float:
        """Of an answer of `TOKENS` tokens after the first."""
        return self.first_ms + TOKENS * self.token_ms


async def speed_of(url: str, model: str, prompts: Sequence[str]) -> Speed:
    """Medians over prompts that are asked one after another, each for one token and for `TOKENS` more.

    Raises:
        StudyError: The engine does not answer.
    """
    first_ms, token_ms = [], []
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    try:
        async with aiohttp.ClientSession(base_url=url, timeout=timeout) as session:
            for prompt in prompts:
                short_ms = await _answer_ms(session, model, prompt, 1)
                first_ms.append(short_ms)
                token_ms.append((await _answer_ms(session, model, prompt, 1 + TOKENS) - short_ms) / TOKENS)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise StudyError(f"{url} does not answer while its speed is measured: {type(error).__name__} {error}") from error
    return Speed(first_ms=median(first_ms), token_ms=median(token_ms))


async def check_alive(urls: Mapping[str, str]) -> None:
    """Asks each engine for its health.

    Raises:
        StudyError: One does not serve any more: what was measured since is not a router's doing.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session:
        for name, url in urls.items():
            try:
                async with session.get(f"{url}/health") as response:
                    healthy = response.status == 200
            except (aiohttp.ClientError, TimeoutError):
                healthy = False
            if not healthy:
                raise StudyError(f"the {name} engine has ended under a run; its log says why")


def ratio(fast: Speed, slow: Speed) -> float:
    """How many times as long the slow engine takes for an answer."""
    return slow.answer_ms / fast.answer_ms


async def _answer_ms(session: aiohttp.ClientSession, model: str, prompt: str, tokens: int) -> float:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "ignore_eos": True}
    begun_s = time.monotonic()
    async with session.post("/v1/chat/completions", json=body) as response:
        text = await response.text()
        if response.status != 200:
            raise StudyError(f"{response.url} answers {response.status} while its speed is measured: {text[:200]}")
    return 1000.0 * (time.monotonic() - begun_s)
