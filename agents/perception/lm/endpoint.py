"""Reads prompts with a trained language model behind an OpenAI-compatible server: vLLM or SGLang with the LoRA adapter, or merged weights.

One request asks for a whole batch of prompts. A regular expression makes the engine keep the answer's form; the confidence comes from the
log-probabilities of the labels, not from the text. A malformed answer gives an empty reading, and so the task type `unknown` (H-MAS 3.2).
A server that does not answer, or too late, is an error: the agent then reads by the rules and leaves the server alone for a while.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.model_store.card import read_card
from hmas.agents.perception.lm.answers import BIN_WORDS, EXCERPT_CHARS, NAMES, SIDE_CHARS, parse, pattern, question, reading_of
from hmas.agents.perception.lm.details import FORMAT, LmDetails, details_of
from hmas.agents.perception.reading import PromptView, Reading
from hmas.controller.core.errors import ModelError

log = logging.getLogger(__name__)

PROMPTS = 32
"""Prompts in one request."""
REQUESTS = 4
"""Concurrent requests."""
TIMEOUT_S = 3.0
"""Time limit: after it the request has been dispatched already."""
TOP = 20
"""Likeliest tokens requested per step: what vLLM returns by default."""
ANSWER_TOKENS = 40
"""Room for an answer; the longest takes 25 tokens in the examined vocabularies."""
_MAX_BYTES = 16 << 20
_AS_ID = "token_id:"


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class _Choice(msgspec.Struct):
    index: int
    text: str
    logprobs: _Logprobs | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class _TooMuch(Exception):
    """The server refuses the batch because of its content (HTTP 400, 413, 422)."""


class EndpointReader:
    """A `Reader` that asks a server, with `read_async` for callers with an event loop.

    Args:
        url: Address of the server, without a path.
        model: Name of the model or LoRA adapter there.
        api_key: Sent as a bearer token; empty for none.
        details: Details of the served artefact: label tokens and temperatures. Without them labels are matched by text, uncalibrated.
        timeout_s: Limit for one call with any number of prompts.

    Attributes:
        name: Name in events and metrics.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str = "",
        details: LmDetails | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.name = f"endpoint:{model}"
        self._url = f"{url.rstrip('/')}/v1/completions"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._details = details
        self._timeout_s = timeout_s
        tokens = details.tokens if details is not None else None
        self._words = tokens.words if tokens is not None else NAMES
        form = pattern(self._words)
        # vLLM and SGLang each take their own field and ignore the other's.
        self._asked: dict[str, Any] = {
            "model": model,
            "temperature": 0,
            "logprobs": TOP,
            "regex": form,
            "structured_outputs": {"regex": form},
        }
        # Words may take more tokens than in training: the form decides where the answer ends.
        self._asked["max_tokens"] = ANSWER_TOKENS
        if tokens is not None:
            self._asked |= {"return_tokens_as_token_ids": True, "logprob_token_ids": [*tokens.firsts, *tokens.bins]}
        self._firsts = {_AS_ID + str(number): index for index, number in enumerate(tokens.firsts if tokens else ())}
        self._bins = {_AS_ID + str(number): index for index, number in enumerate(tokens.bins if tokens else ())}

    def read(self, prompts: Sequence[PromptView]) -> list[Reading]:
        """Like `read_async`, for callers without an event loop: it runs one in a separate thread."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, self.read_async(prompts)).result()

    async def read_async(self, prompts: Sequence[PromptView]) -> list[Reading]:
        """Returns one reading per prompt, in order; empty ones for prompts without a usable answer.

        Raises:
            ModelError: The server answered for none of them in time.
        """
        readings = [Reading()] * len(prompts)
        # Prompts without text are skipped: the model was trained on texts only.
        asked = [index for index, view in enumerate(prompts) if view.excerpt.strip()]
        if not asked:
            return readings
        answered, why = False, f"no answer within {self._timeout_s:g} s"
        slots = asyncio.Semaphore(REQUESTS)
        # One limit holds for all requests together.
        async with aiohttp.ClientSession(headers=self._headers, timeout=aiohttp.ClientTimeout()) as session:

            async def read_part(part: list[int]) -> None:
                nonlocal answered, why
                try:
                    async with slots:
                        found = await self._read_part(session, [prompts[index] for index in part])
                except (aiohttp.ClientError, msgspec.DecodeError, OSError, ValueError) as error:
                    why = f"{type(error).__name__}: {error}"
                    return
                answered = True
                for index, reading in zip(part, found, strict=True):
                    readings[index] = reading

            parts = [asked[start : start + PROMPTS] for start in range(0, len(asked), PROMPTS)]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await asyncio.gather(*(read_part(part) for part in parts))
        if not answered:
            raise ModelError(f"{self.name}: {why}")
        return readings

    async def _read_part(self, session: aiohttp.ClientSession, views: Sequence[PromptView]) -> list[Reading]:
        try:
            return await self._ask(session, views)
        except _TooMuch as error:
            if len(views) == 1:
                log.warning("%s refuses a prompt of %d characters: %s", self.name, views[0].prompt_chars, error)
                return [Reading()]
            # One of them is at fault; the others are still read.
            middle = len(views) // 2
            return await self._read_part(session, views[:middle]) + await self._read_part(session, views[middle:])

    async def _ask(self, session: aiohttp.ClientSession, views: Sequence[PromptView]) -> list[Reading]:
        known = self._details
        chars, side = (EXCERPT_CHARS, SIDE_CHARS) if known is None else (known.excerpt_chars, known.side_chars)
        body = self._asked | {"prompt": [question(view, chars, side) for view in views]}
        async with session.post(self._url, json=body) as response:
            data = await response.content.read(_MAX_BYTES)
            while not response.content.at_eof() and len(data) < _MAX_BYTES:
                data += await response.content.read(_MAX_BYTES - len(data))
        if response.status in {400, 413, 422}:
            raise _TooMuch(data[:200].decode("utf-8", "replace"))
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}: {data[:200].decode('utf-8', 'replace')}")
        readings = [Reading()] * len(views)
        for choice in msgspec.json.decode(data, type=_Completion).choices:
            if 0 <= choice.index < len(views):
                readings[choice.index] = self._reading(choice)
        return readings

    def _reading(self, choice: _Choice) -> Reading:
        said = parse(choice.text, self._words)
        told = choice.logprobs
        if said is None or told is None or not told.top_logprobs or not told.top_logprobs[0]:
            return Reading()
        known = self._details
        return reading_of(
            _weights(told.top_logprobs[0], self._firsts, self._words),
            self._lengths(told),
            task_temperature=known.task_temperature if known is not None else 1.0,
            length_temperature=known.length_temperature if known is not None else 1.0,
        )

    def _lengths(self, told: _Logprobs) -> NDArray[np.float64] | None:
        """Returns log-probabilities of the bins at the last step that chose one, because only the closing follows it."""
        for token, top in zip(reversed(told.tokens), reversed(told.top_logprobs), strict=False):
            if top and (token in self._bins or token in BIN_WORDS):
                return _weights(top, self._bins, BIN_WORDS)
        return None


def _weights(top: Mapping[str, float], ids: Mapping[str, int], words: Sequence[str]) -> NDArray[np.float64]:
    """Returns log-probabilities of some words from those of a step's likeliest tokens, matched by id or by text.

    A word that is not among them gets the smallest of these, which is an upper bound.
    """
    found = np.full(len(words), min(top.values()))
    for token, value in top.items():
        if token in ids:
            found[ids[token]] = value
        elif not token.startswith(_AS_ID) and token.strip():
            meant = [index for index, word in enumerate(words) if word.startswith(token.strip())]
            if len(meant) == 1:
                found[meant[0]] = max(found[meant[0]], value)
    return found


def open_endpoint(url: str, model: str, api_key: str = "", folder: Path | None = None) -> EndpointReader:
    """Returns a reader on the server at `url`, without a request to it.

    Args:
        url: Address without a path.
        model: Name of the model or LoRA adapter there.
        api_key: Empty for none.
        folder: The served artefact, for its label tokens and temperatures; without it, or with another format, none are used.

    Raises:
        ModelError: No model is named, or the folder's card is broken.
    """
    if not model:
        raise ModelError("agents.perception_endpoint_model is empty; allowed: the name of the model or LoRA adapter on that server")
    card = read_card(folder) if folder is not None else None
    details = details_of(card) if card is not None and card.format == FORMAT else None
    if details is not None and details.tokens is None:
        raise ModelError(f"{folder}: an {details.kind} is not served over completions; allowed: a causal model")
    return EndpointReader(url, model, api_key=api_key, details=details)
