"""Engines that join and leave a gateway while it serves."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from gateway_kit import FAST, MODEL, Rig, Sim, chat, eventually, running, start_sim

from hmas.cli import reloads
from hmas.cli.reloads import Reloads
from hmas.controller.config.loader import load_config
from hmas.controller.config.reload import differences, fleet_change, taken
from hmas.controller.config.schema import Config, EngineConfig
from hmas.controller.config.section import KvEventsConfig
from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.gateway.instances import dns_discovery, membership
from hmas.controller.gateway.metrics_page import MetricsPage
from hmas.controller.routing.registry import make_router
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

SLOW = msgspec.structs.replace(FAST, step_ms=20.0)


@pytest.fixture(autouse=True)
def leaves_soon(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(membership, "LEAVES_AFTER_S", 0.05)


def engine(name: str, **fields: object) -> EngineConfig:
    return msgspec.convert({"name": name, "url": f"http://{name}:8000"} | fields, EngineConfig)


def of(sim: Sim, **fields: object) -> EngineConfig:
    return engine(sim.name, url=sim.url, **fields)


def reload(rig: Rig, *engines: EngineConfig) -> None:
    rig.gateway.reload(msgspec.structs.replace(rig.gateway.config, engines=list(engines)))


def told(rig: Rig, kind: str) -> list[tuple[str, str]]:
    return [(event["subject"], event["after"]) for event in rig.events(kind)]


async def shown(rig: Rig) -> list[str]:
    return [item["name"] for item in (await rig.admin("GET", "/admin/status")).json["instances"]]


def test_engines_of_other_settings_and_those_with_kv_events_take_a_restart():
    events = KvEventsConfig(endpoint="tcp://d:5557")
    before = Config(engines=[engine("a"), engine("b"), engine("c")])
    after = Config(engines=[engine("a", n_run_max=7), engine("c"), engine("d", kv_events=msgspec.to_builtins(events)), engine("e")])
    found = fleet_change(before, after)
    assert [one.name for one in found.joining] == ["e"]
    assert [one.name for one in found.leaving] == ["b"]
    assert found.restart == ("a", "d")
    assert [(one.setting, one.live) for one in differences(before, after)] == [
        ("engines.e", True),
        ("engines.b", True),
        ("engines.a", False),
        ("engines.d", False),
    ]
    assert [one.name for one in taken(before, after).engines] == ["a", "c", "e"]
    assert fleet_change(before, before) == ((), (), ())


def scheduler(*names: str) -> Scheduler:
    specs = [InstanceSpec(name=name, capacity_n_run=1) for name in names]
    return Scheduler(settings=SchedulerSettings(), instances=specs, router=make_router("least-loaded"), policy="fcfs")


def submit(made: Scheduler, request_id: str) -> None:
    request = Request(id=request_id, tenant="t", model="m", arrival_s=0.0, prompt_tokens=10)
    made.submit(request, Estimates(slo=Slo(ttft_ms=1000, tpot_ms=50), output_tokens=5, output_tokens_upper=9), 0.0)


def test_a_scheduler_takes_an_instance_in_and_out_with_all_requests_in_place():
    made = scheduler("a")
    for number in range(3):
        submit(made, f"r{number}")
    assert [one.instance for one in made.dispatch(0.0)] == ["a"]
    made.add_instance(InstanceSpec(name="b", capacity_n_run=1), 0.1)
    assert made.dispatch(0.1) == []
    made.set_draining("b", draining=False)
    assert [one.instance for one in made.dispatch(0.2)] == ["b"]
    with pytest.raises(SchedulingError, match="instance 'a' has 1 requests in flight; allowed: none"):
        made.remove_instance("a", 0.3)
    with pytest.raises(SchedulingError, match="instance 'b' is there already"):
        made.add_instance(InstanceSpec(name="b", capacity_n_run=1), 0.3)
    made.end("r0", OutcomeKind.COMPLETED, 0.4)
    made.set_draining("a", draining=True)
    made.remove_instance("a", 0.5)
    assert list(made.instances) == ["b"]
    assert made.dispatch(0.5) == []
    made.end("r1", OutcomeKind.COMPLETED, 0.6)
    assert [(one.entry.request.id, one.instance) for one in made.dispatch(0.6)] == [("r2", "b")]
    made.check_conservation()


def test_without_any_instance_requests_wait_for_the_next_one():
    made = scheduler("a")
    made.set_models("a", frozenset({"m"}))
    made.remove_instance("a", 0.0)
    submit(made, "r0")
    assert made.dispatch(0.1) == []
    made.add_instance(InstanceSpec(name="b", capacity_n_run=1), 0.2)
    made.set_models("b", frozenset({"m"}))
    made.set_draining("b", draining=False)
    assert [one.instance for one in made.dispatch(0.3)] == ["b"]
    made.check_conservation()


async def test_an_engine_that_joins_serves(tmp_path: Path):
    new = await start_sim("sim-2", model="another")
    async with running(tmp_path) as rig:
        first = of(rig.sims[0])
        try:
            assert (await rig.post(chat() | {"model": "another"})).status == 404
            reload(rig, first, of(new))
            await eventually(lambda: told(rig, "engine.joins") == [("sim-2", "serving")])
            answer = await rig.post(chat() | {"model": "another"})
            assert (answer.status, answer.headers["x-hmas-instance"]) == (200, "sim-2")
            assert await shown(rig) == ["sim-1", "sim-2"]
            (event,) = rig.events("config")
            assert (event["after"], event["reason"]) == ("taken: engines.sim-2", "")
            assert rig.balanced()
        finally:
            await new.runner.cleanup()


async def test_an_engine_that_leaves_ends_its_requests_and_gets_no_more(tmp_path: Path):
    sims = [await start_sim("sim-1", SLOW), await start_sim("sim-2", SLOW)]
    async with running(tmp_path, sims=sims) as rig:
        first, second = map(of, sims)
        long = [asyncio.create_task(rig.post(chat(f"long {number}", tokens=40))) for number in range(2)]
        await eventually(lambda: all(sim.model.running == 1 for sim in sims))
        reload(rig, second)
        later = await asyncio.gather(*(rig.post(chat(f"later {number}", tokens=2)) for number in range(4)))
        assert [answer.headers["x-hmas-instance"] for answer in later] == ["sim-2"] * 4
        assert await shown(rig) == ["sim-1", "sim-2"]
        assert b'hmas_engine_up{instance="sim-1"} 1.0' in (await rig.get("/metrics")).body
        ended = await asyncio.gather(*long)
        await eventually(lambda: told(rig, "engine.leaves")[-1:] == [("sim-1", "gone")])
        assert {answer.headers["x-hmas-instance"] for answer in ended} == {"sim-1", "sim-2"}
        assert all(answer.status == 200 for answer in (*ended, *later))
        assert await shown(rig) == ["sim-2"]
        page = MetricsPage(rig.gateway).read()[0]
        assert b'hmas_engine_up{instance="sim-2"} 1.0' in page
        assert b'hmas_engine_up{instance="sim-1"}' not in page
        assert (await rig.post(chat(tokens=2))).status == 200
        reload(rig, second, first)
        await eventually(lambda: told(rig, "engine.joins") == [("sim-1", "serving")])
        assert await shown(rig) == ["sim-2", "sim-1"]
        assert rig.balanced()


async def test_an_engine_that_comes_back_before_it_has_left_stays(tmp_path: Path):
    sims = [await start_sim("sim-1", SLOW), await start_sim("sim-2", SLOW)]
    async with running(tmp_path, sims=sims) as rig:
        first, second, changed = of(sims[0]), of(sims[1]), of(sims[0], n_run_max=3)
        long = [asyncio.create_task(rig.post(chat(f"long {number}", tokens=30))) for number in range(2)]
        await eventually(lambda: all(sim.model.running == 1 for sim in sims))
        for other, after in ((first, "serving"), (changed, "waiting")):
            for engines in ((second,), (second, changed), (second, other)):
                reload(rig, *engines)
            assert told(rig, "engine.joins")[-1] == ("sim-1", after)
        await asyncio.gather(*long)
        await eventually(lambda: told(rig, "engine.joins")[-1] == ("sim-1", "serving"))
        assert rig.gateway.fleet.instances["sim-1"].config == changed
        reload(rig, changed)
        await eventually(lambda: told(rig, "engine.leaves")[-1:] == [("sim-2", "gone")])
        assert await shown(rig) == ["sim-1"]


async def test_an_engine_that_cannot_be_connected_is_told_and_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    new = await start_sim("sim-2")
    async with running(tmp_path) as rig:
        try:
            engines = of(rig.sims[0]), of(new, api_key_env="KEY_OF_SIM_2")
            reload(rig, *engines)
            await eventually(lambda: told(rig, "engine.joins") == [("sim-2", "refused")])
            assert rig.events("engine.joins")[0]["reason"] == (
                "engines.sim-2.api_key_env: the environment has no KEY_OF_SIM_2, or it is empty"
            )
            monkeypatch.setenv("KEY_OF_SIM_2", "x")
            reload(rig, *engines)
            await eventually(lambda: told(rig, "engine.joins")[-1] == ("sim-2", "serving"))
        finally:
            await new.runner.cleanup()


async def test_the_last_engine_may_leave(tmp_path: Path):
    async with running(tmp_path) as rig:
        first = of(rig.sims[0])
        reload(rig)
        await eventually(lambda: told(rig, "engine.leaves")[-1:] == [("sim-1", "gone")])
        assert (await rig.get("/ready")).status == 503
        assert (await rig.post(chat())).status in (404, 503)
        reload(rig, first)
        await eventually(lambda: told(rig, "engine.joins") == [("sim-1", "serving")])
        assert (await rig.post(chat())).status == 200
        assert rig.balanced()


async def test_an_engine_that_is_dropped_while_it_is_connected_does_not_join(tmp_path: Path):
    released, left = asyncio.Event(), asyncio.Event()

    async def hangs(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.close()
        left.set()

    server = await asyncio.start_server(hangs, "127.0.0.1", 0)
    async with running(tmp_path) as rig, server:
        first = of(rig.sims[0])
        reload(rig, first, engine("slow", url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        reload(rig, first)
        assert told(rig, "engine.leaves") == [("slow", "gone")]
        released.set()
        await asyncio.wait_for(left.wait(), 5)
        assert (await rig.post(chat())).status == 200
        assert await shown(rig) == ["sim-1"]
        assert told(rig, "engine.joins") == []


async def test_an_engine_that_never_answered_hides_nothing_that_others_tell(tmp_path: Path):
    async with running(tmp_path) as rig:
        context = rig.gateway.fleet.context_tokens(MODEL)
        assert context > 0
        reload(rig, of(rig.sims[0]), engine("loads", url="http://127.0.0.1:1"))
        await eventually(lambda: told(rig, "engine.joins") == [("loads", "joined, and does not answer yet")])
        assert rig.gateway.fleet.context_tokens(MODEL) == context
        assert (await rig.post(chat() | {"model": "mistyped"})).status == 404


async def test_what_only_an_engine_that_has_left_could_serve_is_given_up(tmp_path: Path):
    other = await start_sim("sim-2", SLOW, model="another")
    async with running(tmp_path, sims=[await start_sim("sim-1"), other]) as rig:
        first, second = map(of, rig.sims)
        reload(rig, first, second)
        rig.gateway.scheduler.set_controls("sim-2", Controls(n_run=1))
        asks = [asyncio.create_task(rig.post(chat(f"ask {number}", tokens=30) | {"model": "another"})) for number in range(2)]
        await eventually(lambda: rig.gateway.scheduler.queued == 1)
        reload(rig, first)
        answers = await asyncio.gather(*asks)
        assert sorted(answer.status for answer in answers) == [200, 503]
        assert rig.balanced()


async def test_a_refusal_of_an_engine_that_has_left_changes_nothing(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.gateway.fleet.request_failed("gone", 0.0, "it refused", b"")
        assert rig.events("engine.circuit") == []


@asynccontextmanager
async def watched(follows: Reloads) -> AsyncIterator[None]:
    watching = [asyncio.create_task(work) for work in follows.watches()]
    try:
        yield
    finally:
        for task in watching:
            task.cancel()


async def test_what_changed_while_the_gateway_started_is_taken_once_it_serves(tmp_path: Path):
    new = await start_sim("sim-2")
    async with running(tmp_path) as rig:
        try:
            config = rig.gateway.config
            later = msgspec.structs.replace(config, engines=[of(rig.sims[0]), of(new)])
            follows = Reloads(config, lambda: later, SystemClock())
            follows.read_again()
            async with watched(follows):
                follows.serves(rig.gateway)
                await eventually(lambda: told(rig, "engine.joins") == [("sim-2", "serving")])
        finally:
            await new.runner.cleanup()


def sources(rig: Rig, name: str) -> list[tuple[str, str, str]]:
    found = [*rig.events("engine.joins"), *rig.events("engine.leaves")]
    return [(event["after"], event["source"], event["reason"]) for event in found if event["subject"] == name]


class Files:
    """A configuration and lists of engines on disk, and what follows them for a gateway."""

    def __init__(self, folder: Path, rig: Rig) -> None:
        self._folder = folder
        engines = [{"name": "sim-1", "url": rig.sims[0].url}]
        self._own = {"engines": engines, "scheduler": {"policy": "fcfs"}, "agents": {"stale_after_s": 5}}
        self.reads = 0

    def write(self, name: str, text: str) -> str:
        # Renamed, so that no half of it is read.
        (self._folder / "new").write_text(text)
        return str((self._folder / "new").replace(self._folder / name))

    def list(self, name: str, *sims: Sim) -> str:
        return self.write(name, json.dumps({"engines": [{"name": sim.name, "url": sim.url} for sim in sims]}))

    def configure(self, **settings: object) -> None:
        self.write("hmas.yaml", json.dumps(self._own | settings))

    def read(self) -> Config:
        config = load_config(str(self._folder / "hmas.yaml"), {})
        self.reads += 1  # once no later change can get into it
        return config

    @asynccontextmanager
    async def followed(self, rig: Rig) -> AsyncIterator[Reloads]:
        follows = Reloads(self.read(), self.read, SystemClock())
        follows.serves(rig.gateway)
        async with watched(follows):
            yield follows


@asynccontextmanager
async def more(*names: str) -> AsyncIterator[list[Sim]]:
    sims = [await start_sim(name) for name in names]
    try:
        yield sims
    finally:
        for sim in sims:
            await sim.runner.cleanup()


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reloads, "WATCH_S", 0.02)
    monkeypatch.setattr(dns_discovery, "LOOK_S", 0.02)


@pytest.mark.usefixtures("looks_often")
async def test_events_name_what_has_changed_the_engines(tmp_path: Path):
    async with more("sim-2", "sim-3") as (by_file, by_name), running(tmp_path) as rig:
        found = f"vllm-127.0.0.1-{by_name.port}"
        files = Files(tmp_path, rig)
        settings = {"engines_file": files.list("engines.json")}
        files.configure(engines_dns=[{"name": "vllm", "url": by_name.url}], **settings)
        async with files.followed(rig) as follows:
            await eventually(lambda: sources(rig, found) == [("serving", "dns", "DNS has changed")])
            await eventually(lambda: files.reads == 2)
            files.list("engines.json", by_file)
            await eventually(lambda: sources(rig, "sim-2") == [("serving", "file", "engines_file has changed")])
            files.write("engines.json", "{}")
            await eventually(lambda: [event["after"] for event in rig.events("config")][-1] == "refused")
            files.list("engines.json")
            await eventually(lambda: sources(rig, "sim-2")[-1] == ("gone", "file", "its requests have ended"))
            assert sources(rig, "sim-2")[-2] == ("leaving", "file", "engines_file has changed")
            assert [event["source"] for event in rig.events("config")] == ["dns", "file", "file", "file"]
            files.configure(**settings)
            follows.read_again()
            await eventually(lambda: sources(rig, found)[-1] == ("gone", "operator", "its requests have ended"))
            assert sources(rig, found)[-2] == ("leaving", "operator", "reload")


@pytest.mark.usefixtures("looks_often")
async def test_another_file_of_engines_is_watched_instead_of_the_former_one(tmp_path: Path):
    async with more("sim-2") as (new,), running(tmp_path) as rig:
        files = Files(tmp_path, rig)
        files.configure(engines_file=files.list("old.json"))
        async with files.followed(rig) as follows:
            await eventually(lambda: files.reads == 2)
            files.configure(engines_file=files.list("other.json"))
            follows.read_again()
            await eventually(lambda: [event["after"] for event in rig.events("config")] == ["taken: engines_file"])
            await eventually(lambda: files.reads == 4)
            files.list("old.json", new)
            files.list("other.json", new)
            await eventually(lambda: told(rig, "engine.joins") == [("sim-2", "serving")])
            assert files.reads == 5, "the former file is watched no more"
            files.configure()
            follows.read_again()
            await eventually(lambda: told(rig, "engine.leaves")[-1:] == [("sim-2", "gone")])
            files.configure(engines_file=files.list("third.json", new))
            follows.read_again()
            await eventually(lambda: told(rig, "engine.joins")[-1:] == [("sim-2", "serving")])
            await eventually(lambda: files.reads == 8)
            assert len(rig.events("config")) == 4, "a file that has not changed since it was read is no change"


@pytest.mark.usefixtures("looks_often")
async def test_a_file_of_engines_that_changes_while_the_gateway_starts_is_read_again(tmp_path: Path):
    async with more("sim-2") as (new,), running(tmp_path) as rig:
        files = Files(tmp_path, rig)
        files.configure(engines_file=files.list("engines.json"))
        follows = Reloads(files.read(), files.read, SystemClock())
        files.list("engines.json", new)
        async with watched(follows):
            follows.serves(rig.gateway)
            await eventually(lambda: told(rig, "engine.joins") == [("sim-2", "serving")])
