"""What the fleet makes of an engine's word about its knobs."""

from unittest import mock

import msgspec
import pytest
from hmas_lab.memory_bus import MemoryBus

from hmas.controller.config.schema import EngineConfig
from hmas.controller.core.messages import Event
from hmas.controller.core.placement import servers_of
from hmas.controller.core.types import Controls
from hmas.controller.gateway.instances import served_models
from hmas.controller.gateway.instances.monitor import MODELS_EVERY_S, RETRY_REFUSED_S, Fleet
from hmas.controller.observability.event_log import KEPT, EventLog
from hmas.controller.observability.observer import Observers
from hmas.engines.base import EngineCapabilities, EngineSnapshot, KnobReport, Knobs
from hmas.engines.errors import ConnectionBroken

START = {"n_run": 32, "token_budget": 1024}


class Clock:
    """Time that stands until it is set."""

    def __init__(self):
        self.s = 100.0

    def now_s(self) -> float:
        return self.s


class BusyEngine:
    """An engine that has live knobs and answers no order while it is `busy`."""

    name, url = "e", "http://127.0.0.1:1"
    capabilities = EngineCapabilities(kind="vllm", live_knobs=("n_run", "token_budget"))

    def __init__(self):
        self.values = dict(START)
        self.orders = []
        self.busy = False

    async def snapshot(self, now_s):
        return EngineSnapshot(
            engine="e",
            taken_s=now_s,
            healthy=True,
            max_num_seqs=self.values["n_run"],
            max_num_batched_tokens=self.values["token_budget"],
            max_num_seqs_ceiling=32,
            max_num_batched_tokens_ceiling=1024,
        )

    async def call(self, _method, _path):
        return 404, b""

    async def apply_knobs(self, knobs: Knobs) -> KnobReport:
        wanted = {name: value for name in START if (value := getattr(knobs, name)) is not None}
        self.orders.append(wanted)
        if self.busy:
            return KnobReport(refused=dict.fromkeys(wanted, "no answer in time"))
        self.values |= wanted
        return KnobReport(applied=wanted)


def fleet_of(engine, clock):
    event_log = EventLog(MemoryBus())
    return Fleet([(EngineConfig(name="e", url=engine.url), engine)], clock, Observers([event_log], clock)), event_log


async def test_further_lost_connections_do_not_confirm_the_first():
    fleet, _ = fleet_of(BusyEngine(), Clock())
    await fleet.poll_all()
    readings: list[bool] = []
    fleet.on_snapshot = lambda snapshot, _confirmed: readings.append(snapshot.healthy)
    for _ in range(3):
        fleet.connection_failed("e", ConnectionBroken("it is gone"))
    await fleet.poll_all()
    assert readings == [False, True]
    assert fleet.instances["e"].poll_now.is_set()


def test_steps_of_statera_push_no_other_event_out():
    event_log = EventLog(MemoryBus())
    event_log.noted(Event(sent_s=1.0, source="operator", kind="override.put", subject="night"))
    for number in range(2 * KEPT):
        event_log.noted(Event(sent_s=2.0 + number, source="statera", kind="knobs", subject="e"))
    event_log.noted(Event(sent_s=9000.0, source="gateway", kind="engine.health", subject="e", severity="warning"))
    told = event_log.newest(2 * KEPT)
    assert [told[0]["kind"], told[-1]["kind"], len(told)] == ["override.put", "engine.health", KEPT + 2]
    assert [one["sent_s"] for one in event_log.newest(2)] == [2.0 + 2 * KEPT - 1, 9000.0]


async def test_knobs_follow_and_the_start_values_come_back():
    engine, clock = BusyEngine(), Clock()
    fleet, _ = fleet_of(engine, clock)
    fleet.set_controls("e", Controls(n_run=8, token_budget=64))
    await fleet.poll_all()
    assert engine.values == {"n_run": 8, "token_budget": 64}
    await fleet.poll_all()
    assert len(engine.orders) == 1, "what is in force already is not asked for again"
    fleet.set_controls("e", Controls(n_run=8))
    await fleet.poll_all()
    assert engine.orders[1] == {"token_budget": 1024}


@pytest.mark.parametrize(("wanted", "budget"), [(1000, 960), (960, 960), (100, 128), (None, 1024)])
async def test_a_budget_is_one_that_the_engine_takes(wanted: int | None, budget: int):
    engine, clock = BusyEngine(), Clock()
    engine.capabilities = msgspec.structs.replace(engine.capabilities, budget_least=128, budget_step=64)
    engine.values["token_budget"] = 256
    fleet, _ = fleet_of(engine, clock)
    fleet.set_controls("e", Controls(n_run=32, token_budget=wanted))
    for _ in range(2):
        await fleet.poll_all()
    assert engine.orders == [{"token_budget": budget}], "and it is ordered once"


async def test_a_refused_knob_is_tried_again_but_not_at_every_poll():
    engine, clock = BusyEngine(), Clock()
    fleet, event_log = fleet_of(engine, clock)
    engine.busy = True
    fleet.set_controls("e", Controls(n_run=8))
    for _ in range(3):
        await fleet.poll_all()
    assert engine.orders == [{"n_run": 8}]
    clock.s += RETRY_REFUSED_S
    await fleet.poll_all()
    assert len(engine.orders) == 2
    assert [event["kind"] for event in event_log.newest(10)].count("knobs.refused") == 1, "the same reason is told once"
    fleet.set_controls("e", Controls(n_run=8, guard=0.5))
    await fleet.poll_all()
    assert len(engine.orders) == 2, "how strict the guard is concerns no engine"
    fleet.set_controls("e", Controls(n_run=8, token_budget=64))
    await fleet.poll_all()
    assert engine.orders[2:] == [{"token_budget": 64}], "another knob moves: that is no reason to ask for this one"
    fleet.set_controls("e", Controls(n_run=9, token_budget=64))
    await fleet.poll_all()
    assert engine.orders[3:] == [{"n_run": 9}], "another value is another question"
    fleet.set_controls("e", Controls(n_run=8))
    engine.busy = False
    clock.s += RETRY_REFUSED_S
    await fleet.poll_all()
    assert engine.values["n_run"] == 8
    assert fleet.instances["e"].refused == {}


class ListingEngine(BusyEngine):
    """An engine that lists its models with a status and a body that a test sets."""

    def __init__(self):
        super().__init__()
        self.answer = (200, b'{"data": [{"id": "m", "max_model_len": 100}]}')

    async def call(self, _method, _path):
        return self.answer


async def test_a_list_of_models_that_fails_leaves_what_was_known():
    engine, clock = ListingEngine(), Clock()
    fleet, _ = fleet_of(engine, clock)
    await fleet.poll_all()
    instance = fleet.instances["e"]
    assert (instance.models, fleet.context_tokens("m")) == (frozenset({"m"}), 100)
    for status in (503, 404, 200):
        clock.s += 2 * MODELS_EVERY_S
        engine.answer = (status, b'{"data": [{"id": "n"}]}' if status == 200 else b'{"error": {}}')
        await fleet.poll_all()
        assert instance.models == frozenset({"n" if status == 200 else "m"})


async def test_an_engine_gets_nothing_before_it_has_said_its_models():
    engine, clock = ListingEngine(), Clock()
    fleet, _ = fleet_of(engine, clock)
    listed, engine.answer = engine.answer, (503, b"starting")
    await fleet.poll_all()
    assert fleet.candidates("m") == fleet.candidates("anything") == []
    engine.answer = listed
    await fleet.poll_all()
    assert (len(fleet.candidates("m")), fleet.candidates("anything")) == (1, [])


async def test_a_server_without_a_list_of_models_may_serve_any():
    engine, clock = BusyEngine(), Clock()
    fleet, _ = fleet_of(engine, clock)
    await fleet.poll_all()
    assert fleet.instances["e"].known
    assert fleet.instances["e"].serves("anything")


async def test_an_engine_with_a_half_open_circuit_gets_one_pass_through_request_at_a_time():
    engine, clock = BusyEngine(), Clock()
    fleet, _ = fleet_of(engine, clock)
    await fleet.poll_all()
    instance = fleet.instances["e"]
    instance.breaker.state = "half-open"
    assert fleet.candidates("m") == [instance]
    instance.passing = 1
    assert fleet.candidates("m") == []
    instance.breaker.state = "closed"
    assert fleet.candidates("m") == [instance]


async def test_which_instances_serve_a_model_is_looked_up_only_after_a_change(monkeypatch: pytest.MonkeyPatch):
    looked = mock.Mock(side_effect=servers_of)
    monkeypatch.setattr(served_models, "servers_of", looked)
    engine, clock = ListingEngine(), Clock()
    fleet, _ = fleet_of(engine, clock)
    await fleet.poll_all()

    def served(*models: str) -> list[bool]:
        return [bool(fleet.candidates(model)) for model in models]

    for number in range(20):
        fleet.require_model("m")
        assert served("m", "n") == [True, False]
        assert (fleet.only_model(), fleet.context_tokens("m"), fleet.context_tokens(f"unknown {number}")) == ("m", 100, 0)
        clock.s += 2 * MODELS_EVERY_S
        await fleet.poll_all()
    assert looked.call_count == 1, "no list has changed"
    engine.answer = 200, b'{"data": [{"id": "n"}]}'
    clock.s += 2 * MODELS_EVERY_S
    await fleet.poll_all()
    assert (served("m", "n"), fleet.only_model()) == ([False, True], "n")
    other = ListingEngine()
    joined = fleet.add(EngineConfig(name="f", url=other.url), other)
    assert served("m", "n") == [False, True], "nothing is known of it yet"
    await fleet.poll(joined)
    assert (served("m", "n"), fleet.only_model()) == ([True, True], "")
    fleet.remove("f")
    assert (served("m", "n"), fleet.only_model()) == ([False, True], "n")
