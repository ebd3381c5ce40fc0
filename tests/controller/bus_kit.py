"""What tests of the bus on a real server share."""

import asyncio

from typing_kit import all_of_type

from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.core.messages import EVENTS, Event


def event(number: int) -> Event:
    return Event(sent_s=float(number), source="test", kind="count", subject=str(number))


async def last_is(bus: RedisBus, number: int) -> None:
    async with asyncio.timeout(15):
        while [message.subject for message in all_of_type(Event, await bus.latest(EVENTS))] != [str(number)]:  # noqa: ASYNC110 - it lies in another process
            await asyncio.sleep(0.01)
