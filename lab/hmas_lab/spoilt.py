"""Runs under which the machine stood still are made again: their latencies are other programs' doing."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

Made = TypeVar("Made")


async def until_quiet(make: Callable[[], Awaitable[Made]], spoilt: Callable[[Made], bool], repeats: int) -> list[Made]:
    """Makes a run, and makes it again while the machine's noise has spoilt it, at most `repeats` times.

    Args:
        make: Makes one run.
        spoilt: Whether noise has spoilt it; asked once for each run.
        repeats: 0 makes one run, whatever came of it.

    Returns:
        All that were made: every one but the last is spoilt, and the last one may be.
    """
    made: list[Made] = []
    for _ in range(repeats + 1):
        made.append(await make())
        if not spoilt(made[-1]):
            break
    return made


def rejected(name: str, stood_still_s: float) -> str:
    """What is said of a spoilt run."""
    return f"{name}: rejected, the clock stood still for {stood_still_s:.2f} s"
