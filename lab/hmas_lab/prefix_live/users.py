"""Users that wait for each answer, read it, and ask on: a closed loop over HTTP, as chat clients do it."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec

from hmas.loadgen.streams import stream
from hmas_lab.prefix_live.chats import APPS, Chat, Chats

ANSWER_TOKENS = 40
TTFT_MS, TPOT_MS = 1500.0, 150.0
"""The targets that every request declares; what keeps both is good."""
THINK_MEAN_S = 1.0
TURN_S = 120.0
_DATA, _DONE = b"data: ", b"[DONE]"


class Turn(msgspec.Struct, frozen=True):
    """One answered question.

    Attributes:
        ttft_ms: From sending to the first piece of text.
        tpot_ms: Mean time between tokens after the first, 0 with fewer than two.
        prompt_tokens, cached_tokens, output_tokens: As the engine reports.
        at_best: Tokens that one endless cache for all would have had.
        error: Why there is no answer, empty if there is one.
    """

    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    at_best: int = 0
    error: str = ""


class Users:
    """Users of one front.

    Args:
        url: The front's address. `model`: the model's name.
        chats: What they ask.
        seed: Of their pauses.
    """

    def __init__(self, url: str, model: str, chats: Chats, seed: int) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._chats = chats
        self._seed = seed
        self._known_apps: dict[int, int] = {}
        self.turns: list[Turn] = []

    async def run(self, users: int, seconds: float) -> list[Turn]:
        """So many users for so long; answers that are under way then are waited for."""
        until_s = time.monotonic() + seconds
        timeout = aiohttp.ClientTimeout(total=TURN_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
            for user in range(users):
                group.create_task(self._user(session, user, self._chats.of(user), until_s))
        return self.turns

    async def _user(self, session: aiohttp.ClientSession, user: int, chats: Iterator[Chat], until_s: float) -> None:
        pauses = stream(self._seed, "prefix-live-pauses", user)
        await asyncio.sleep(float(pauses.exponential(THINK_MEAN_S)))
        for number, chat in enumerate(chats):
            messages = [{"role": "system", "content": chat.system}]
            shared = self._known_apps.get(chat.app, 0)
            for asked in chat.asked:
                if time.monotonic() >= until_s:
                    return
                messages.append({"role": "user", "content": asked})
                turn, answer = await self._ask(session, messages, f"{user}-{number}", shared)
                self.turns.append(turn)
                if turn.error:
                    break
                messages.append({"role": "assistant", "content": answer})
                shared = turn.prompt_tokens + turn.output_tokens
                if len(self._known_apps) < APPS and chat.app not in self._known_apps:
                    # By its share of the text.
                    part = len(chat.system) / sum(len(message["content"]) for message in messages[:-1])
                    self._known_apps[chat.app] = int(part * turn.prompt_tokens)
                await asyncio.sleep(float(pauses.exponential(THINK_MEAN_S)))

    async def _ask(self, session: aiohttp.ClientSession, messages: list[dict[str, str]], name: str, shared: int) -> tuple[Turn, str]:
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        begun_s = time.monotonic()
        first_s = last_s = 0.0
        texts: list[str] = []
        usage: dict[str, Any] = {}
        try:
            # What the product and the other gateways know a session by.
            headers = {"x-session-id": name, "x-slo-ttft-ms": f"{TTFT_MS:g}", "x-slo-tpot-ms": f"{TPOT_MS:g}"}
            async with session.post(self._url, json=body, headers=headers) as response:
                if response.status != 200:
                    return Turn(error=f"{response.status}: {(await response.text())[:200]}"), ""
                async for line in response.content:
                    if not line.startswith(_DATA) or line.startswith(_DONE, len(_DATA)):
                        continue
                    event = msgspec.json.decode(line[len(_DATA) :], type=dict[str, Any])
                    usage = event.get("usage") or usage
                    text = "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
                    if text:
                        last_s = time.monotonic()
                        first_s = first_s or last_s
                        texts.append(text)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            return Turn(error=f"{type(error).__name__}: {error}"), ""
        prompt, output = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
        if not texts or not prompt:
            return Turn(error="no text or no usage in the answer"), ""
        cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        return Turn(
            ttft_ms=1000.0 * (first_s - begun_s),
            tpot_ms=1000.0 * (last_s - first_s) / (output - 1) if output > 1 else 0.0,
            prompt_tokens=prompt,
            cached_tokens=cached,
            output_tokens=output,
            at_best=max(cached, min(shared, prompt - 1)),
        ), "".join(texts)
