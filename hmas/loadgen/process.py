"""Open-loop load generator: sends each arrival at its time, regardless of earlier ones, and records what its client measures.

It runs as a separate process (`python -m hmas.loadgen.process`), so that no other work delays it.
"""

import asyncio
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import aiohttp
import msgspec
import orjson
import uvloop
from msgspec import Meta

from hmas.controller.core.errors import HmasError
from hmas.controller.runtime.clock import Clock, SystemClock
from hmas.loadgen.results import ClientOutcome, Result, RunSummary, count_outcomes, empty_result, is_good, write_lines
from hmas.loadgen.sse import AnswerReader, read_error, read_whole
from hmas.loadgen.workload import Arrival

LengthChannel = Literal["sim", "vllm", "none"]
CHAT = "/v1/chat/completions"
GAP_TICK_S = 0.02
PROGRESS_S = 0.5
KEEPALIVE_S = 4.0
"""Less than the 5 s after which common servers close an idle connection, possibly while a request is being sent."""

NO_END = "no end within"
"""The beginning of the detail of a request that had not ended at the end of the run."""

LATE_CODES: Mapping[str, ClientOutcome] = MappingProxyType({"slo_unattainable": "shed", "deadline_exceeded": "timed_out"})
"""The gateway's error codes for requests that it gave up."""


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how to send.

    Attributes:
        url: Base address, without /v1.
        model: The model named in each request.
        api_keys: Key by tenant; a tenant without one sends none.
        length_channel: How the ENGINE gets the true length: the embedded one's `sim` field, vLLM's `vllm_xargs`, or not at all.
        drain_s: How long to wait for answers after the last arrival; a request without an answer by then is lost.
    """

    url: str
    model: str
    api_keys: dict[str, str] = {}
    length_channel: LengthChannel = "none"
    drain_s: Annotated[float, Meta(gt=0)] = 30.0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A running count, reported every half second; `good` requests were completed within both targets."""

    elapsed_s: float
    sent: int
    ended: int
    good: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the process's input; arrivals follow, one per line."""

    load: LoadSpec
    results: str


def request_body(arrival: Arrival, load: LoadSpec) -> bytes:
    """The JSON body. Only the field that the engine reads has the true output length; `max_tokens` is the cap of the client's class."""
    if arrival.body is not None:
        body = {**arrival.body.document, "model": load.model}
    else:
        body = {
            "model": load.model,
            "messages": [{"role": turn.role, "content": turn.content} for turn in arrival.messages],
            **({"max_tokens": arrival.max_tokens} if arrival.max_tokens else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    if load.length_channel == "sim":
        body["sim"] = {"output_tokens": arrival.output_tokens}
    elif load.length_channel == "vllm":
        body["vllm_xargs"] = {"hmas_output_tokens": arrival.output_tokens}
    return orjson.dumps(body)


def request_headers(arrival: Arrival, load: LoadSpec) -> dict[str, str]:
    """The headers: declared SLO and the tenant's key."""
    headers = {"content-type": "application/json"}
    if arrival.declares:
        headers |= {"x-slo-ttft-ms": str(round(arrival.slo.ttft_ms)), "x-slo-tpot-ms": str(round(arrival.slo.tpot_ms))}
    key = load.api_keys.get(arrival.tenant)
    if key:
        headers["authorization"] = f"Bearer {key}"
    return headers


class LoadGenerator:
    """One run over one list of arrivals."""

    def __init__(self, arrivals: Sequence[Arrival], load: LoadSpec, clock: Clock) -> None:
        self._arrivals = arrivals
        self._load = load
        self._clock = clock
        self._bodies = [request_body(a, load) for a in arrivals]
        self._headers = [request_headers(a, load) for a in arrivals]
        self._start_s = 0.0
        self._max_gap_s = 0.0
        self._sent = self._ended = self._good = 0
        self._paths = [CHAT if a.body is None else a.body.path for a in arrivals]
        self.results = [empty_result(i, a) for i, a in enumerate(arrivals)]

    async def run(self, on_progress: Callable[[Progress], None] | None = None) -> RunSummary:
        """Sends everything and waits for the answers; afterwards `results` holds one result per arrival."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
            self._start_s = self._clock.now_s()
            watch = asyncio.create_task(self._watch(on_progress))
            tasks = await self._send_all(session)
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=self._load.drain_s)
                for task in late:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
        return RunSummary(
            started_s=self._start_s,
            elapsed_s=self._clock.now_s() - self._start_s,
            max_gap_s=self._max_gap_s,
            outcomes=count_outcomes(self.results),
        )

    async def _send_all(self, session: aiohttp.ClientSession) -> list[asyncio.Task[None]]:
        tasks = []
        for i, arrival in enumerate(self._arrivals):
            wait_s = self._start_s + arrival.at_s - self._clock.now_s()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.append(asyncio.create_task(self._request(session, i)))
        return tasks

    async def _request(self, session: aiohttp.ClientSession, index: int) -> None:
        result = self.results[index]
        due_s = self._start_s + result.at_s
        reader = AnswerReader()
        result.late_ms = max(0.0, (self._clock.now_s() - due_s) * 1000.0)
        self._sent += 1
        try:
            async with session.post(
                self._load.url + self._paths[index], data=self._bodies[index], headers=self._headers[index]
            ) as response:
                result.status = response.status
                result.policy = response.headers.get("x-hmas-policy", "")
                result.queue_ms = _number(response.headers.get("x-hmas-queue-ms"))
                result.instance = response.headers.get("x-hmas-instance", "")
                result.retry_after_s = _number(response.headers.get("retry-after"))
                if response.status == 200 and not result.streamed:
                    answer = read_whole(await response.read())
                    result.output_tokens = answer.tokens
                    result.outcome, result.detail = ("failed", answer.broken) if answer.broken else ("completed", "")
                elif response.status == 200:
                    async for chunk in response.content.iter_any():
                        reader.feed(chunk, self._clock.now_s())
                    reader.end()
                    result.outcome, result.detail = judge_stream(reader)
                else:
                    result.outcome, result.detail = judge_refusal(response.status, await response.read())
        except asyncio.CancelledError:
            result.detail = f"{NO_END} {self._load.drain_s:g} s after the last arrival"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            result.detail = f"{type(error).__name__}: {error}"
        self._note(result, reader, due_s)

    def _note(self, result: Result, reader: AnswerReader, due_s: float) -> None:
        result.total_ms = (self._clock.now_s() - due_s) * 1000.0
        if result.streamed:
            result.output_tokens = reader.tokens
        if reader.first_s >= 0:
            result.ttft_ms = (reader.first_s - due_s) * 1000.0
            if result.tokens_each >= 2:
                result.tpot_ms = (reader.last_s - reader.first_s) * 1000.0 / (result.tokens_each - 1.0)
        self._ended += 1
        self._good += is_good(result)

    async def _watch(self, on_progress: Callable[[Progress], None] | None) -> None:
        """Measures delays of the event loop, and reports progress."""
        reported_s = last_s = self._clock.now_s()
        while True:
            await asyncio.sleep(GAP_TICK_S)
            now_s = self._clock.now_s()
            self._max_gap_s = max(self._max_gap_s, now_s - last_s - GAP_TICK_S)
            last_s = now_s
            if on_progress is not None and now_s - reported_s >= PROGRESS_S:
                reported_s = now_s
                on_progress(Progress(elapsed_s=now_s - self._start_s, sent=self._sent, ended=self._ended, good=self._good))


def judge_stream(reader: AnswerReader) -> tuple[ClientOutcome, str]:
    """The outcome and detail of an answer with status 200."""
    if reader.error is not None:
        code, message = reader.error
        return LATE_CODES.get(code, "failed"), f"{code}: {message}"
    if reader.broken:
        return "failed", reader.broken
    if reader.finished and reader.done:
        return "completed", ""
    return "lost", "the stream ended without a finish reason and [DONE]"


def judge_refusal(status: int, body: bytes) -> tuple[ClientOutcome, str]:
    """The outcome and detail of an answer with another status."""
    try:
        code, message = read_error(orjson.loads(body))
    except orjson.JSONDecodeError:
        code, message = "", body[:200].decode("utf-8", "replace")
    detail = f"{status} {code}: {message}"
    if status == 504:
        return LATE_CODES.get(code, "timed_out"), detail
    if status == 503 or 400 <= status < 500:
        return "rejected", detail
    return "failed", detail


def _number(text: str | None) -> float:
    try:
        return -1.0 if text is None else float(text)
    except ValueError:
        return -1.0


def write_plan(path: Path, arrivals: Sequence[Arrival], load: LoadSpec, results: Path) -> None:
    """Writes the input file of the load generator's process."""
    write_lines(path, [Plan(load=load, results=str(results)), *arrivals])


def read_plan(path: Path) -> tuple[Plan, list[Arrival]]:
    """Reads a file that `write_plan` wrote."""
    head, _, rest = path.read_bytes().partition(b"\n")
    return msgspec.json.decode(head, type=Plan), msgspec.json.Decoder(Arrival).decode_lines(rest)


async def run_process(plan: Path, on_progress: Callable[[Progress], None], errors: int | None = None) -> RunSummary:
    """Runs the load generator's process on a plan to its end.

    Args:
        plan: A file from `write_plan`.
        on_progress: Called with the running count.
        errors: File descriptor for the process's stderr; None to share that of this process.

    Raises:
        HmasError: The process ended without a summary.
    """
    summary: RunSummary | None = None
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hmas.loadgen.process", str(plan), stdout=asyncio.subprocess.PIPE, stderr=errors
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            heard = msgspec.json.decode(line, type=dict[str, Any])
            if "outcomes" in heard:
                summary = msgspec.convert(heard, RunSummary)
            else:
                on_progress(msgspec.convert(heard, Progress))
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if summary is None:
        raise HmasError(f"the load generator ended with status {code} and without a summary; its stderr says why")
    return summary


def main(argv: Sequence[str]) -> None:
    """Runs the plan named on the command line; progress and, last, the summary go to stdout as JSON lines."""
    plan, arrivals = read_plan(Path(argv[0]))
    generator = LoadGenerator(arrivals, plan.load, SystemClock())
    # A full garbage collection over all arrivals during a run would appear as latency of the system under test.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)

    def report(item: Progress | RunSummary) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(item) + b"\n")
        sys.stdout.buffer.flush()

    summary = uvloop.run(generator.run(report))
    write_lines(Path(plan.results), generator.results)
    report(summary)


if __name__ == "__main__":
    main(sys.argv[1:])
