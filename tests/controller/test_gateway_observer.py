"""The observer gets every event of a request in order; exporters of installed packages, whose errors disturb nothing."""

import asyncio
import importlib
import json
import os
import tomllib
from pathlib import Path

import pytest
from gateway_kit import Rig, chat, eventually, running
from typing_kit import fenced

from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.observability.observer import Observer, Observers
from hmas.controller.observability.plugins import EVENTS, GROUP, load_exporters
from hmas.controller.runtime.clock import SystemClock

RECIPES = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
RECORDER = """
from hmas.controller.observability.observer import Observer

class Recorder(Observer):
    events = []

    def received(self, request, client_request_id, declared, trace_headers, estimates):
        self.events.append(("received", client_request_id, dict(trace_headers)))

    def queued(self, entry):
        self.events.append(("queued", entry.request.tenant))

    def dispatched(self, dispatch, now_s):
        self.events.append(("dispatched", dispatch.instance))

    def first_token(self, request, instance, overhead_s, now_s):
        self.events.append(("first_token", instance, overhead_s >= 0.0))

    def engine_failed(self, request, instance, reason, now_s):
        self.events.append(("engine_failed", instance))

    def retried(self, request, reason, now_s):
        self.events.append(("retried", bool(reason)))

    def ended(self, completion):
        self.events.append(("ended", completion.outcome.value, completion.status))

    def refused(self, code):
        self.events.append(("refused", code))

    def passed_through(self, status, took_s):
        self.events.append(("passed_through", status, took_s >= 0.0))

    def control_changed(self, before, after, now_s):
        # The ceilings of engines change the settings, too, whenever a poll finds them.
        if before is None or before.policy.value != after.policy.value:
            self.events.append(("control_changed", before and before.policy.value, after.policy.value))

    def agent_rejected(self, agent, reason):
        self.events.append(("agent_rejected", agent, reason))

    async def close(self):
        self.events.append(("close",))
"""
FAILING = """
from hmas.controller.observability.observer import Observer

class Failing(Observer):
    def received(self, *arguments):
        raise OSError("no exporter here")

    def sampled(self, snapshot):
        raise OSError("nor here")

    async def close(self):
        raise OSError("nor at the end")

NAME = "no observer"
"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, module: str, source: str, *points: str) -> None:
    """A distribution as an installer leaves it: a module, and a folder of metadata with the entry points."""
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "\n".join(points) + "\n")
    monkeypatch.syspath_prepend(str(folder))


def recorded() -> list[tuple]:
    return importlib.import_module("recorder_module").Recorder.events


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The events of an installed exporter that records everything."""
    install(monkeypatch, tmp_path / "packages", "recorder_module", RECORDER, "recorder = recorder_module:Recorder")
    events = recorded()
    events.clear()
    return events


async def fault(rig: Rig, name: str) -> None:
    async with rig.session.post(rig.sims[0].url + "/sim/fault", json={"fault": name}) as done:
        assert done.status == 200


async def test_the_events_of_requests_come_in_order(tmp_path: Path, recorder: list[tuple]):
    parent = "00-" + 32 * "a" + "-" + 16 * "b" + "-01"
    async with running(tmp_path, engines=2) as rig:
        assert recorder == [("control_changed", None, "fcfs")]
        recorder.clear()
        await rig.post(chat(tokens=3), headers={"x-request-id": "one", "traceparent": parent})
        served = [
            ("received", "one", {"traceparent": parent}),
            ("queued", "default"),
            ("dispatched", "sim-1"),
            ("first_token", "sim-1", True),
        ]
        assert recorder == [*served, ("ended", "completed", 200)]
        recorder.clear()
        await fault(rig, "reset-before")
        await rig.post(chat(tokens=3))
        assert [event[0] for event in recorder] == [
            "received", "queued", "dispatched", "engine_failed", "retried", "dispatched", "first_token", "ended",
        ]  # fmt: skip
        recorder.clear()
        await rig.admin("POST", "/admin/policy", {"policy": "sjf", "author": "kim", "reason": "test"})
        assert recorder == [("control_changed", "fcfs", "sjf")]
    assert recorder[-1] == ("close",)


async def test_a_request_that_is_refused_at_once_ends_without_a_place_in_the_queue(tmp_path: Path, recorder: list[tuple]):
    settings = SchedulerConfig(policy="fcfs", n_run=1, queue_limit=1, evict_lower_ranked=False, tick_s=0.02)
    async with running(tmp_path, scheduler=settings) as rig:
        blockers = [asyncio.create_task(rig.post(chat("long", tokens=4000)))]
        await eventually(lambda: rig.sims[0].model.running == 1)
        blockers.append(asyncio.create_task(rig.post(chat("waits"))))
        await eventually(lambda: rig.gateway.scheduler.queued == 1)
        recorder.clear()
        assert (await rig.post(chat(), headers={"x-request-id": "late"})).status == 429
        late = [event for event in recorder if event[0] != "first_token"]
        assert late == [("received", "late", {}), ("ended", "rejected", 429), ("refused", "queue_full")]
        for blocker in blockers:
            blocker.cancel()
        await eventually(lambda: not rig.gateway.manager.active)


async def test_requests_that_are_not_queued_and_refusals_are_observed(tmp_path: Path, recorder: list[tuple]):
    async with running(tmp_path) as rig:
        recorder.clear()
        answer = await rig.post({"model": "tiny", "input": "text"}, "/v1/embeddings")
        assert (await rig.post(b"no json")).status == 400
    assert recorder == [("passed_through", answer.status, True), ("refused", "invalid_json"), ("close",)]


async def test_an_exporter_that_fails_disturbs_nothing(tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture):
    points = ("failing = failing_module:Failing", "gone = failing_module:Gone", "other = failing_module:NAME")
    install(monkeypatch, tmp_path / "packages", "failing_module", FAILING, *points)
    async with running(tmp_path) as rig:
        answers = [await rig.post(chat(tokens=2)) for _ in range(3)]
        await eventually(lambda: "exporter failing.sampled has failed" in caplog.text)
        noted = {event["subject"]: (event["after"], event["reason"]) for event in rig.events("exporter")}
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert noted[points[0]] == ("loaded", "")
    assert noted[points[1]][0] == noted[points[2]][0] == "refused"
    assert "AttributeError" in noted[points[1]][1]
    assert "allowed: a class that derives from" in noted[points[2]][1]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert sorted(error.split(" has failed")[0] for error in errors[:-1]) == ["exporter failing.received", "exporter failing.sampled"]
    assert errors[-1] == "closing the exporter Failing failed"


def recipe(language: str) -> str:
    section = RECIPES.read_text().partition("## An exporter\n")[2].partition("\n## ")[0]
    return fenced(section, language)


async def test_the_recipe_of_the_documentation_works(tmp_path: Path, monkeypatch):
    declared = tomllib.loads(recipe("toml"))["project"]["entry-points"][GROUP]
    assert declared == {"json-lines": "my_exporter:JsonLines"}
    install(monkeypatch, tmp_path / "packages", "my_exporter", recipe("python"), "json-lines = my_exporter:JsonLines")
    monkeypatch.setitem(os.environ, "MY_EXPORT", str(tmp_path / "lines"))
    async with running(tmp_path) as rig:
        for name in ("one", "two"):
            await rig.post(chat(tokens=3), headers={"x-request-id": name})
        known = [completion.request_id for completion in await rig.completions()]
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [line["request_id"] for line in lines] == known
    assert {line["output_tokens"] for line in lines} == {3}


def test_no_exporter_is_installed_and_none_is_loaded():
    assert load_exporters() == ({}, {})


def test_an_event_reaches_only_those_that_override_its_method():
    class Deaf(Observer):
        """Listens to nothing."""

    class Refusals(Observer):
        def __init__(self):
            self.codes = []

        def refused(self, code):
            self.codes.append(code)

    listens = Refusals()
    observers = Observers([Deaf(), listens], SystemClock())
    observers.refused("x")
    observers.note("kind", "subject")
    assert listens.codes == ["x"]
    for name in EVENTS:
        assert callable(getattr(observers, name, None)), f"the fan-out passes {name} on"
