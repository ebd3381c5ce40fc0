"""Perception as several processes on a real server: they share the requests, and each learns from all that completes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from redis.asyncio import Redis

from hmas.agents.model_store.card import ModelCard, read_card
from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception.readers import SHIPPED_TAGGER
from hmas.controller.bus.embedded import EmbeddedServer
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.core.messages import (
    EVENTS,
    FEATURES,
    MODELS,
    REQUESTS,
    Completion,
    Event,
    ModelReport,
    RequestFeatures,
    RequestNotice,
)
from hmas.controller.core.types import OutcomeKind, TaskType
from hmas.controller.runtime.clock import SystemClock

ROOT = Path(__file__).resolve().parents[2]
NOW_S = SystemClock().now_s
INSTANCES = ("a", "b")
TOKENS = 7


class Processes:
    """A server, a bus on it, and perception processes that work by the rules unless told otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = EmbeddedServer(folder / "bus")
        self.bus = RedisBus(self.server.start())
        self.running: dict[str, subprocess.Popen] = {}

    def start(self, instance: str, reader: str = "rules") -> None:
        own = {
            "HMAS_BUS__URL": self.server.url,
            "HMAS_INSTANCE": instance,
            "HMAS_AGENTS__PERCEPTION_READER": reader,
            "HMAS_STATE_DIR": str(self.folder / "state"),
            "OMP_NUM_THREADS": "1",
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HMAS_")}
        self.running[instance] = subprocess.Popen(
            [sys.executable, "-m", "hmas", "run", "agent", "perception"],
            cwd=ROOT,
            env={**inherited, **own},
            stderr=subprocess.PIPE,
            text=True,
        )

    async def latest(self, stream: str, kind: type) -> list:
        return [message for message in await self.bus.latest(stream, 20_000) if isinstance(message, kind)]

    async def until(self, stream: str, kind: type, enough) -> list:
        async with asyncio.timeout(60):
            while not enough(found := await self.latest(stream, kind)):  # noqa: ASYNC110 - other processes answer
                await asyncio.sleep(0.02)
        return found

    async def pending(self) -> int:
        """Entries of the group that nobody has acknowledged yet."""
        async with Redis.from_url(self.server.url) as raw:
            return (await raw.xpending(REQUESTS, "perception"))["pending"]

    async def answers(self, count: int) -> list[RequestFeatures]:
        return await self.until(FEATURES, RequestFeatures, lambda found: len({one.request_id for one in found}) >= count)

    async def end(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            _, errors = process.communicate(timeout=60)
            assert "Traceback" not in errors, errors
        await self.bus.close()
        self.server.stop()


@pytest.fixture
async def processes(tmp_path):
    made = Processes(tmp_path)
    await made.bus.start()
    yield made
    await made.end()


def notice(request_id: str) -> RequestNotice:
    """No two prompts are alike, so that nothing is learnt of prompts by heart; none grows too old, however busy the machine is."""
    text = f"Summarize this article of {request_id}: the bridge"
    return RequestNotice(request_id=request_id, sent_s=NOW_S() + 600.0, tenant="t", model="m", prompt_tokens=300, excerpt=text)


def completion(request_id: str) -> Completion:
    return Completion(
        request_id=request_id,
        sent_s=NOW_S(),
        tenant="t",
        model="m",
        outcome=OutcomeKind.COMPLETED,
        arrival_s=NOW_S(),
        policy="fcfs",
        task_type=TaskType.SUMMARIZATION,
        prompt_tokens=300,
        output_tokens=TOKENS,
    )


@pytest.mark.slow
@pytest.mark.long
async def test_two_processes_share_the_requests_and_each_learns_from_everything(processes):
    for instance in INSTANCES:
        processes.start(instance)
    await processes.until(MODELS, ModelReport, lambda found: {one.instance for one in found} == set(INSTANCES))
    asked = [f"r{number}" for number in range(1800)]
    for start in range(0, len(asked), 20):
        for request_id in asked[start : start + 20]:
            processes.bus.post(notice(request_id))
        await asyncio.sleep(0.01)
    answers = await processes.answers(len(asked))
    times = Counter(one.request_id for one in answers)
    assert sorted(times) == sorted(asked)
    assert set(times.values()) == {1}, "no entry was given to both"
    for request_id in asked:
        processes.bus.post(completion(request_id))

    def both_learnt(found: list[ModelReport]) -> bool:
        return {one.instance for one in found if one.figures["learnt"] == len(asked)} == set(INSTANCES)

    reports = await processes.until(MODELS, ModelReport, both_learnt)
    newest = {one.instance: one for one in reports}
    assert sum(one.requests for one in newest.values()) == len(asked)
    assert sum(one.scored for one in newest.values()) == len(asked), "each scores its own"
    assert all(one.requests > 100 for one in newest.values()), "both have worked"
    later = [f"later{number}" for number in range(200)]
    for request_id in later:
        processes.bus.post(notice(request_id))
        await asyncio.sleep(0.001)
    known = [one.output_tokens for one in await processes.answers(len(asked) + len(later)) if one.request_id.startswith("later")]
    assert min(known) >= 5, "whoever answers has learnt"
    assert max(known) <= 10, "whoever answers has learnt"


@pytest.mark.slow
async def test_what_a_killed_process_had_begun_is_answered_after_its_restart_while_the_other_goes_on(processes):
    for instance in INSTANCES:
        processes.start(instance)
    await processes.until(MODELS, ModelReport, lambda found: {one.instance for one in found} == set(INSTANCES))
    processes.running["a"].send_signal(signal.SIGSTOP)
    asked = [f"r{number}" for number in range(100)]
    for request_id in asked:
        processes.bus.post(notice(request_id))
    # Every entry is answered by the other, or was handed to the one that stands still.
    async with asyncio.timeout(60):
        while (await processes.pending()) + len(await processes.latest(FEATURES, RequestFeatures)) < len(asked):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    processes.running["a"].kill()
    processes.running.pop("a").communicate()
    processes.start("a")
    answers = await processes.answers(len(asked))
    assert {one.request_id for one in answers} == set(asked)
    async with asyncio.timeout(60):
        while await processes.pending():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_model_put_in_force_is_taken_up_by_a_running_process_and_a_broken_one_is_refused(processes):
    folder = processes.folder / "trained"
    folder.mkdir()
    (folder / "nothing.bin").write_text("no model")
    store = ModelStore(processes.folder / "state" / "models")
    store.add("perception", folder, ModelCard(kind="perception", format="onnx"))
    processes.start("a", reader="store")
    await processes.until(MODELS, ModelReport, bool)
    store.use("perception", "v1")

    def refused(found: list[Event]) -> bool:
        return any(one.kind == "model_refused" and one.before == "v1" for one in found)

    await processes.until(EVENTS, Event, refused)
    processes.bus.post(notice("still answered"))
    (answer,) = await processes.answers(1)
    assert answer.task_type is TaskType.SUMMARIZATION
    store.add("perception", SHIPPED_TAGGER, read_card(SHIPPED_TAGGER))
    store.use("perception", "v2")

    def changed(found: list[Event]) -> bool:
        return any((one.kind, one.after) == ("model_changed", "v2") for one in found)

    await processes.until(EVENTS, Event, changed)
    processes.bus.post(notice("answered by another"))
    answers = await processes.answers(2)
    assert answers[-1].source != "rules"
