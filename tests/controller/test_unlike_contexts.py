"""Engines of one model with different context lengths: a request goes where it fits."""

from pathlib import Path

import msgspec
import pytest
from gateway_kit import FAST, MODEL, chat, running, start_sim

from hmas.controller.core.types import Estimates, OutcomeKind, Request, Slo
from hmas.controller.gateway.instances.instance import contexts_of, model_entries_of
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.dispatch import LONGER_CONTEXT, TOO_SMALL
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.engines.base import EngineSnapshot

CONTEXTS = {"short": 1000, "long": 4000}


def build(*, kv=None, contexts=CONTEXTS, n_run=8, **settings) -> Scheduler:
    kv = kv or {}
    specs = [InstanceSpec(name=name, capacity_n_run=n_run, kv_capacity_tokens=kv.get(name, 0)) for name in contexts]
    made = Scheduler(settings=SchedulerSettings(**settings), instances=specs, router=make_router("round-robin"), policy="fcfs")
    for name, context in contexts.items():
        made.set_models(name, frozenset({"m"}), {"m": context} if context else None)
    return made


def submit(made: Scheduler, number: int, prompt: int, now_s: float = 0.0, forecast: dict | None = None, **more) -> None:
    request = Request(id=f"{number:04d}", tenant="t", model="m", arrival_s=now_s, prompt_tokens=prompt, **more)
    lengths = {"output_tokens": 10, "output_tokens_upper": 20, **(forecast or {})}
    made.submit(request, Estimates(slo=Slo(ttft_ms=60_000, tpot_ms=100), ttft_ms=100, tpot_ms=10, **lengths), now_s)


def placed(made: Scheduler, now_s: float = 0.0) -> dict[int, str]:
    return {int(one.entry.request.id): one.instance for one in made.dispatch(now_s)}


@pytest.mark.parametrize("binding", ["dispatch", "arrival"])
@pytest.mark.parametrize(
    ("request_of", "goes_to"),
    [
        ({"prompt": 500}, {"short", "long"}),
        ({"prompt": 2000}, {"long"}),
        ({"prompt": 100, "max_output_tokens": 2000}, {"long"}),
        ({"prompt": 100, "max_output_tokens": 2000, "sequences": 4}, {"short", "long"}),
        ({"prompt": 2000, "prompts": 4, "sequences": 4}, {"short", "long"}),
        ({"prompt": 900}, {"long"}),  # the length of a prompt is an estimate
        ({"prompt": 3900}, {"long"}),  # just as near to the end of the longest context that there is
        ({"prompt": 9000}, {"long"}),  # the engine says what it has
    ],
)
def test_a_request_goes_where_its_prompt_and_its_cap_fit(binding, request_of, goes_to):
    made = build(binding=binding, n_run=64)
    for number in range(8):
        submit(made, number, **request_of)
    assert set(placed(made).values()) == goes_to


def test_an_engine_that_does_not_report_its_context_takes_any_request():
    made = build(contexts={"short": 1000, "silent": 0})
    for number in range(4):
        submit(made, number, 2000)
    assert set(placed(made).values()) == {"silent"}


def test_it_waits_for_the_long_context_while_what_fits_passes_it():
    made = build(n_run=2)
    for number in range(6):
        submit(made, number, 2000 if number < 5 else 50)
    assert placed(made) == {0: "long", 1: "long", 5: "short"}
    assert made.heads()[0].blocked == TOO_SMALL
    for tick in range(1, 50):
        # An engine with room to spare, which idle requests may otherwise go to whatever holds them back.
        made.observe(EngineSnapshot(engine="short", taken_s=tick / 10, healthy=True, kv_usage=0.01, kv_capacity_tokens=100_000, waiting=0))
        made.expire(tick / 10)
        assert placed(made, tick / 10) == {}
    made.end("0000", OutcomeKind.COMPLETED, 5.0)
    assert placed(made, 5.0) == {2: "long"}


@pytest.mark.parametrize("gone", ["drained", "down"])
def test_where_the_long_context_is_gone_the_other_engine_gives_its_own_answer(gone):
    made = build()
    if gone == "drained":
        made.set_draining("long", True)
    else:
        made.observe(EngineSnapshot(engine="long", taken_s=0.0, healthy=False))
    submit(made, 0, 2000)
    assert placed(made) == {0: "short"}


@pytest.mark.parametrize(
    ("forecast", "more", "goes_to"),
    [
        ({"output_tokens_upper": 800, "proven": False}, {}, {"short", "long"}),  # the median counts
        ({"output_tokens": 800, "proven": False}, {}, {"long"}),
        ({"output_tokens_upper": 800}, {}, {"long"}),
        ({"output_tokens_upper": 800}, {"max_output_tokens": 50}, {"short", "long"}),  # the client's cap ends it before
        ({"output_tokens_upper": 800}, {"sequences": 4}, {"short", "long"}),  # of four answers each is as long as the context holds
    ],
)
def test_an_answer_without_a_cap_goes_where_its_forecast_length_fits(forecast, more, goes_to):
    made = build(n_run=64)
    for number in range(8):
        submit(made, number, 500, forecast=forecast, **more)
    assert set(placed(made).values()) == goes_to


def test_a_forecast_holds_no_request_back_from_the_shorter_context():
    made = build(n_run=2)
    for number in range(6):
        submit(made, number, 500, forecast={"output_tokens_upper": 800})
    dispatched = {int(one.entry.request.id): one for one in made.dispatch(0.0)}
    assert {number: one.instance for number, one in dispatched.items()} == {0: "long", 1: "long", 2: "short", 3: "short"}
    assert LONGER_CONTEXT in dispatched[1].reason


def test_a_request_that_no_engine_suits_in_both_ways_does_not_wait_for_ever():
    made = build(kv={"short": 10_000, "long": 1500})
    submit(made, 0, 2000)
    assert placed(made) == {0: "short"}, "its cache can hold it"


def test_a_context_that_has_grown_counts():
    made = build()
    made.set_models("short", frozenset({"m"}), {"m": 4000})
    for number in range(4):
        submit(made, number, 2000)
    assert set(placed(made).values()) == {"short", "long"}


def test_an_engine_that_serves_another_model_has_no_speed_until_it_is_measured():
    made = build()
    instance = made.instances["short"]
    instance.pace.decoded(8.0)
    made.set_models("short", frozenset({"m", "adapter"}))
    assert instance.decode_token_ms == 8.0, "an adapter of the same model"
    made.set_models("short", frozenset({"large"}))
    assert instance.decode_token_ms == 0.0


def test_an_adapter_has_the_context_of_its_base_model():
    cards = b'{"data": [{"id": "base", "max_model_len": 8192}, {"id": "sql", "parent": "base"}, {"id": "lost", "parent": "gone"}]}'
    assert contexts_of(model_entries_of(cards)) == {"base": 8192, "sql": 8192}


async def test_no_client_is_refused_for_an_engine_that_its_chat_does_not_fit(tmp_path: Path):
    sims = [await start_sim("short", msgspec.structs.replace(FAST, max_model_len=256)), await start_sim("long")]
    async with running(tmp_path, sims=sims) as rig:
        text = "The quick brown fox jumps over the lazy dog. " * 60
        answers = [await rig.post(chat(text)) for _ in range(6)] + [await rig.post(chat()) for _ in range(6)]
        assert [answer.status for answer in answers] == [200] * 12
        assert [len(sim.bodies) > 0 for sim in sims] == [True, True]
        assert rig.gateway.fleet.context_tokens(MODEL) == FAST.max_model_len
