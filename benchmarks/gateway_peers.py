"""The two peers of the gateway's benchmark, light enough to start often: an upstream that only sends, a client that only asks.

python benchmarks/gateway_peers.py upstream PORT
python benchmarks/gateway_peers.py client PORT CONNECTIONS SECONDS paced|unpaced
"""

import asyncio
import contextlib
import json
import sys
import time
from typing import cast

import uvloop

TOKENS = 64
TOKEN_PACE_S = 0.005
"""In paced runs a token every 5 ms, as a busy engine sends them; unpaced, as fast as the connection takes them."""
PACED_RPS = 140.0
"""Rate of paced runs: low enough that three processes on two cores stay below saturation."""
KEY = "sk-bench"
MODEL = "bench"


class Upstream(asyncio.Protocol):
    """Answers every POST with 64 events, one write each, and GETs with a list of models."""

    pace_s = 0.0

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.buffer = b""
        self.left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, gap, body = self.buffer.partition(b"\r\n\r\n")
        if not gap or self.transport is None:
            return
        if head.startswith(b"GET"):
            self.buffer = b""
            text = b'{"object":"list","data":[{"id":"bench","object":"model"}]}'
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text))
            return
        length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")).split(b":")[1])
        if len(body) < length:
            return
        self.buffer = b""
        Upstream.pace_s = TOKEN_PACE_S if b'"paced"' in body else 0.0
        self.left = TOKENS
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
        if Upstream.pace_s:
            loop.call_later(Upstream.pace_s, self.step)
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
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


class Client(asyncio.Protocol):
    """One keep-alive connection that asks, reads to the end, and asks again; unpaced at once, paced after a pause."""

    def __init__(self, plan: "Plan") -> None:
        self.plan = plan
        self.transport: asyncio.Transport | None = None
        self.tail = b""
        self.asked_s = 0.0
        self.waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def ask(self) -> None:
        if self.transport is None:
            return
        self.waiting = True
        self.asked_s = time.perf_counter()
        self.transport.write(self.plan.request)

    def data_received(self, data: bytes) -> None:
        plan = self.plan
        if self.waiting and b"data:" in (self.tail + data if self.tail else data):
            self.waiting = False
            plan.ttft_s.append(time.perf_counter() - self.asked_s)
        # The upstream's head and its first event are two writes, and any cut may fall between them.
        self.tail = (self.tail + data)[-16:]
        if self.tail.endswith(b"\r\n0\r\n\r\n"):
            self.tail = b""
            plan.done += 1
            if time.perf_counter() < plan.end_s:
                if plan.pause_s:
                    asyncio.get_running_loop().call_later(plan.pause_s, self.ask)
                else:
                    self.ask()
            else:
                plan.rested()

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        self.plan.lost += 1
        self.plan.rested()


class Plan:
    """One run of the client."""

    def __init__(self, host: str, port: int, connections: int, seconds: float, paced: bool) -> None:
        document = {
            "model": MODEL,
            "stream": True,
            "messages": [{"role": "user", "content": "word " * 150}],
            "user": "paced" if paced else "x",
        }
        body = json.dumps(document).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {KEY}\r\n"
        self.request = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        self.connections = connections
        self.seconds = seconds
        self.pause_s = connections / PACED_RPS if paced else 0.0
        self.end_s = 0.0
        self.ttft_s: list[float] = []
        self.done = self.lost = self.resting = 0
        self.finished = asyncio.Event()

    def rested(self) -> None:
        self.resting += 1
        if self.resting >= self.connections:
            self.finished.set()


async def run_client(host: str, port: int, connections: int, seconds: float, *, paced: bool) -> dict[str, float]:
    plan = Plan(host, port, connections, seconds, paced)
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(lambda: Client(plan), host, port))[1] for _ in range(connections)]
    begun_s = time.perf_counter()
    plan.end_s = begun_s + seconds
    for number, client in enumerate(clients):
        loop.call_later(number / connections * (plan.pause_s or 0.05), client.ask)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds + plan.pause_s + 10):
            await plan.finished.wait()
    took_s = time.perf_counter() - begun_s
    ordered = sorted(plan.ttft_s)
    lost = plan.lost
    for client in clients:
        if client.transport is not None:
            client.transport.abort()
    return {
        "requests": plan.done,
        "lost": lost,
        "rps": plan.done / took_s,
        "ttft_ms_p50": 1000 * ordered[len(ordered) // 2],
        "ttft_ms_p99": 1000 * ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
    }


if __name__ == "__main__":
    if sys.argv[1] == "upstream":
        uvloop.run(run_upstream(int(sys.argv[2])))
    else:
        port, connections, seconds, load = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
        print(json.dumps(uvloop.run(run_client("127.0.0.1", port, connections, seconds, paced=load == "paced"))))
