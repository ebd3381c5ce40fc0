"""Work that the shell does beside its loop: batches gather meanwhile, ticks go on, and nothing is acknowledged before it is posted."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hmas_lab.memory_bus import MemoryBus
from shell_kit import shells
from typing_kit import all_of_type

from hmas.agents.runtime import shell as shell_module
from hmas.agents.runtime.inbox import Inbox
from hmas.agents.runtime.work import BRIEF_MS, Deferred, Lane, Pace
from hmas.controller.bus.base import Delivery
from hmas.controller.core.messages import (
    COSTS,
    EVENTS,
    REQUESTS,
    TELEMETRY,
    Completion,
    ControlAction,
    Event,
    Message,
    RequestCost,
    RequestNotice,
)
from hmas.controller.core.types import OutcomeKind
from hmas.controller.runtime.clock import SystemClock


def notice(request_id: str, tenant: str = "t") -> RequestNotice:
    return RequestNotice(request_id=request_id, sent_s=0.0, tenant=tenant, model="m", prompt_tokens=1)


def completion(request_id: str) -> Completion:
    return Completion(request_id=request_id, sent_s=0.0, tenant="t", model="m", outcome=OutcomeKind.COMPLETED, arrival_s=0.0, policy="fcfs")


@dataclass
class Thinker:
    """Thinks about notices in its lane and learns completions; notices of tenant `poison` make the thinking fail."""

    name: str = "thinker"
    streams: tuple[str, ...] = (REQUESTS,)
    follows: tuple[str, ...] = (TELEMETRY,)
    tick_s: float = 0.005
    max_age_s: Mapping[type[Message], float] = field(default_factory=dict)
    thinking: Callable[[], object] = lambda: None
    batches: list[int] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    learnt: list[str] = field(default_factory=list)
    ticks: int = 0

    async def recover(self, bus, now_s: float) -> None:
        pass

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message] | Deferred:
        self.learnt += [message.request_id for message in messages if isinstance(message, Completion)]
        asked = [message for message in messages if isinstance(message, RequestNotice)]
        if not asked:
            return []

        def compute() -> list[str]:
            self.threads.add(threading.current_thread().name)
            self.thinking()
            if any(message.tenant == "poison" for message in asked):
                raise ValueError("poison")
            return [message.request_id for message in asked]

        def finish(ids: list[str], at_s: float) -> list[Message]:
            assert threading.current_thread() is threading.main_thread()
            self.batches.append(len(ids))
            return [RequestCost(request_id=one, sent_s=at_s, ttft_ms={}, tpot_ms={}, output_tokens=1.0) for one in ids]

        return Deferred(compute, finish)

    def on_tick(self, now_s: float) -> list[Message]:
        self.ticks += 1
        return []


@pytest.fixture
async def running():
    async with shells(SystemClock) as start:
        yield start


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - the agent has nothing to wait on
            await asyncio.sleep(0.001)


async def answered(bus: MemoryBus, count: int) -> list[str]:
    async with asyncio.timeout(5):
        while len(found := await bus.latest(COSTS, 5000)) < count:  # noqa: ASYNC110 - the bus is polled: followers are not what is tested
            await asyncio.sleep(0.001)
    return [message.request_id for message in all_of_type(RequestCost, found)]


def unacknowledged(bus: MemoryBus, group: str = "thinker") -> int:
    return len(bus.streams[REQUESTS].groups[group].pending)


async def test_what_gathers_while_a_batch_is_worked_on_is_the_next_batch_and_ticks_go_on(running):
    bus, gate = MemoryBus(), threading.Event()
    agent = Thinker(thinking=lambda: gate.wait(5))
    run = running(agent, bus)
    bus.post(notice("first"))
    await until(lambda: bool(agent.threads))
    ticks = agent.ticks
    for number in range(30):
        bus.post(notice(str(number)))
    await until(lambda: len(run.shell.inbox) == 30 and agent.ticks > ticks + 3)
    assert await bus.latest(COSTS, 10) == []
    assert unacknowledged(bus) == 31, "nothing is acknowledged before its answer is posted"
    gate.set()
    assert await answered(bus, 31) == ["first", *map(str, range(30))]
    assert agent.batches == [1, 30]
    assert {name.rsplit("_", 1)[0] for name in agent.threads} == {"thinker-work"}
    await until(lambda: unacknowledged(bus) == 0)


async def test_work_that_fails_is_done_again_one_by_one_and_only_the_one_at_fault_is_lost(running, caplog):
    bus = MemoryBus()
    for number in range(4):
        bus.post(notice(str(number), tenant="poison" if number == 1 else "t"))
    run = running(Thinker(), bus)
    assert await answered(bus, 3) == ["0", "2", "3"]
    assert run.shell.counts.failed == 1
    assert "RequestNotice 2 of hmas:requests" in caplog.text
    await until(lambda: unacknowledged(bus) == 0)


async def test_a_coroutine_is_awaited_on_the_loop(running):
    class Asking(Thinker):
        def handle(self, messages, now_s):
            async def compute() -> str:
                await asyncio.sleep(0)
                return threading.current_thread().name

            return Deferred(compute, lambda name, at_s: [Event(sent_s=at_s, source="thinker", kind="asked", subject=name)])

    bus = MemoryBus()
    bus.post(notice("a"))
    running(Asking(), bus)
    async with asyncio.timeout(5):
        while not (asked := [event for event in all_of_type(Event, await bus.latest(EVENTS, 10)) if event.kind == "asked"]):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
    assert asked[0].subject == threading.main_thread().name


async def test_instances_share_what_is_asked_and_each_learns_everything(running):
    bus = MemoryBus()
    agents = [Thinker(thinking=lambda: time.sleep(0.01)) for _ in range(2)]
    for number, agent in enumerate(agents):
        running(agent, bus, instance=str(number))
    await until(lambda: all(agent.ticks for agent in agents))
    for number in range(1000):
        bus.post(notice(str(number)))
        bus.post(completion(str(number)))
    ids = await answered(bus, 1000)
    await until(lambda: all(len(agent.learnt) == 1000 for agent in agents))
    assert sorted(map(int, ids)) == list(range(1000))
    assert all(sum(agent.batches) > 200 for agent in agents), "neither has hoarded what the other could have taken"
    assert all(agent.learnt == list(map(str, range(1000))) for agent in agents)


async def test_a_stop_waits_for_the_batch_under_way_and_leaves_the_rest_unacknowledged(running):
    bus, gate = MemoryBus(), threading.Event()
    agent = Thinker(thinking=lambda: gate.wait(5))
    run = running(agent, bus)
    bus.post(notice("under way"))
    await until(lambda: bool(agent.threads))
    bus.post(notice("behind"))
    await until(lambda: len(run.shell.inbox) == 1)
    run.stop.set()
    await until(lambda: run.shell.ending)
    gate.set()
    async with asyncio.timeout(5):
        await run.task
    assert await answered(bus, 1) == ["under way"]
    assert unacknowledged(bus) == 1


async def test_a_stop_does_not_wait_for_ever(running, monkeypatch):
    monkeypatch.setattr(shell_module, "STOP_WAIT_S", 0.05)
    bus, gate = MemoryBus(), threading.Event()
    run = running(Thinker(thinking=lambda: gate.wait(5)), bus)
    bus.post(notice("hangs"))
    await until(lambda: bool(run.shell.agent.threads))
    run.stop.set()
    async with asyncio.timeout(2):
        await run.task
    gate.set()
    assert unacknowledged(bus) == 1


async def test_a_stop_goes_through_even_where_a_reader_swallows_its_cancellation(running):
    class Swallowing(MemoryBus):
        async def read(self, streams, *, group, consumer, count=100, block_ms=1000):
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
                yield []

    run = running(Thinker(), Swallowing())
    await until(lambda: run.shell.agent.ticks > 1)
    run.stop.set()
    async with asyncio.timeout(5):
        await run.task


async def test_work_that_may_wait_runs_beside_in_a_nicer_thread_one_piece_at_a_time(running):
    @dataclass
    class Busy(Thinker):
        pieces: list[int] = field(default_factory=list)
        under_way: int = 0
        asked: int = 0

        def beside(self, now_s: float) -> Deferred | None:
            self.asked += 1
            if self.asked > 4:
                return None
            if self.asked == 2:
                raise RuntimeError("no plan")

            def compute() -> int:
                self.under_way += 1
                assert self.under_way == 1
                if self.asked == 3:
                    self.under_way -= 1
                    raise RuntimeError("fails alone")
                nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
                self.under_way -= 1
                return nice

            def finish(nice: int, at_s: float) -> list[Message]:
                self.pieces.append(nice)
                return [ControlAction(sent_s=at_s, instance="a", n_run=1)]

            return Deferred(compute, finish)

    agent, bus = Busy(), MemoryBus()
    run = running(agent, bus)
    await until(lambda: len(agent.pieces) == 2)
    assert agent.pieces == [min(19, os.getpriority(os.PRIO_PROCESS, 0) + shell_module.SIDE_NICE)] * 2
    await until(lambda: run.shell.counts.failed == 2)
    bus.post(notice("goes on"))
    assert await answered(bus, 1) == ["goes on"]


async def test_the_inbox_is_bounded_and_holds_what_comes_again_once():
    inbox = Inbox(limit=3)
    first = [Delivery("s", str(number), notice(str(number))) for number in range(3)]
    await inbox.put(first)
    waiting = asyncio.create_task(inbox.put([Delivery("s", "9", notice("9")), *first]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    batch = await inbox.gathered(2, 1.0)
    await waiting
    assert [delivery.entry_id for delivery in batch] == ["0", "1"]
    inbox.done(batch)
    await inbox.put(batch[:1])
    rest = await inbox.gathered(10, 1.0)
    assert [delivery.entry_id for delivery in rest] == ["2", "9", "0"]
    assert await inbox.gathered(10, 0.001) == []


async def test_a_lane_raises_what_its_work_raises_and_has_one_thread():
    lane = Lane("one")
    names = await asyncio.gather(*(lane.run(lambda: threading.current_thread().name) for _ in range(5)))
    assert len(set(names)) == 1
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 // 0)
    lane.close()


def test_a_pace_falls_at_once_and_rises_slowly():
    pace = Pace()
    assert not pace.is_brief(1), "nothing was measured yet"
    pace.took(1, 10.0 * BRIEF_MS)
    assert not pace.is_brief(1)
    pace.took(10, BRIEF_MS)
    assert pace.is_brief(9)
    assert not pace.is_brief(11)
    pace.took(1, BRIEF_MS)
    assert pace.is_brief(5), "one slow piece is no slow work"
    for _ in range(30):
        pace.took(1, BRIEF_MS)
    assert not pace.is_brief(5)
