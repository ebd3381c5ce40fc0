"""Sends the designed load to a live engine and reads prefill and decode times from its streams."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import msgspec
import numpy as np
import orjson

from hmas.engines.tokens import estimate_tokens
from hmas.loadgen.sse import AnswerReader
from hmas.loadgen.streams import stream
from hmas.profiling.coefficients import Decode, Prefill
from hmas.profiling.design import Batch
from hmas.profiling.target import CHAT, ProbeError, Target, headers_with, refusal

_LETTERS = "abcdefghijklmnoprstuvw"
_CONNECT_S = 10.0
_LEAST_STEPS = 3
_LEAST_MOMENTS = 3
_BURST = 0.1
"""Tokens whose gap is below this share of their answer's mean gap count as one burst."""


class Findings(msgspec.Struct, kw_only=True):
    """The measurements of a probe.

    Attributes:
        prefills: Single prompts. `decodes`: steps of decoding batches.
        sent: Number of batches sent; `planned`: number of batches planned.
        tokens: Prompt and output tokens that the engine processed.
        elapsed_s: Duration of the probe.
    """

    prefills: list[Prefill]
    decodes: list[Decode]
    sent: int = 0
    planned: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0


class Answer(msgspec.Struct, frozen=True):
    """One stream: when its request was sent, when its content came, and its lengths by the engine's count."""

    sent_s: float
    times_s: list[float]
    prompt_tokens: int
    output_tokens: int


async def probe(
    target: Target,
    batches: Sequence[Batch],
    *,
    api_key: str = "",
    max_seconds: float = 120.0,
    seed: int = 1,
    on_progress: Callable[[int, int, float], None] | None = None,
) -> Findings:
    """Sends one batch after another, each when the previous one has ended, and stops in time.

    Args:
        target: The engine.
        batches: Batches from `hmas.profiling.design.plan`.
        api_key: Sent as a bearer token; empty for none.
        max_seconds: No batch begins after this; a batch in progress may take as long again.
        seed: Seed of the prompts' words. No two prompts share a beginning, so that no prefix cache helps.
        on_progress: Called after each batch with the batches sent, those planned, and the seconds since the start.

    Raises:
        ProbeError: The engine refuses, breaks off, does not stream, or a batch takes longer than `max_seconds`.
    """
    loop = asyncio.get_running_loop()
    findings = Findings(prefills=[], decodes=[], planned=len(batches))
    begun_s = loop.time()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        asker = Asker(session, target, api_key, seed)
        for batch in batches:
            if loop.time() - begun_s >= max_seconds:
                break
            try:
                async with asyncio.timeout(max_seconds):
                    answers, newcomers = await asker.joined(batch) if batch.kind == "mixed" else (await asker.together(batch), [])
            except TimeoutError as error:
                raise ProbeError(
                    f"{batch.seqs} requests of {batch.prompt_tokens} prompt tokens took longer than {max_seconds:g} s; "
                    "allow more with --max-seconds"
                ) from error
            _note(findings, batch, answers, newcomers)
            findings.sent += 1
            findings.elapsed_s = loop.time() - begun_s
            if on_progress is not None:
                on_progress(findings.sent, findings.planned, findings.elapsed_s)
    return findings


class Asker:
    """Sends requests whose answers run to their full length, with the fields that this engine supports for that."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, api_key: str, seed: int) -> None:
        self._session = session
        self._target = target
        self._headers = headers_with(api_key)
        self._rng = stream(seed, "probe")
        self._words_per_token = 0.5
        self._full_length: dict[str, Any] = {"ignore_eos": True}

    async def together(self, batch: Batch) -> list[Answer]:
        """Sends a batch and returns all answers, in the order of sending."""
        texts = [self.text(batch.prompt_tokens) for _ in range(batch.seqs)]
        answers, _ = await self._gather(texts, batch.output_tokens, [])
        words = sum(text.count(" ") + 1 for text in texts)
        tokens = sum(answer.prompt_tokens for answer in answers)
        if batch.prompt_tokens >= 32 and tokens:
            self._words_per_token = min(2.0, max(0.05, words / tokens))
        return answers

    async def joined(self, batch: Batch) -> tuple[list[Answer], list[Answer]]:
        """Sends a batch, and new requests one by one until the first of the batch is done; returns the answers of both."""
        texts = [self.text(batch.prompt_tokens) for _ in range(batch.seqs)]
        return await self._gather(texts, batch.output_tokens, [self.text(batch.joiner_tokens) for _ in range(batch.joiners)])

    async def _gather(self, texts: list[str], output_tokens: int, newcomers: list[str]) -> tuple[list[Answer], list[Answer]]:
        joined: list[Answer | ProbeError] = []
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._guarded(text, output_tokens)) for text in texts]
            for text in newcomers:
                if any(task.done() for task in tasks):
                    break
                joined.append(await self._guarded(text, 1))
        outcomes = [task.result() for task in tasks]
        for outcome in (*outcomes, *joined):
            if isinstance(outcome, ProbeError):
                raise outcome
        return [one for one in outcomes if isinstance(one, Answer)], [one for one in joined if isinstance(one, Answer)]

    async def calibrate(self) -> None:
        """Measures the number of words per token with one short answer."""
        await self.together(Batch(kind="warm-up", seqs=1, prompt_tokens=128, output_tokens=2))

    async def _guarded(self, text: str, output_tokens: int) -> Answer | ProbeError:
        """Returns the answer, or the error as a value, because a task group wraps raised errors."""
        try:
            return await self.ask(text, output_tokens)
        except ProbeError as error:
            return error

    async def ask(self, text: str, output_tokens: int) -> Answer:
        """Reads one answer, streamed to its end.

        Raises:
            ProbeError: The engine refuses, breaks off, or does not stream.
        """
        body: dict[str, Any] = {
            "model": self._target.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": output_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        loop = asyncio.get_running_loop()
        url = self._target.url
        reader = AnswerReader()
        data = orjson.dumps(body | self._full_length)
        sent_s = loop.time()
        try:
            async with self._session.post(url + CHAT, data=data, headers=self._headers) as response:
                if response.status != 200:
                    answer = await response.read()
                    if response.status in (400, 422) and self._full_length and b"ignore_eos" in answer:
                        # Servers of the public API refuse unknown fields, so their answers may end early.
                        self._full_length = {}
                        return await self.ask(text, output_tokens)
                    raise ProbeError(refusal(url, CHAT, response.status, answer))
                if response.content_type != "text/event-stream":
                    raise ProbeError(
                        f"{url}{CHAT} answers with {response.content_type}: it does not stream, and without a stream no token has a time"
                    )
                async for chunk, _ in response.content.iter_chunks():
                    reader.feed(chunk, loop.time())
        except (aiohttp.ClientError, OSError) as error:
            raise ProbeError(f"{url}{CHAT}: the engine broke off ({str(error) or type(error).__name__})") from error
        if reader.error or not reader.times_s:
            raise ProbeError(f"{url}{CHAT}: {reader.error[1] if reader.error else 'a stream with no token'}")
        prompt = reader.prompt_tokens or estimate_tokens(text)
        return Answer(sent_s, reader.times_s, prompt, reader.tokens or len(reader.times_s))

    def text(self, tokens: int) -> str:
        """Random words of about `tokens` tokens, by the engine's counts so far."""
        count = max(1, round(tokens * self._words_per_token))
        letters = self._rng.integers(0, len(_LETTERS), size=(count, 4))
        return " ".join("".join(_LETTERS[index] for index in word) for word in letters.tolist())


def _note(findings: Findings, batch: Batch, answers: Sequence[Answer], newcomers: Sequence[Answer]) -> None:
    findings.tokens += sum(answer.prompt_tokens + answer.output_tokens for answer in (*answers, *newcomers))
    if batch.kind == "prefill":
        findings.prefills += [
            Prefill(prompt_tokens=answer.prompt_tokens, ttft_ms=1000.0 * (answer.times_s[0] - answer.sent_s)) for answer in answers
        ]
    elif batch.kind in ("decode", "mixed"):
        found = decode_steps(answers, newcomers)
        if found is not None:
            findings.decodes.append(found)


def decode_steps(answers: Sequence[Answer], newcomers: Sequence[Answer] = ()) -> Decode | None:
    """The mean step time while all sequences of a batch decoded, median over its streams; None if that time was too short.

    New requests count if they had their first token meanwhile; if none of the planned ones had, the batch gives no measurement.

    Only the time between the latest first token and the earliest last token of the batch counts, without the first gap, in which a prompt
    may still have been computed. A stream's step is the time between its first and last arrivals in this span, over the tokens after the
    first arrival. Single gaps are not used, because with little CPU the engine's front end or this client passes tokens on in bursts. An
    answer that came in one burst, or nearly so, gives no measurement.
    """
    begin_s = max(answer.times_s[0] for answer in answers)
    end_s = min(answer.times_s[-1] for answer in answers)
    steps_ms: list[float] = []
    read = 0.0
    for answer in answers:
        # An event may have several tokens.
        per_event = max(1.0, answer.output_tokens / len(answer.times_s))
        moments = _moments(answer, begin_s, end_s)[1:]
        if len(moments) < _LEAST_MOMENTS:
            return None
        after = per_event * sum(moments[0] < time_s <= moments[-1] for time_s in answer.times_s)
        if after < _LEAST_STEPS:
            return None
        steps_ms.append(1000.0 * (moments[-1] - moments[0]) / after)
        before = per_event * sum(time_s <= moments[0] for time_s in answer.times_s)
        read += answer.prompt_tokens + before + after / 2.0
    joined = [one.prompt_tokens for one in newcomers if begin_s < one.times_s[0] <= end_s]
    if newcomers and not joined:
        return None
    step_ms = float(np.median(steps_ms))
    steps = 1000.0 * (end_s - begin_s) / step_ms
    return Decode(
        seqs=len(answers),
        kv_tokens=read,
        step_ms=step_ms,
        joined=len(joined) / steps,
        joined_tokens=sum(joined) / steps,
        joined_pairs=sum(tokens * (tokens + 1) / 2 for tokens in joined) / steps,
    )


def _moments(answer: Answer, begin_s: float, end_s: float) -> list[float]:
    """The arrival times between two times: the first token of each burst."""
    apart_s = _BURST * (answer.times_s[-1] - answer.sent_s) / len(answer.times_s)
    found: list[float] = []
    before_s = float("-inf")
    for time_s in answer.times_s:
        if begin_s <= time_s <= end_s and time_s - before_s > apart_s:
            found.append(time_s)
        before_s = time_s
    return found
