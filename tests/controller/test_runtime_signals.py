"""Signals of the process itself, for real."""

import asyncio
import os
import signal

from hmas.controller.runtime.signals import stop_flags


async def test_the_first_stop_asks_the_second_hurries():
    with stop_flags() as flags:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(flags.stop.wait(), 5)
        assert not flags.hurry.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(flags.hurry.wait(), 5)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


async def test_hangup_reloads_and_a_failing_reload_changes_nothing():
    calls: asyncio.Queue[int] = asyncio.Queue()

    def reload():
        calls.put_nowait(calls.qsize())
        raise ValueError("bad file")

    with stop_flags(reload) as flags:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(calls.get(), 5)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(calls.get(), 5)
        assert not flags.stop.is_set()


async def test_hangup_without_a_hook_is_survived():
    with stop_flags() as flags:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(flags.stop.wait(), 5)
