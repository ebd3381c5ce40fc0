"""KV events on real ZMQ sockets, in a gateway that serves: received, replayed, shown; and prompts tokenized beside the requests."""

import asyncio
import errno
import importlib.util
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson
import pytest
import zmq
from aiohttp import web
from gateway_kit import FAST, MODEL, Rig, Sim, chat, eventually, running, start_sim
from kv_events_kit import BLOCK, CLEARED, Publisher, publishers, silent_endpoint, stored
from test_admin_api import call
from typing_kit import known

from hmas.cli.doctor import Check, check_gateway
from hmas.cli.engines import engine_table
from hmas.controller.config.loader import load_config
from hmas.controller.config.schema import EngineConfig
from hmas.controller.config.section import KvEventsConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.gateway.kv_events import listener, prompt_tokens, service, source
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.server import create_app, start

BEGINNING = "You answer for the bank, in short words. " * 60
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(service, "TICK_S", 0.02)
    monkeypatch.setattr(source, "REPLAY_EVERY_S", 0.0)
    monkeypatch.setattr(listener, "REPLAY_STALLED_S", 0.5)


def ids_of(document: dict[str, Any]) -> list[int]:
    """A tokenizer for the tests: a word is a token, and a role, too."""
    words = [word for message in document["messages"] for word in (f"<{message['role']}>", *message["content"].split())]
    return [sum(ord(letter) * 7**place for place, letter in enumerate(word)) % 50_000 for word in words]


async def start_tokenizing(name: str, *, status: int = 200, delay_s: float = 0.0) -> tuple[Sim, list[dict[str, Any]]]:
    """An embedded engine that has vLLM's `/tokenize`, too."""
    asked: list[dict[str, Any]] = []

    async def tokenize(request: web.Request) -> web.Response:
        document = orjson.loads(await request.read())
        asked.append(document)
        await asyncio.sleep(delay_s)
        return web.json_response({"count": 0, "max_model_len": 4096, "tokens": ids_of(document)}, status=status)

    model = EngineModel(FAST)
    app = create_app(model, MODEL, name)
    app.router.add_post("/tokenize", tokenize)
    runner, port = await start(app, port=0, grace_s=0.05)
    return Sim(name, model, runner, port), asked


def engine(sim: Sim, publisher: Publisher | None = None, **fields: Any) -> EngineConfig:
    events = None
    if publisher is not None:
        events = KvEventsConfig(endpoint=publisher.endpoint, replay_endpoint=publisher.replay_endpoint, topic=publisher.topic)
    return EngineConfig(name=sim.name, url=sim.url, **{"kv_events": events, **fields})


def state(rig: Rig, name: str = "one") -> dict[str, Any]:
    return known(known(rig.gateway.kv_events).report(name))


async def until(rig: Rig, wanted: str, *, blocks: int | None = None, name: str = "one") -> None:
    await eventually(lambda: state(rig, name)["state"] == wanted and blocks in (None, state(rig, name)["blocks"]), 10.0)


async def checked(rig: Rig) -> Check:
    """What `hmas doctor` finds of the events."""
    status = await call(rig.operator.status)
    return next(check for check in check_gateway(rig.gateway.config, status, "") if check.name == "KV events of one")


async def test_events_arrive_and_what_was_missed_is_fetched(tmp_path: Path):
    tokens = list(range(BLOCK * 6))
    sim = await start_sim("one")
    async with publishers(topic="kv") as (publisher,):
        await publisher.publish(stored(tokens[:32]), lost=True)
        async with running(tmp_path, sims=[sim], engines_config=[engine(sim, publisher)]) as rig:
            await until(rig, "live", blocks=2)
            assert publisher.asked == [0]
            await publisher.publish(stored(tokens[:48], start=32))
            await until(rig, "live", blocks=3)
            await publisher.publish(stored(tokens[:64], start=48), lost=True)
            await publisher.publish(stored(tokens[:80], start=64))
            await until(rig, "live", blocks=5)
            assert 2 in publisher.asked
            publisher.restart()
            await publisher.publish(stored(tokens[:16]))
            await until(rig, "live", blocks=1)
            assert state(rig)["restarts"] == 1
            await publisher.publish(CLEARED)
            await until(rig, "live", blocks=0)
            shown = await call(rig.operator.engines)
            assert shown[0]["kv_events"]["state"] == "live"
            assert "live, 0 blocks, newest" in engine_table(shown)
            assert (await checked(rig)).state == "OK"
            await eventually(lambda: "one" in known(rig.gateway.kv_events).index.complete)
            metrics = (await rig.get("/metrics")).body.decode()
    for line in ('hmas_kv_events_live{instance="one"} 1.0', 'hmas_kv_events_total{instance="one",kind="restarts"} 1.0'):
        assert line in metrics


async def test_what_was_missed_is_fetched_later_where_no_socket_can_be_opened(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(source, "REPLAY_AGAIN_S", 0.05)
    opened: Callable[..., Any] = zmq.Context.socket
    refused: list[int] = []

    def scarce(self, kind: int, *given):
        if kind == zmq.DEALER and not refused:
            refused.append(kind)
            raise zmq.ZMQError(errno.EMFILE)
        return opened(self, kind, *given)

    tokens = list(range(BLOCK * 6))
    sim = await start_sim("one")
    async with publishers() as (publisher,):
        await publisher.publish(stored(tokens[:16]), lost=True)
        async with running(tmp_path, sims=[sim], engines_config=[engine(sim, publisher)]) as rig:
            await until(rig, "live", blocks=1)
            monkeypatch.setattr(zmq.Context, "socket", scarce)
            await publisher.publish(stored(tokens[:32], start=16), lost=True)
            await publisher.publish(stored(tokens[:48], start=32))
            await eventually(lambda: refused)
            await publisher.publish(stored(tokens[:64], start=48))
            await until(rig, "live", blocks=4)


async def test_a_look_at_events_that_fails_ends_neither_them_nor_the_gateway(tmp_path: Path, monkeypatch):
    failed: list[str] = []
    tick = source.KvSource.tick

    def fails_once(self, *given, **named):
        if not failed:
            failed.append(self.name)
            raise RuntimeError("once")
        return tick(self, *given, **named)

    monkeypatch.setattr(source.KvSource, "tick", fails_once)
    sim = await start_sim("one")
    async with publishers() as (publisher,), running(tmp_path, sims=[sim], engines_config=[engine(sim, publisher)]) as rig:
        await eventually(lambda: "one" in known(rig.gateway.kv_events).index.complete)
        assert failed == ["one"]


async def test_engines_that_connect_share_an_endpoint_by_topic(tmp_path: Path):
    sims = [await start_sim("one"), await start_sim("two")]
    async with publishers() as (free,):
        port = free.endpoint.rpartition(":")[2]
    place = f"tcp://*:{port}"
    configs = [engine(sim, kv_events=KvEventsConfig(endpoint=place, topic=sim.name)) for sim in sims]
    address = f"tcp://127.0.0.1:{port}"
    async with running(tmp_path, sims=sims, engines_config=configs) as rig, publishers(bind=False, endpoint=address) as (publisher,):
        tokens = list(range(64))
        for number in range(200):
            for topic in ("one", "two", "other"):
                publisher.topic = topic
                event = stored(tokens[: 32 if topic == "one" else 64])
                await publisher.publish(*([event] if number == 0 else []), sequence=number)
            if number > 2 and all(state(rig, name)["sequence"] is not None for name in ("one", "two")):
                break
            await asyncio.sleep(0.01)
        # A subscriber that joins late has missed the first messages, and has no replay.
        publisher.topic = "one"
        await publisher.publish(CLEARED, stored(tokens[:32]))
        await until(rig, "live", blocks=2, name="one")
        assert state(rig, "two")["state"] in ("partial", "live")


async def test_a_chat_goes_where_the_engine_says_that_its_beginning_is(tmp_path: Path):
    sims, asked = [], []
    for name in ("one", "two"):
        sim, of_sim = await start_tokenizing(name)
        sims.append(sim)
        asked.append(of_sim)
    async with publishers(2) as both:
        engines = [engine(sim, publisher) for sim, publisher in zip(sims, both, strict=True)]
        async with running(tmp_path, sims=sims, engines_config=engines) as rig:

            async def place(question: str) -> tuple[str, float]:
                answer = await rig.post(chat(BEGINNING + question, tokens=2))
                told = (await rig.admin("GET", f"/admin/requests/{answer.headers['x-request-id']}")).json["attempts"][0]
                return told["instance"], {one["scorer"]: one["score"] for one in told["scores"]}.get("prefix", 0.0)

            await until(rig, "live", name="two")
            await both[1].publish(stored(ids_of(chat("Another prompt " * 200))))
            await until(rig, "live", name="two", blocks=25)
            tokens = known(rig.gateway.kv_events).tokens
            first, _ = await place("What is new?")
            assert first == "one", "nothing is known of it"
            await eventually(lambda: tokens.results["done"] == 1)
            assert [document["model"] for document in (*asked[0], *asked[1])] == [MODEL]
            prompt = ids_of(chat(BEGINNING + "What else?"))
            await both[1].publish(stored(prompt))
            await until(rig, "live", name="two", blocks=25 + len(prompt) // BLOCK)
            second, score = await place("What else?")
            assert (second, score > 0.5) == ("two", True), "the engine says so, and not what was sent"
            both_asked = len(asked[0]) + len(asked[1])
            await both[1].publish(CLEARED)
            await until(rig, "live", name="two", blocks=0)
            third, score = await place("And then?")
            assert (third, score) == ("one", 0.0)
            assert len(asked[0]) + len(asked[1]) == both_asked, "all of its whole pieces of text are known"


@pytest.mark.parametrize(("status", "delay_s", "result"), [(404, 0.0, "refused"), (400, 0.0, "refused"), (200, 5.0, "failed")])
async def test_an_engine_that_does_not_tokenize_costs_no_request_any_time(tmp_path: Path, monkeypatch, status, delay_s, result):
    monkeypatch.setattr(prompt_tokens, "TIMEOUT_S", 0.2)
    sim, asked = await start_tokenizing("one", status=status, delay_s=delay_s)
    other = await start_sim("two")
    async with publishers() as (publisher,):
        await publisher.publish(stored(list(range(32))), lost=True)
        async with running(tmp_path, sims=[sim, other], engines_config=[engine(sim, publisher), engine(other)]) as rig:
            await until(rig, "live", blocks=2)
            for number in range(3):
                begun_s = perf_counter()
                assert (await rig.post(chat(f"{number} " + BEGINNING, tokens=2))).status == 200
                assert perf_counter() - begun_s < 2.0
            tokens = known(rig.gateway.kv_events).tokens
            await eventually(lambda: tokens.results.total() == 3, 10.0)
            if status == 404:
                assert (len(asked), tokens.results) == (1, {"refused": 1, "failed": 2})
            else:
                assert tokens.results == {result: 3}


async def test_what_the_exact_index_cannot_know_is_not_tokenized(tmp_path: Path):
    sim, asked = await start_tokenizing("one")
    other = await start_sim("two")
    async with publishers() as (publisher,):
        await publisher.publish(stored(list(range(32))), lost=True)
        async with running(tmp_path, sims=[sim, other], engines_config=[engine(sim, publisher), engine(other)]) as rig:
            await until(rig, "live", blocks=2)
            picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
            content = [{"type": "text", "text": BEGINNING}, picture]
            for document in (
                chat(BEGINNING, cache_salt="s"),
                chat("short"),
                chat("x") | {"messages": [{"role": "user", "content": content}]},
                chat(BEGINNING * 120),
            ):
                assert (await rig.post(document)).status in (200, 400)
            assert (await rig.post({"model": MODEL, "prompt": [7] * 400, "max_tokens": 2}, "/v1/completions")).status == 200
            await eventually(lambda: known(rig.gateway.kv_events).tokens.results == {"done": 1})
            assert asked == [], "token ids are taken as they are"


@pytest.mark.slow
@pytest.mark.long
async def test_garbage_and_floods_do_not_hold_up_the_gateway(tmp_path: Path):
    sim = await start_sim("one")
    async with publishers() as (publisher,), running(tmp_path, sims=[sim], engines_config=[engine(sim, publisher)]) as rig:
        await until(rig, "live")
        longest_s, done = 0.0, asyncio.Event()

        async def watch() -> None:
            nonlocal longest_s
            while not done.is_set():
                before_s = perf_counter()
                await asyncio.sleep(0)
                longest_s = max(longest_s, perf_counter() - before_s)

        hashes = [number.to_bytes(32, "big") for number in range(20_000)]
        large = {"type": "BlockRemoved", "block_hashes": hashes}
        many = stored(list(range(BLOCK * 4000)))
        watcher = asyncio.create_task(watch())
        for number in range(8):
            await publisher.publish(large if number % 2 else many)
            await asyncio.sleep(0)
        await eventually(lambda: state(rig)["messages"] + state(rig)["replayed"] >= 4, 20.0)
        assert (await rig.post(chat(tokens=2))).status == 200
        done.set()
        await watcher
        assert longest_s < 0.3, "50 ms on a machine of its own; here engine, client and publisher share the loop"
        await publisher.raw(b"", b"short", b"")
        await eventually(lambda: state(rig)["state"] == "off", 20.0)
        assert state(rig)["faults"] == {"format": 1}
        found = await checked(rig)
        assert (found.state, found.found.startswith("off, 0 blocks")) == ("WARN", True)
        events = [event for event in await call(rig.operator.events) if event["kind"] == "kv_events.fault"]
        assert [(event["subject"], event["severity"]) for event in events] == [("one", "warning")]
        assert (await rig.post(chat(tokens=2))).status == 200


async def test_without_an_engine_there_the_rest_serves_and_the_events_come_later(tmp_path: Path):
    sim = await start_sim("one")
    with silent_endpoint() as endpoint, silent_endpoint() as replay:
        config = engine(sim, kv_events=KvEventsConfig(endpoint=endpoint, replay_endpoint=replay))
        async with running(tmp_path, sims=[sim], engines_config=[config]) as rig:
            fleet = rig.gateway.fleet
            fleet.instances["one"].entries += [{"id": "sql", "parent": MODEL}]
            assert [fleet.adapter(model) for model in (MODEL, "sql", "unknown")] == ["", "sql", ""]
            assert (await rig.post(chat(tokens=2))).status == 200
            assert state(rig)["state"] == "replaying"
            async with publishers(endpoint=endpoint) as (publisher,):
                for _ in range(100):
                    await publisher.publish(stored(list(range(32))))
                    if state(rig)["blocks"]:
                        break
                    await asyncio.sleep(0.1)
                assert state(rig)["blocks"] == 2


FILE = """
gateway: {{no_auth: true}}
engines:
  - name: a
    url: http://127.0.0.1:1
    kv_events: {first}
  - name: b
    url: http://127.0.0.1:2
    kv_events: {second}
"""


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("{endpoint: 'host:5557'}", "null", "engines[0].kv_events"),
        ("{endpoint: 'tcp://h:99999'}", "null", "port 99999; allowed: 1 to 65535"),
        ("{endpoint: 'tcp://h:1', replay_endpoint: 'tcp://*:2'}", "null", "replay_endpoint"),
        ("{endpoint: 'tcp://*:1'}", "{endpoint: 'tcp://*:1'}", "for each of them a topic of its own"),
        ("{endpoint: 'tcp://*:1', topic: x}", "{endpoint: 'tcp://*:1'}", "engines[1].kv_events.topic"),
        ("{topic: x}", "null", "endpoint"),
    ],
)
def test_mistakes_in_the_configuration_are_named(tmp_path: Path, first, second, words):
    path = tmp_path / "hmas.yaml"
    path.write_text(FILE.format(first=first, second=second))
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), {})
    assert words in str(caught.value)


async def test_an_endpoint_that_cannot_be_bound_and_a_missing_package_are_named(tmp_path: Path, monkeypatch):
    sim = await start_sim("one")
    async with publishers() as (publisher,):
        port = publisher.endpoint.rpartition(":")[2]
        config = engine(sim, kv_events=KvEventsConfig(endpoint=f"tcp://*:{port}"))
        with pytest.raises(ConfigError, match=r"engines.one.kv_events.endpoint: .*in use"):
            async with running(tmp_path, sims=[sim], engines_config=[config]):
                pass
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"engines.one.kv_events: the package pyzmq is not installed"):
        async with running(tmp_path, sims=[await start_sim("one")], engines_config=[config]):
            pass
