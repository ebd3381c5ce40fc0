"""The two ends of the gateway's benchmark, light enough to start often: an upstream that only sends, a client that only asks.

python lab/benchmarks/gateway_peers.py upstream PORT
python lab/benchmarks/gateway_peers.py client PORT CONNECTIONS SECONDS paced|unpaced
"""

import asyncio
import contextlib
import json
import re
import resource
import sys
import time
from typing import cast

import uvloop

TOKENS = 64
TOKEN_PACE_S = 0.005
"""In paced runs a token every 5 ms, as a busy engine sends them; unpaced, as fast as the connection takes them."""
PACED_RPS = 140.0
"""Rate of paced runs: low enough that three processes on two cores stay below saturation."""
GRACE_S = 25.0
"""How long after a run's end its last answers are waited for: the CPU time of answers that are cut off would count for the others."""
KEY = "sk-bench"
MODEL = "bench"
FILES_WANTED = 16_384
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_PACE = re.compile(rb"pace=([0-9.]+) tokens=([0-9]+)")


def raise_file_limit() -> int:
    """Lifts the soft limit of open files as far as is wanted and allowed; children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


def request_bytes(host: str, port: int, pace_s: float, tokens: int) -> bytes:
    """A request as it goes over the wire. The prompt tells the upstream how to answer: every proxy passes a prompt on."""
    document = {
        "model": MODEL,
        "stream": True,
        "messages": [{"role": "user", "content": f"pace={pace_s:g} tokens={tokens} " + "word " * 150}],
    }
    body = json.dumps(document).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class Upstream(asyncio.Protocol):
    """Answers every POST with as many events as its prompt says, one write each, and GETs with a list of models."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.buffer = b""
        self.left = 0
        self.pace_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, gap, body = self.buffer.partition(b"\r\n\r\n")
        if not gap or self.transport is None:
            return
        if head.startswith((b"GET", b"HEAD")):
            self.buffer = b""
            text = b'{"object":"list","data":[{"id":"bench","object":"model"}]}'
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text))
            return
        length = _LENGTH.search(head)
        if length is None:
            # A probe for another protocol, as some routers send at their start.
            self.transport.close()
            return
        if len(body) < int(length[1]):
            return
        self.buffer = b""
        told = _PACE.search(body)
        self.pace_s, self.left = (float(told[1]), int(told[2])) if told else (0.0, 1)
        self.transport.write(HEAD)
        self.step()

    def step(self) -> None:
        if self.transport is None:
            return
        self.left -= 1
        if self.left < 0:
            self.transport.write(LAST)
            return
        self.transport.write(EVENT)
        loop = asyncio.get_running_loop()
        if self.pace_s:
            loop.call_later(self.pace_s, self.step)
        else:
            loop.call_soon(self.step)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = chunk(
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
LAST = (
    chunk(
        b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
        b'"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    + b"0\r\n\r\n"
)


async def run_upstream(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


class Client(asyncio.Protocol):
    """One keep-alive connection that asks, reads to the end, and asks again; unpaced at once, paced after a pause."""

    def __init__(self, plan: "Plan") -> None:
        self.plan = plan
        self.transport: asyncio.Transport | None = None
        self.tail = b""
        self.asked_s = 0.0
        self.fresh = self.waiting = self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def ask(self) -> None:
        if self.transport is None:
            return
        self.fresh = self.waiting = self.busy = True
        self.asked_s = time.perf_counter()
        self.transport.write(self.plan.request)

    def data_received(self, data: bytes) -> None:
        plan = self.plan
        if self.fresh:
            self.fresh = False
            if data[9:12] != b"200" and self.transport is not None:
                plan.trouble = plan.trouble or data[:200].decode("utf-8", "replace")
                self.transport.abort()
                return
        if self.waiting and b"data:" in (self.tail + data if self.tail else data):
            self.waiting = False
            plan.first(time.perf_counter() - self.asked_s)
        # The upstream's head and its first event are two writes, and any cut may fall between them.
        self.tail = (self.tail + data)[-16:]
        if self.tail.endswith(b"\r\n0\r\n\r\n"):
            self.tail = b""
            self.busy = False
            plan.done += 1
            plan.next(self)

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        # What the plan itself closes in the end is not lost.
        if not self.plan.over:
            self.plan.lost += 1
            self.plan.trouble = self.plan.trouble or "the connection was closed"
            self.plan.rested()


class Plan:
    """One run of the client."""

    def __init__(self, host: str, port: int, connections: int, seconds: float, *, paced: bool) -> None:
        self.request = request_bytes(host, port, TOKEN_PACE_S if paced else 0.0, TOKENS)
        self.connections = connections
        self.pause_s = connections / PACED_RPS if paced else 0.0
        self.seconds = seconds
        self.end_s = 0.0
        self.ttft_s: list[float] = []
        self.done = self.lost = self.resting = 0
        self.trouble = ""
        self.over = False
        self.finished = asyncio.Event()

    def first(self, ttft_s: float) -> None:
        self.ttft_s.append(ttft_s)

    def next(self, client: Client) -> None:
        if time.perf_counter() >= self.end_s:
            self.rested()
        elif self.pause_s:
            asyncio.get_running_loop().call_later(self.pause_s, client.ask)
        else:
            client.ask()

    def rested(self) -> None:
        self.resting += 1
        if self.resting >= self.connections:
            self.finished.set()


async def run_client(host: str, port: int, connections: int, seconds: float, *, paced: bool) -> dict[str, float | str]:
    plan = Plan(host, port, connections, seconds, paced=paced)
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(lambda: Client(plan), host, port))[1] for _ in range(connections)]
    begun_s = time.perf_counter()
    plan.end_s = begun_s + seconds
    for number, client in enumerate(clients):
        loop.call_later(number / connections * (plan.pause_s or 0.05), client.ask)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds + plan.pause_s + GRACE_S):
            await plan.finished.wait()
    took_s = time.perf_counter() - begun_s
    plan.over = True
    for client in clients:
        if client.transport is not None:
            client.transport.abort()
    ordered = sorted(plan.ttft_s)
    return {
        "requests": plan.done,
        "lost": plan.lost,
        "unfinished": sum(client.busy for client in clients if client.transport is not None),
        "rps": plan.done / took_s,
        "took_s": took_s,
        "ttft_ms_p50": 1000 * quantile(ordered, 0.5),
        "ttft_ms_p99": 1000 * quantile(ordered, 0.99),
        "trouble": plan.trouble,
    }


def quantile(ordered: list[float], share: float) -> float:
    """The value at a share of the order; 0 with no values."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


if __name__ == "__main__":
    raise_file_limit()
    if sys.argv[1] == "upstream":
        uvloop.run(run_upstream(int(sys.argv[2])))
    else:
        port, connections, seconds, load = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
        print(json.dumps(uvloop.run(run_client("127.0.0.1", port, connections, seconds, paced=load == "paced"))))
