"""Ends a process that a study has started."""

import asyncio

STOP_S = 20.0
"""How long a process may take to end by itself: a server ends the requests in flight first."""


async def stop(process: asyncio.subprocess.Process) -> None:
    """Ends a process, by force if it takes long."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
