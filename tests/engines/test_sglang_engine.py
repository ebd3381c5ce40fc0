"""The SGLang adapter against a real SGLang without the control plugin."""

import asyncio

import orjson
import pytest
from sglang_client import COMPLETIONS, ask, document, prompt, read, rid, start, until, waits
from sglang_server import MAX_RUNNING, TOKEN, served

from hmas.engines.base import Knobs
from hmas.engines.registry import connect_engine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def sglang_url(tmp_path_factory):
    yield from served(tmp_path_factory.mktemp("sglang") / "sglang.log", plugin=False)


@pytest.fixture
async def engine(sglang_url):
    engine = await connect_engine(name="s1", url=sglang_url, control_token=TOKEN)
    assert (await engine.apply_knobs(Knobs(n_run=MAX_RUNNING))).refused == {}
    yield engine
    await engine.close()


async def test_what_it_says_about_itself(engine):
    able, snapshot = engine.capabilities, await engine.snapshot(77.0)
    assert (able.kind, able.version) == ("sglang", "0.5.23")
    assert (able.abort, able.priority, able.load_signals) == (True, True, True)
    assert able.live_knobs == ("n_run",)
    assert able.control.startswith("n_run is live (a raised cap counts when a running request ends); no other knob is: no control plugin")
    assert (snapshot.healthy, snapshot.taken_s, snapshot.kv_capacity_tokens) == (True, 77.0, 16384)
    assert (snapshot.max_num_seqs, snapshot.max_num_seqs_ceiling) == (MAX_RUNNING, MAX_RUNNING)
    assert (snapshot.max_num_batched_tokens, snapshot.max_num_batched_tokens_ceiling) == (512, None)


async def test_load_and_counters(engine):
    before = await engine.snapshot(100.0)
    work = [start(ask(engine, number, prompt(number, 40), 60)) for number in range(3)]
    snapshot = await until(engine, lambda now: now.running == 3)
    assert snapshot.kv_usage > before.kv_usage
    await asyncio.gather(*work)
    await until(engine, lambda now: now.running == 0)
    after = await engine.snapshot(200.0)
    assert after.prompt_tokens_total - before.prompt_tokens_total == 3 * 40
    assert after.generation_tokens_total - before.generation_tokens_total == 3 * 60


async def test_the_lower_priority_goes_first(engine):
    await engine.apply_knobs(Knobs(n_run=1))
    ended = []

    async def queued(number: int, priority: int) -> None:
        # What the client's body says about priority and id does not reach the engine: the gateway has judged it already.
        own = orjson.loads(document(prompt(100 + number, 10), 100 if number == 0 else 2)) | {"priority": -100 * number, "rid": "0"}
        response = await engine.send(COMPLETIONS, orjson.dumps(own), {}, request_id=rid(number), priority=priority)
        assert orjson.loads(await read(response))["id"] == rid(number)
        ended.append(number)

    work = [start(queued(0, 0))]
    await until(engine, lambda now: now.running == 1)
    for number, priority in enumerate([3, -3, 0, 2**40, -(2**40)], start=1):
        work.append(start(queued(number, priority)))
        await until(engine, waits(number))
    await asyncio.gather(*work)
    assert ended == [0, 5, 2, 3, 1, 4]


@pytest.mark.parametrize("where", ["running", "waiting"])
async def test_an_abort_ends_one_request_at_once(engine, where):
    await engine.apply_knobs(Knobs(n_run=2 if where == "running" else 1))
    other = start(ask(engine, 0x10, prompt(200, 10), 200))
    await until(engine, lambda now: now.running == 1)
    # Of two ids of one length neither begins the other, so that SGLang, which compares beginnings, ends one of them.
    response = start(engine.send(COMPLETIONS, document(prompt(201, 10), 2000), {}, request_id=rid(0x100)))
    await until(engine, lambda now: now.running + now.waiting == 2)
    assert await engine.abort(rid(0x100))
    answer = await response
    assert orjson.loads(await read(answer))["choices"][0]["finish_reason"] == "abort"
    assert not other.done()
    assert (await other)["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("request_id", ["", "0", rid(0)[:-1], rid(0) + "0", "req-1", rid(0x10).upper()[:-1] + "X"])
async def test_an_id_that_may_begin_others_is_never_sent(engine, request_id):
    work = start(ask(engine, 0, prompt(210, 10), 40))
    await until(engine, lambda now: now.running == 1)
    assert not await engine.abort(request_id)
    assert (await work)["choices"][0]["finish_reason"] == "length"


async def test_the_cap_holds_and_lowering_it_ends_nobody(engine):
    work = [start(ask(engine, number, prompt(300 + number, 20), 100 + 10 * number)) for number in range(6)]
    await until(engine, lambda now: now.running == 6)
    assert (await engine.apply_knobs(Knobs(n_run=2))).applied == {"n_run": 2}
    assert (await engine.snapshot(0.0)).max_num_seqs == 2
    late = [start(ask(engine, 10 + number, prompt(310 + number, 20), 5)) for number in range(3)]
    await until(engine, lambda now: now.running <= 2)
    while (now := await engine.snapshot(0.0)).waiting:
        assert now.running <= 2
    assert {len(answer["choices"][0]["token_ids"]) for answer in await asyncio.gather(*late)} == {5}
    assert [answer["usage"]["completion_tokens"] for answer in await asyncio.gather(*work)] == [100 + 10 * i for i in range(6)]


async def test_without_the_plugin_a_raised_cap_waits_for_an_end(engine):
    await engine.apply_knobs(Knobs(n_run=1))
    first = start(ask(engine, 0, prompt(320, 20), 100))
    await until(engine, lambda now: now.running == 1)
    second = start(ask(engine, 1, prompt(321, 20), 5))
    await until(engine, lambda now: now.waiting == 1)
    await engine.apply_knobs(Knobs(n_run=4))
    while not first.done():
        assert (await engine.snapshot(0.0)).running <= 1
        assert not second.done()
    await second


async def test_what_stock_sglang_cannot_do_is_refused_in_words(engine):
    report = await engine.apply_knobs(Knobs(n_run=MAX_RUNNING + 1, token_budget=64))
    assert report.applied == {}
    assert report.refused["n_run"] == "SGLang refuses pp_max_micro_batch_size = 9; allowed: 1 to 8"
    assert "hmas-engine-plugin makes it live" in report.refused["token_budget"]


async def test_a_stream_and_its_usage(engine):
    body = document(prompt(400, 10), 5, stream=True, stream_options={"include_usage": True}, return_token_ids=False)
    response = await engine.send(COMPLETIONS, body, {}, request_id=rid(0x77))
    events = (await read(response)).decode().removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]"
    documents = [orjson.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert {document["id"] for document in documents} == {rid(0x77)}
    assert documents[-1]["usage"]["completion_tokens"] == 5


async def test_a_prompt_beyond_the_context_is_its_400(engine):
    response = await engine.send(COMPLETIONS, document(prompt(410, 9000), 5), {}, request_id=rid(1))
    assert response.status == 400, await read(response)
    await response.close()
