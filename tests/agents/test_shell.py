"""The shell: what it does with answers, faults, old messages, ticks, stops, and crashes in between."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hmas_lab.memory_bus import MemoryBus
from message_kit import request_features
from shell_kit import shells
from typing_kit import all_of_type, of_type

from hmas.agents.runtime import shell as shell_module
from hmas.agents.runtime.shell import AgentShell, instance_name, make_agent, run_agent
from hmas.agents.runtime.staleness import StaleWatch
from hmas.agents.runtime.work import Deferred
from hmas.controller.bus.embedded import EmbeddedServer
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.messages import (
    ACTIONS,
    COSTS,
    EVENTS,
    FEATURES,
    REQUESTS,
    ControlAction,
    Event,
    Message,
    RequestCost,
    RequestFeatures,
    RequestNotice,
)
from hmas.controller.runtime.clock import SystemClock

ROOT = Path(__file__).resolve().parents[2]


class ManualClock:
    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s


@dataclass
class Echo:
    """Answers every notice with a cost; notices of tenant `poison` raise."""

    name: str = "echo"
    streams: tuple[str, ...] = (REQUESTS,)
    tick_s: float = 1e6
    max_age_s: Mapping[type[Message], float] = field(default_factory=lambda: {RequestNotice: 10.0})
    seen: Counter = field(default_factory=Counter)
    ticks: list = field(default_factory=list)
    recovered: list = field(default_factory=list)

    async def recover(self, bus, now_s: float) -> None:
        self.recovered = await bus.latest(COSTS, 10)

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        answers: list[Message] = []
        for message in all_of_type(RequestNotice, messages):
            if message.tenant == "poison":
                raise ValueError("poison")
            self.seen[message.request_id] += 1
            answers.append(RequestCost(request_id=message.request_id, sent_s=now_s, ttft_ms={}, tpot_ms={}, output_tokens=1.0))
        return answers

    def on_tick(self, now_s: float) -> list[Message]:
        self.ticks.append(now_s)
        if len(self.ticks) == 2:
            raise RuntimeError("bad tick")
        return [ControlAction(sent_s=now_s, instance="a", n_run=len(self.ticks))]


def notice(request_id: str, sent_s: float = 1000.0, tenant: str = "t") -> RequestNotice:
    return RequestNotice(request_id=request_id, sent_s=sent_s, tenant=tenant, model="m", prompt_tokens=1)


@pytest.fixture
async def running():
    async with shells(ManualClock) as start:
        yield start


async def test_answers_are_posted_and_messages_acknowledged(running):
    run = running(Echo())
    for number in range(250):
        run.bus.post(notice(str(number)))
    answers = await run.answers(250)
    assert [answer.request_id for answer in answers] == [str(number) for number in range(250)]
    await run.end()
    async with aclosing(run.bus.read([REQUESTS], group="echo", consumer="0", block_ms=1)) as batches:
        assert await anext(batches) == []


async def test_one_bad_message_is_skipped_counted_and_named_and_the_others_are_answered(running, caplog):
    run = running(Echo())
    for number in range(5):
        run.bus.post(notice(str(number), tenant="poison" if number == 2 else "t"))
    run.bus.post(notice("after"))
    answers = await run.answers(5)
    assert {answer.request_id for answer in answers} == {"0", "1", "3", "4", "after"}
    assert run.shell.counts.failed == 1
    assert "RequestNotice 3 of hmas:requests" in caplog.text


async def test_old_notices_are_acknowledged_and_counted_but_not_handled(running):
    agent = Echo()
    run = running(agent)
    run.bus.post(notice("old", sent_s=989.9))
    run.bus.post(notice("new", sent_s=990.1))
    assert [answer.request_id for answer in await run.answers(1)] == ["new"]
    assert set(agent.seen) == {"new"}
    assert run.shell.counts.stale == 1


@pytest.mark.parametrize(("sent_s", "told"), [(940.0, "60.0 s behind"), (1060.0, "60.0 s ahead of")])
async def test_an_agent_that_hears_only_another_clock_says_so_once(running, caplog, sent_s, told):
    run = running(Echo())
    counts = run.shell.counts
    for step in range(15):
        run.shell.clock.at_s = 1000.0 + step
        run.bus.post(notice(f"r{step}", sent_s=sent_s + step))
        async with asyncio.timeout(5):
            while counts.stale + counts.handled <= step:  # noqa: ASYNC110 - every message is one batch
                await asyncio.sleep(0)
    warned = [event for event in await run.bus.latest(EVENTS, 100) if event.kind == "clocks_differ"]
    assert [(event.severity, told in event.reason) for event in warned] == [("warning", True)]
    assert told in caplog.text


def test_a_backlog_that_is_worked_off_and_silence_are_no_such_thing():
    watch = StaleWatch()
    backlog = [watch.observe([60.0 - step], 0, 1000.0 + step) for step in range(9)]
    assert not any([*backlog, watch.observe([20.0, 1.0], 1, 1009.0), watch.observe([60.0], 0, 1011.0), watch.observe([], 0, 1030.0)])
    assert watch.observe([60.0], 0, 1021.0)
    assert not watch.observe([60.0], 0, 1022.0), "not again at once"
    assert watch.observe([60.0], 0, 1082.0)


async def test_a_restart_recovers_and_takes_up_what_was_not_acknowledged(running):
    bus = MemoryBus()
    crashed = bus.read([REQUESTS], group="echo", consumer="0")
    bus.post(RequestCost(request_id="mine", sent_s=1.0, ttft_ms={}, tpot_ms={}, output_tokens=1.0))
    bus.post(notice("in flight"))
    async with aclosing(crashed):
        assert len(await anext(crashed)) == 1
    agent = Echo()
    run = running(agent, bus)
    assert [answer.request_id for answer in await run.answers(2)] == ["mine", "in flight"]
    assert [message.request_id for message in agent.recovered] == ["mine"]


async def test_what_comes_on_a_followed_stream_during_the_recovery_is_not_lost(running):
    class Slow(Echo):
        follows: tuple[str, ...] = (FEATURES,)

        def __init__(self) -> None:
            super().__init__()
            self.came = asyncio.Event()

        async def recover(self, bus, now_s: float) -> None:
            self.recovered = await bus.latest(FEATURES, 10)
            # As one that loads a model, while requests go on.
            await asyncio.sleep(0.01)
            bus.post(request_features("during"))
            await asyncio.sleep(0.01)

        def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
            self.seen.update(message.request_id for message in messages if isinstance(message, RequestFeatures))
            if "during" in self.seen:
                self.came.set()
            return super().handle([message for message in messages if isinstance(message, RequestNotice)], now_s)

    bus, agent = MemoryBus(), Slow()
    bus.post(request_features("before"))
    run = running(agent, bus)
    bus.post(notice("a"))
    await run.answers(1)
    async with asyncio.timeout(5):
        await agent.came.wait()
    assert ([message.request_id for message in agent.recovered], agent.seen["before"]) == (["before"], 0)


async def test_a_failing_recovery_does_not_keep_the_agent_from_working(running):
    class Forgetful(Echo):
        async def recover(self, bus, now_s: float) -> None:
            raise RuntimeError("no memory")

    run = running(Forgetful())
    run.bus.post(notice("a"))
    await run.answers(1)
    assert run.shell.counts.failed == 1


async def test_ticks_go_on_after_one_that_fails(running):
    run = running(Echo(tick_s=0.001))
    async with asyncio.timeout(5):
        while len(run.shell.agent.ticks) < 4:
            run.shell.clock.at_s += 0.001
            await asyncio.sleep(0.001)
    actions = await run.answers(2, ACTIONS)
    assert [action.n_run for action in actions][:2] == [1, 3]
    assert run.shell.counts.failed == 1


async def test_start_and_stop_are_events(running):
    run = running(Echo())
    await run.answers(1, EVENTS)
    await run.end()
    events = await run.bus.latest(EVENTS, 10)
    assert [event.kind for event in events] == ["agent_started", "agent_stopped"]
    assert all(isinstance(event, Event) and event.source == "echo" for event in events)


class Told:
    """What a service manager hears of an agent."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @property
    def beats(self) -> int:
        return self.said.count("watchdog")

    def ready(self) -> None:
        self.said.append("ready")

    def watchdog(self) -> None:
        self.said.append("watchdog")

    def stopping(self) -> None:
        self.said.append("stopping")


async def test_readiness_follows_the_first_finished_cycle_and_the_watchdog_every_later_one(running):
    told = Told()
    run = running(Echo(), notify=told)
    await asyncio.sleep(0)
    assert told.said == []
    run.bus.post(notice("a"))
    await run.answers(1)
    await asyncio.sleep(0)
    assert told.said == ["ready", "watchdog"]
    run.shell.clock.at_s += 5.0
    run.bus.post(notice("b"))
    await run.answers(2)
    await run.end()
    assert told.said == ["ready", "watchdog", "watchdog", "stopping"]


async def test_a_stop_does_not_wait_for_a_block_to_run_out(running, monkeypatch):
    monkeypatch.setattr(shell_module, "BLOCK_MS", 60_000)
    run = running(Echo())
    await run.answers(1, EVENTS)
    async with asyncio.timeout(2):
        await run.end()


async def test_without_a_bus_the_agent_starts_after_a_while_and_still_ticks(tmp_path, monkeypatch):
    monkeypatch.setattr(shell_module, "CONNECT_WAIT_S", 0.05)
    bus = RedisBus(f"unix://{tmp_path}/none.sock")
    agent = Echo(tick_s=0.01)
    stop = asyncio.Event()
    task = asyncio.create_task(AgentShell(agent=agent, bus=bus, clock=SystemClock()).run(stop))
    async with asyncio.timeout(5):
        while len(agent.ticks) < 4:  # noqa: ASYNC110 - the agent is pure and has nothing to wait on
            await asyncio.sleep(0.005)
    stop.set()
    await task
    await bus.close()


async def test_an_unknown_agent_is_refused_with_the_names_that_are():
    with pytest.raises(ConfigError, match="perception"):
        await run_agent("oracle", Config(), MemoryBus(), SystemClock())


@pytest.mark.parametrize("name", AGENT_NAMES)
def test_every_agent_of_the_table_can_be_made(name):
    agent = make_agent(name, Config())
    assert agent.name == name
    assert agent.streams


def test_the_instance_keeps_its_name_over_restarts():
    assert instance_name({}) == "0"
    assert instance_name({"HMAS_INSTANCE": "b"}) == "b"


def start_process(name: str, url: str, **env: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "hmas", "run", "agent", name],
        cwd=ROOT,
        env={**os.environ, "HMAS_BUS__URL": url, **env},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
async def test_a_process_killed_in_the_middle_resumes_and_stops_cleanly(tmp_path):
    server = EmbeddedServer(tmp_path / "bus")
    bus = RedisBus(server.start())
    await bus.start()
    clock = SystemClock()

    async def wait_for(request_id: str) -> None:
        async with asyncio.timeout(20):
            while request_id not in {of_type(RequestFeatures, answer).request_id for answer in await bus.latest(FEATURES, 10)}:  # noqa: ASYNC110 - another process answers
                await asyncio.sleep(0.01)

    try:
        first = start_process("perception", server.url)
        bus.post(notice("one", sent_s=clock.now_s()))
        await wait_for("one")
        first.kill()
        first.communicate()
        bus.post(notice("two", sent_s=clock.now_s()))
        second = start_process("perception", server.url)
        await wait_for("two")
        second.send_signal(signal.SIGTERM)
        assert second.wait(10) == 0
        assert "Traceback" not in second.communicate()[1]
        kinds = [event.kind for event in all_of_type(Event, await bus.latest(EVENTS, 10))]
        assert [kind for kind in kinds if kind.startswith("agent_")] == ["agent_started", "agent_started", "agent_stopped"]
    finally:
        await bus.close()
        server.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("url", "said"), [("", "bus.url is empty"), ("nonsense", "bus.url")])
def test_a_process_without_a_usable_bus_address_says_so_and_ends(url, said):
    process = start_process("perception", url)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert said in errors


async def beaten(told: Told, beats: int) -> None:
    async with asyncio.timeout(5):
        while told.beats < beats:  # noqa: ASYNC110 - the shell tells nobody else
            await asyncio.sleep(0.01)


async def test_a_bus_that_hangs_on_an_acknowledgement_is_no_hang(monkeypatch):
    answers, told = asyncio.Event(), Told()
    async with shells(SystemClock) as start:
        run = start(Echo(), notify=told)
        await beaten(told, 1)

        async def hang(*_: object, **__: object) -> None:
            await answers.wait()

        monkeypatch.setattr(run.bus, "ack", hang)
        monkeypatch.setattr(shell_module, "BEAT_S", 0.02)
        run.bus.post(notice("a", SystemClock().now_s()))
        await run.answers(1)
        await beaten(told, told.beats + 3)
        answers.set()


async def test_a_long_batch_is_no_hang_but_a_batch_without_end_is(monkeypatch):
    monkeypatch.setattr(shell_module, "BEAT_S", 0.02)
    monkeypatch.setattr(shell_module, "WORK_S", 0.12)
    told = Told()
    begun, done = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return done.wait(5)

    class Slow(Echo):
        def handle(self, messages, now_s):
            return Deferred(work, lambda _, at_s: [])

    async with shells(SystemClock) as start:
        run = start(Slow(), notify=told)
        await beaten(told, 1)
        run.bus.post(notice("a", SystemClock().now_s()))
        assert await asyncio.to_thread(begun.wait, 5)
        before = told.beats
        await beaten(told, before + 5)
        await asyncio.sleep(0.1)
        assert told.beats <= before + 6, "it beats while the model works, and not for ever"
        done.set()
