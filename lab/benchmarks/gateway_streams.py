"""Many paced streams at once, held for a while: the client's side. Says `held` once all are open, and in the end what it saw, as JSON.

Every stream asks again as soon as it has its answer, so that as many stay open, and requests begin at every moment of the run.

    python lab/benchmarks/gateway_streams.py PORT STREAMS SECONDS PACE_S TOKENS
"""

import asyncio
import contextlib
import json
import sys
import time
from array import array

import uvloop
from gateway_peers import Client, quantile, raise_file_limit, request_bytes

QUARTERS = 4
GRACE_S = 5.0
EVENT = b"data: {"


class Stream(Client):
    """One connection, whose events are timed each."""

    def __init__(self, plan: "Streams") -> None:
        super().__init__(plan)  # type: ignore[arg-type]  # a plan of another kind with the same methods
        self.streams = plan
        self.last_s = 0.0

    def ask(self) -> None:
        self.last_s = 0.0
        super().ask()

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        for _ in range(data.count(EVENT)):
            if self.last_s:
                self.streams.gap(now_s, now_s - self.last_s)
            self.last_s = now_s
        super().data_received(data)


class Streams:
    """The whole run: a ramp of one answer's length, then the time that is measured, in four quarters."""

    def __init__(self, host: str, port: int, streams: int, seconds: float, pace_s: float, tokens: int) -> None:
        self.request = request_bytes(host, port, pace_s, tokens)
        self.count = streams
        self.seconds = seconds
        self.ramp_s = pace_s * tokens
        self.begun_s = self.end_s = 0.0
        self.ttft_s = [array("f") for _ in range(QUARTERS)]
        self.gap_s = [array("f") for _ in range(QUARTERS)]
        self.done = self.lost = self.resting = 0
        self.trouble = ""
        self.over = False
        self.finished = asyncio.Event()

    def quarter(self, now_s: float) -> int:
        """Which quarter a moment lies in, -1 outside of all."""
        place = int((now_s - self.begun_s) / self.seconds * QUARTERS) if now_s >= self.begun_s else -1
        return place if place < QUARTERS else -1

    def first(self, ttft_s: float) -> None:
        place = self.quarter(time.perf_counter())
        if place >= 0:
            self.ttft_s[place].append(ttft_s)

    def gap(self, now_s: float, gap_s: float) -> None:
        place = self.quarter(now_s)
        if place >= 0:
            self.gap_s[place].append(gap_s)

    def next(self, client: Client) -> None:
        if time.perf_counter() < self.end_s:
            client.ask()
        else:
            self.rested()

    def rested(self) -> None:
        self.resting += 1
        if self.resting >= self.count:
            self.finished.set()


async def run(port: int, streams: int, seconds: float, pace_s: float, tokens: int) -> dict[str, object]:
    plan = Streams("127.0.0.1", port, streams, seconds, pace_s, tokens)
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(lambda: Stream(plan), "127.0.0.1", port))[1] for _ in range(streams)]
    plan.begun_s = time.perf_counter() + plan.ramp_s
    plan.end_s = plan.begun_s + seconds
    for number, client in enumerate(clients):
        loop.call_later(number / streams * plan.ramp_s, client.ask)
    await asyncio.sleep(plan.ramp_s)
    opened = sum(client.busy for client in clients)
    print("held", flush=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds + plan.ramp_s + GRACE_S):
            await plan.finished.wait()
    plan.over = True
    unfinished = sum(client.busy for client in clients if client.transport is not None)
    for client in clients:
        if client.transport is not None:
            client.transport.abort()
    return {
        "open": opened,
        "requests": plan.done,
        "lost": plan.lost,
        "unfinished": unfinished,
        "trouble": plan.trouble,
        "quarters": [figures(ttft, gap) for ttft, gap in zip(plan.ttft_s, plan.gap_s, strict=True)],
        # Of the gaps that there would have been had every stream kept its pace throughout.
        "pace_kept": sum(map(len, plan.gap_s)) / (streams * seconds / pace_s),
    }


def figures(ttft: "array[float]", gap: "array[float]") -> dict[str, float]:
    out: dict[str, float] = {"requests": len(ttft), "events": len(gap)}
    for name, values in (("ttft_ms", sorted(ttft)), ("gap_ms", sorted(gap))):
        out |= {f"{name}_p{round(100 * share)}": 1000 * quantile(values, share) for share in (0.5, 0.99)}
    return out


if __name__ == "__main__":
    raise_file_limit()
    port, streams, seconds, pace_s, tokens = sys.argv[1:6]
    print(json.dumps(uvloop.run(run(int(port), int(streams), float(seconds), float(pace_s), int(tokens)))))
