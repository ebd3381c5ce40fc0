"""The three agents on a bus: what they read, what they answer, and what they remember after a restart."""

import asyncio

from control_kit import completion, instance, snapshot
from hmas_lab.memory_bus import MemoryBus
from message_kit import request_features
from shell_kit import shells
from test_shell import ManualClock
from typing_kit import known, of_type

from hmas.agents.meta.agent import MetaAgent
from hmas.agents.qos.agent import QosAgent
from hmas.agents.qos.model import QosModel
from hmas.agents.runtime.shell import make_agent
from hmas.agents.statera.agent import StateraAgent
from hmas.controller.config.schema import AgentsConfig, Config, SchedulerConfig
from hmas.controller.core.messages import (
    ACTIONS,
    DECISIONS,
    TELEMETRY,
    VIEWS,
    ControlAction,
    LongView,
    MetaDecision,
    RequestNotice,
    ShortView,
    SystemSnapshot,
)

CONFIG = Config(scheduler=SchedulerConfig(policy="edf", n_run=16), agents=AgentsConfig(meta_period_s=5.0, statera_period_s=0.2))


def telemetry(seconds: float, *, from_s: float = 1000.0) -> list:
    messages = []
    for step in range(int(seconds * 10)):
        now_s = from_s + step / 10
        done = completion(round(now_s * 10), now_s, tenant="ab"[step % 2])
        views = [instance(in_flight=4, n_run=16)]
        messages += [done, snapshot(now_s, arrived=step + 5, ended=step + 1, instances=views)]
    return messages


def play(agents, messages) -> list:
    """Runs the three in one chain, as the bus would; returns everything that was said."""
    qos, meta, statera = agents
    said = []
    for message in messages:
        views = qos.handle([message], message.sent_s)
        said += views
        for agent in (meta, statera):
            said += agent.handle(views, message.sent_s)
    return said


def of(kind, messages) -> list:
    return [message for message in messages if isinstance(message, kind)]


def test_a_view_is_as_old_as_what_it_shows():
    qos = QosAgent(QosModel())
    said = [qos.handle([snapshot(sent_s, arrived=1, ended=1)], now_s) for sent_s, now_s in ((1000.0, 1002.9), (1005.1, 1005.0))]
    stamps = [[type(view), view.sent_s] for views in said for view in views if isinstance(view, ShortView | LongView)]
    # One from a clock that is a little ahead is as of now.
    assert stamps == [[ShortView, 1000.0], [LongView, 1000.0], [ShortView, 1005.0], [LongView, 1005.0]]
    assert QosAgent.max_age_s[SystemSnapshot] <= StateraAgent.max_age_s[ShortView], "no view is made that nobody may act on"


def test_the_chain_from_telemetry_to_controls():
    agents = [make_agent(name, CONFIG) for name in ("qos", "meta", "statera")]
    assert [agent.streams for agent in agents] == [(TELEMETRY,), (VIEWS,), (VIEWS,)]
    said = play(agents, telemetry(30.0))
    assert of(ShortView, said)
    assert of(LongView, said)
    assert {action.n_run for action in of(ControlAction, said)} >= {16}
    assert {decision.policy for decision in of(MetaDecision, said)} == {"edf"}


def test_messages_of_others_are_none_of_their_business():
    notice = RequestNotice(request_id="1", sent_s=1.0, tenant="a", model="m", prompt_tokens=3)
    for name in ("qos", "meta", "statera"):
        agent = make_agent(name, CONFIG)
        assert agent.handle([notice], 1.0) == []


async def test_they_resume_from_their_streams():
    bus = MemoryBus()
    await bus.start()
    before = telemetry(40.0)
    for message in [*before, *of(ControlAction, play([make_agent(n, CONFIG) for n in ("qos", "meta", "statera")], before))]:
        bus.post(message)
    bus.post(MetaDecision(sent_s=1040.0, decision_id="d", policy="wfq", previous="edf", reason="because"))
    bus.post(ControlAction(sent_s=1040.0, instance="i0", n_run=7))
    agents = [make_agent(name, CONFIG) for name in ("qos", "meta", "statera")]
    for agent in agents:
        await agent.recover(bus, 1041.0)
    said = play(agents, telemetry(0.3, from_s=1041.0))
    short = of(ShortView, said)[0]
    assert short.ended >= 30, "the windows are full again"
    assert of(ControlAction, said)[0].n_run == 7
    assert of(ControlAction, said)[0].length_bounds, "lengths are calibrated again"
    assert of(MetaDecision, said)[0].policy == "wfq"
    await bus.close()


async def test_a_restarted_meta_takes_nobody_for_open_of_whose_end_it_cannot_know():
    bus = MemoryBus()
    await bus.start()
    agent = of_type(MetaAgent, make_agent("meta", CONFIG))
    for number in range(30):
        bus.post(request_features(f"old{number}", sent_s=900.0 + number))
        bus.post(request_features(f"new{number}", sent_s=1001.0 + number))
    for message in telemetry(20.0):
        bus.post(message)
    await agent.recover(bus, 1041.0)
    there = {one.request.id for one in known(agent.meta.twin).traffic.there(1041.0)}
    assert there >= {f"new{number}" for number in range(30)}
    assert not any(name.startswith("old") for name in there)
    await bus.close()


async def test_meta_takes_nobody_for_open_by_features_that_are_read_again_much_later():
    """As when a bus has failed over to a replica that lags, and its streams are read again from the start."""
    agent = of_type(MetaAgent, make_agent("meta", CONFIG))
    traffic = known(agent.meta.twin).traffic
    async with shells(ManualClock) as start, asyncio.timeout(5.0):
        bus = start(agent).bus
        while traffic.heard_s < 1000.0:
            bus.post(request_features("first", sent_s=1000.0))
            await asyncio.sleep(0.01)
        for name, sent_s in (("old", 989.9), ("late", 990.1), ("last", 1000.5)):
            bus.post(request_features(name, sent_s=sent_s))
        while traffic.heard_s < 1000.5:  # noqa: ASYNC110 - the shell tells nobody else
            await asyncio.sleep(0.01)
    assert [one.request.id for one in traffic.there(1001.0)] == ["late", "first", "last"]


async def test_what_is_too_old_is_not_resumed():
    bus = MemoryBus()
    await bus.start()
    bus.post(MetaDecision(sent_s=10.0, decision_id="d", policy="wfq", previous="edf"))
    bus.post(ControlAction(sent_s=10.0, instance="i0", n_run=7))
    assert await bus.latest(DECISIONS)
    assert await bus.latest(ACTIONS)
    agents = [make_agent(name, CONFIG) for name in ("qos", "meta", "statera")]
    for agent in agents:
        await agent.recover(bus, 5000.0)
    said = play(agents, telemetry(0.3, from_s=5000.0))
    assert of(ControlAction, said)[0].n_run == 16
    assert of(MetaDecision, said)[0].policy == "edf"
    await bus.close()
