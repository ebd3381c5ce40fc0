"""The token ids of prompts, from the engine's own chat template and tokenizer: `POST /tokenize`, beside the way of a request."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from hmas.controller.core.request_body import COMPLETIONS
from hmas.controller.gateway.instances.monitor import Fleet, Instance
from hmas.engines.errors import EngineError

WORKERS = 4
"""Prompts that are tokenized at once, over all engines."""
WAITING_MOST = 256
TIMEOUT_S = 2.0
BODY_BYTES_MOST = 256 << 10
"""A larger prompt is left to the approximate index: it would take an engine's front end a tenth of a second and more."""
ANSWER_BYTES_MOST = 4 << 20
UNABLE_S = 60.0
"""How long an engine is not asked again that has no such path."""
PATH = "/tokenize"
Result = Literal["done", "refused", "failed", "dropped"]
"""Whether there are token ids; the engine answered with an error; it did not answer in time or not with ids; too many waited."""
log = logging.getLogger(__name__)


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Prompt(msgspec.Struct):
    prompt: str | list[int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A prompt whose tokens are wanted: path, model and body of its request, and what takes the token ids."""

    path: str
    model: str
    body: bytes
    take: Callable[[Sequence[int]], None]


class PromptTokens:
    """Tokenizes a bounded number of prompts at a time; those that come while too many wait are dropped.

    Attributes:
        results: What became of them.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._waiting: asyncio.Queue[Wanted] = asyncio.Queue(WAITING_MOST)
        self._unable_until_s: dict[str, float] = {}
        self._asked: Counter[str] = Counter()
        self.results: Counter[Result] = Counter()

    def want(self, wanted: Wanted) -> None:
        """Has a prompt tokenized soon."""
        try:
            self._waiting.put_nowait(wanted)
        except asyncio.QueueFull:
            self.results["dropped"] += 1

    async def run(self) -> None:
        """Works until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            wanted = await self._waiting.get()
            try:
                self.results[await self._tokenize(wanted)] += 1
            except (TimeoutError, EngineError, msgspec.DecodeError, OverflowError):
                self.results["failed"] += 1
            except Exception:
                self.results["failed"] += 1
                log.exception("tokenizing a prompt failed")

    async def _tokenize(self, wanted: Wanted) -> Result:
        """Raises: TimeoutError, EngineError, msgspec.DecodeError, OverflowError: There are no token ids."""
        if wanted.path == COMPLETIONS and isinstance(ids := msgspec.json.decode(wanted.body, type=_Prompt).prompt, list):
            wanted.take(ids)
            return "done"
        instance = self._instance(wanted.model)
        if instance is None:
            return "failed"
        self._asked[instance.name] += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, answer = await self._ask(instance, wanted.body)
        finally:
            self._asked[instance.name] -= 1
        if status != 200:
            if status in (404, 405, 501):
                self._unable_until_s[instance.name] = self._fleet.now_s() + UNABLE_S
            return "refused"
        wanted.take(msgspec.json.decode(answer, type=_Tokens).tokens)
        return "done"

    def _instance(self, model: str) -> Instance | None:
        """The one with KV events that is asked least now, of those that may be asked."""
        now_s = self._fleet.now_s()
        with_events = [one for one in self._fleet.candidates(model) if one.config.kv_events is not None]
        able = [one for one in with_events if self._unable_until_s.get(one.name, 0.0) <= now_s]
        return min(able, key=lambda one: self._asked[one.name], default=None)

    async def _ask(self, instance: Instance, body: bytes) -> tuple[int, bytes]:
        """Posts the request's own body: an engine reads model, messages and tools of it, or the prompt, and passes the rest.

        Raises:
            EngineError: No answer came.
        """
        response = await instance.engine.send(PATH, body, {}, request_id=os.urandom(16).hex())
        try:
            answer = bytearray()
            async for chunk in response.chunks():
                answer += chunk
                if len(answer) > ANSWER_BYTES_MOST:
                    raise EngineError(f"engine {instance.name}: {PATH} answers more than {ANSWER_BYTES_MOST} bytes")
            return response.status, bytes(answer)
        finally:
            await response.close()
