"""The client's side of the control plugins, against the vLLM plugin's own rooms behind a small door."""

from types import SimpleNamespace

import pytest
from aiohttp import web
from test_vllm_plugin import Policy, Scheduler

from hmas.engines.base import Knobs
from hmas.engines.client import EngineClient
from hmas.engines.control import CONTROL_PATH, ControlRoute, ControlState
from hmas.engines.plugin.hmas_engine_plugin.access import refusal
from hmas.engines.plugin.hmas_engine_plugin.order import OrderError, answer, parse_order
from hmas.engines.plugin.hmas_engine_plugin.vllm.core import handle
from hmas.engines.registry import connect_engine

TOKEN = "t0ken"
METRICS = b"vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n"


class Door:
    """vLLM's routes that an adapter asks for, and the plugin's. `says` replaces the plugin's answer."""

    def __init__(self):
        self.scheduler = Scheduler()
        self.says = None
        self.orders = []
        self.metrics_text = METRICS
        self.url = ""

    async def control(self, request):
        if self.says is not None:
            status, text = self.says
            return web.Response(status=status, text=text)
        if away := refusal(token=TOKEN, authorization=request.headers.get("Authorization"), client=request.remote, origin=None):
            return web.json_response({"error": away[1]}, status=away[0])
        core = SimpleNamespace(scheduler=self.scheduler)
        if request.method == "GET":
            return web.json_response({"engine": "vllm", "engine_version": "0.32.0", **handle(core)})
        try:
            order = parse_order(await request.read())
        except OrderError as error:
            return web.json_response(answer(refused=error.refused), status=400)
        self.orders.append(order)
        done = handle(core, {"knobs": order.knobs})
        return web.json_response(done, status=400 if done["refused"] else 200)

    async def version(self, _request):
        return web.json_response({"version": "0.32.0"})

    async def metrics(self, _request):
        return web.Response(body=self.metrics_text)


@pytest.fixture
async def door():
    door = Door()
    app = web.Application(client_max_size=1 << 20)
    app.router.add_route("*", CONTROL_PATH, door.control)
    app.router.add_get("/version", door.version)
    app.router.add_get("/metrics", door.metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    door.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield door
    await runner.cleanup()


@pytest.fixture
async def route(door):
    client = EngineClient(name="e", url=door.url, api_key=TOKEN)
    yield ControlRoute(client)
    await client.close()


@pytest.fixture
async def engine(door):
    engine = await connect_engine(name="e", url=door.url, api_key="another", control_token=TOKEN)
    yield engine
    await engine.close()


async def test_an_engine_with_the_plugin(door, engine):
    assert engine.capabilities.live_knobs == ("n_run", "token_budget")
    assert engine.capabilities.control == "live: n_run, token_budget"
    assert engine.capabilities.priority
    snapshot = await engine.snapshot(1.0)
    assert (snapshot.max_num_seqs, snapshot.max_num_seqs_ceiling, snapshot.max_num_batched_tokens_ceiling) == (8, 8, 512)
    assert (await engine.apply_knobs(Knobs(n_run=3, token_budget=64))).applied == {"n_run": 3, "token_budget": 64}
    snapshot = await engine.snapshot(1.1)
    assert (snapshot.max_num_seqs, snapshot.max_num_seqs_ceiling) == (3, 8)
    assert (snapshot.max_num_batched_tokens, snapshot.max_num_batched_tokens_ceiling) == (64, 512)


async def test_one_number_is_no_cap_of_several_cores(door, engine):
    door.metrics_text = b"".join(b'vllm:num_requests_running{engine="%d"} 1.0\n' % core for core in range(3))
    snapshot = await engine.snapshot(1.0)
    assert (snapshot.running, snapshot.max_num_seqs, snapshot.max_num_seqs_ceiling) == (3, 24, 24)
    assert engine.capabilities.live_knobs == ("token_budget",)
    assert engine.capabilities.control.startswith("live: token_budget; n_run: 3 data-parallel engine cores")
    report = await engine.apply_knobs(Knobs(n_run=3, token_budget=64))
    assert (report.applied, set(report.refused)) == ({"token_budget": 64}, {"n_run"})
    assert set((await engine.apply_knobs(Knobs(n_run=3))).refused) == {"n_run"}
    assert [order.knobs for order in door.orders] == [{"token_budget": 64}]
    door.metrics_text = METRICS
    assert (await engine.snapshot(1.1)).max_num_seqs == 8
    assert engine.capabilities.live_knobs == ("n_run", "token_budget")


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-Inf", b"1e999"])
async def test_a_metric_that_is_no_finite_number_counts_as_not_said(door, engine, value):
    door.metrics_text = METRICS + b"vllm:kv_cache_usage_perc %b\nvllm:num_preemptions_total %b\n" % (value, value)
    snapshot = await engine.snapshot(1.0)
    assert (snapshot.healthy, snapshot.kv_usage, snapshot.preemptions_total) == (True, None, 0)
    door.metrics_text = b"vllm:num_requests_running %b\n" % value
    snapshot = await engine.snapshot(2.0)
    assert not snapshot.healthy
    assert "without vllm:num_requests_running" in snapshot.detail


async def test_an_engine_whose_queue_goes_by_arrival_gets_no_priorities(door):
    door.scheduler.policy = Policy.FCFS
    engine = await connect_engine(name="e", url=door.url, control_token=TOKEN)
    assert not engine.capabilities.priority
    assert engine.capabilities.live_knobs == ("n_run", "token_budget")
    assert "priority: the queue's order is fcfs; start vLLM with --scheduling-policy priority" in engine.capabilities.control
    await engine.close()


async def test_a_plugin_of_another_version_is_read(door, route):
    older = '{"engine": "vllm", "engine_version": "0.32.0", "plugin_version": "0.2.0", "knobs": {}, "actions": ["evict"], "absent": {}}'
    door.says = (200, older)
    assert await route.read() == ControlState(engine="vllm", engine_version="0.32.0", plugin_version="0.2.0")
    door.says = (200, '{"applied": {"n_run": 3}, "refused": {}, "reprioritized": [], "evicted": []}')
    assert (await route.apply(Knobs(n_run=3))).applied == {"n_run": 3}


async def test_the_budgets_that_a_plugin_takes_are_known(door):
    budget = '"token_budget": {"value": 8192, "min": 128, "max": 8192, "start": 8192, "step": 64}'
    door.says = (200, f'{{"engine": "sglang", "engine_version": "0.5", "plugin_version": "0.3.0", "knobs": {{{budget}}}}}')
    engine = await connect_engine(name="e", url=door.url, control_token=TOKEN)
    assert (engine.capabilities.budget_least, engine.capabilities.budget_step) == (128, 64)
    await engine.close()


async def test_knobs_that_somebody_else_has_turned_are_seen_in_time(door, engine):
    await engine.snapshot(1.0)
    door.scheduler.max_num_active_reqs = 5
    assert (await engine.snapshot(2.0)).max_num_seqs == 8
    assert (await engine.snapshot(9.0)).max_num_seqs == 5


async def test_one_refused_knob_does_not_take_the_others_with_it(door, engine):
    report = await engine.apply_knobs(Knobs(n_run=3, token_budget=513))
    assert report.applied == {"n_run": 3}
    assert report.refused == {"token_budget": "513; allowed: 1 to 512"}
    assert len(door.orders) == 2


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ((404, "nothing"), "no control plugin"),
        ((401, ""), "token"),
        ((403, ""), "token"),
        ((503, '{"error": "the engine did not answer"}'), "the engine did not answer"),
        ((200, "<html>"), "no control document"),
        ((200, '{"knobs": 3}'), "no control document"),
    ],
)
async def test_an_engine_whose_plugin_cannot_be_used_is_well_and_says_why(door, says, words):
    door.says = says
    engine = await connect_engine(name="e", url=door.url, control_token=TOKEN)
    snapshot = await engine.snapshot(1.0)
    assert snapshot.healthy
    assert snapshot.max_num_seqs_ceiling is None
    assert engine.capabilities.live_knobs == ()
    assert words in engine.capabilities.control
    assert engine.capabilities.control.startswith("the gateway's window holds n_run")
    assert words in (await engine.apply_knobs(Knobs(n_run=3))).refused["n_run"]
    await engine.close()


async def test_a_plugin_that_is_silent_for_a_while_is_still_there(door, engine):
    door.says = (503, "{}")
    snapshot = await engine.snapshot(9.0)
    assert (snapshot.healthy, snapshot.max_num_seqs_ceiling) == (True, 8)
    assert "does not answer" in engine.capabilities.control
    assert engine.capabilities.live_knobs
    assert (await engine.apply_knobs(Knobs(n_run=3))).refused
    door.says = None
    await engine.snapshot(20.0)
    assert engine.capabilities.control.startswith("live")


@pytest.mark.parametrize("says", [(200, "{"), (200, "[]"), (400, "no"), (500, ""), (200, '{"applied": {"n_run": "3"}}')])
async def test_an_order_that_nobody_understood_was_not_obeyed(door, route, says):
    door.says = says
    report = await route.apply(Knobs(n_run=3))
    assert (report.applied, set(report.refused)) == ({}, {"n_run"})


async def test_a_knob_of_which_nothing_is_said_counts_as_refused(door, route):
    door.says = (200, '{"applied": {"n_run": 3}}')
    report = await route.apply(Knobs(n_run=3, token_budget=64))
    assert (report.applied, set(report.refused)) == ({"n_run": 3}, {"token_budget"})


async def test_an_engine_that_is_gone_refuses(unused_tcp_port):
    client = EngineClient(name="e", url=f"http://127.0.0.1:{unused_tcp_port}")
    route = ControlRoute(client)
    assert isinstance(await route.read(), str)
    assert set((await route.apply(Knobs(n_run=3))).refused) == {"n_run"}
    await client.close()
