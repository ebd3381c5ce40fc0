"""A loop whose time jumps: real sockets, the same run every time, and nobody waits."""

import asyncio
import time

import aiohttp
import pytest
from aiohttp import web
from hmas_lab.virtual_loop import Deadlock, VirtualLoop, run_virtual


def test_an_hour_passes_at_once_and_timers_fire_in_order():
    seen = []

    async def main(loop: VirtualLoop) -> float:
        async def at(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            seen.append((delay_s, loop.time()))

        await asyncio.gather(*(at(delay_s) for delay_s in (3600.0, 0.5, 60.0, 0.25)))
        return loop.now_s()

    before_s = time.monotonic()
    assert run_virtual(main, start_s=1000.0) == 4600.0
    assert time.monotonic() - before_s < 60.0
    assert seen == [(0.25, 1000.25), (0.5, 1000.5), (60.0, 1060.0), (3600.0, 4600.0)]


def test_timers_for_the_same_time_fire_in_the_order_in_which_they_were_set():
    async def main(loop: VirtualLoop) -> list[int]:
        seen: list[int] = []
        for number in range(100):
            loop.call_at(7.0 if number % 3 else 6.0, seen.append, number)
        await asyncio.sleep(10.0)
        return seen

    expected = [number for number in range(100) if not number % 3] + [number for number in range(100) if number % 3]
    assert run_virtual(main, start_s=5.0) == expected


async def _served(loop: VirtualLoop, calls: int) -> list[tuple[int, int, float]]:
    """Streams of ten chunks, 0.1 s apart, over real sockets: (call, chunk, virtual time)."""
    seen: list[tuple[int, int, float]] = []

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(10):
            await asyncio.sleep(0.1)
            await response.write(b"%d" % number)
        return response

    app = web.Application()
    app.router.add_get("/", stream)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def call(session: aiohttp.ClientSession, number: int) -> None:
        await asyncio.sleep(0.001 * number)
        async with session.get(url) as response:
            async for chunk in response.content.iter_any():
                seen.append((number, int(chunk), loop.time()))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(call(session, number) for number in range(calls)))
    await runner.cleanup()
    return seen


def test_what_goes_over_sockets_takes_no_virtual_time_and_is_the_same_every_time():
    first = run_virtual(lambda loop: _served(loop, 20), start_s=0.0)
    assert len(first) == 200
    for number, chunk, at_s in first:
        assert at_s == pytest.approx(0.001 * number + 0.1 * (chunk + 1), abs=1e-9)
    assert run_virtual(lambda loop: _served(loop, 20), start_s=0.0) == first


def test_a_moment_ends_after_everything_in_it_and_before_time_moves_on():
    async def main(loop: VirtualLoop) -> list[str]:
        events: list[str] = []

        async def late() -> None:
            await loop.settled()
            events.append(f"settled at {loop.time():g}")

        async def hops() -> None:
            for _ in range(50):
                await asyncio.sleep(0)
            events.append("hopped")

        async def timer() -> None:
            await asyncio.sleep(1e-6)
            events.append("a microsecond later")

        await asyncio.gather(timer(), late(), hops(), late())
        return events

    assert run_virtual(main, start_s=5.0) == ["hopped", "settled at 5", "settled at 5", "a microsecond later"]


def test_work_for_threads_is_done_at_once():
    async def main(loop: VirtualLoop) -> tuple[int, float]:
        found = await asyncio.to_thread(sum, [1, 2, 3])
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        return found, loop.time()

    assert run_virtual(main, start_s=7.0) == (6, 7.0)


def test_timeouts_are_virtual():
    async def main(loop: VirtualLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30.0):
                await asyncio.Event().wait()
        return loop.time()

    assert run_virtual(main, start_s=0.0) == 30.0


def test_waiting_for_what_cannot_happen_is_told():
    async def main(_loop: VirtualLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="no timer"):
        run_virtual(main)
