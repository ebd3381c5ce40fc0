"""A request is sent twice at most, whatever engines do with their connections, and the second time is in the books."""

import asyncio
from pathlib import Path

import pytest
from bad_engines import BadEngine, ClosingEngine, before, metric
from gateway_kit import MODEL, Rig, chat, eventually

from hmas.controller.config.schema import SchedulerConfig


async def explained(rig: Rig, request_id: str) -> list[tuple[str, bool]]:
    attempts = (await rig.admin("GET", f"/admin/requests/{request_id}")).json["attempts"]
    return [(attempt["instance"], attempt["failed"] is not None) for attempt in attempts]


async def test_two_engines_that_close_get_it_once_each(tmp_path: Path):
    first, second = ClosingEngine(), ClosingEngine()
    async with before(tmp_path, first, second) as rig:
        answer = await rig.post(chat(), headers={"x-request-id": "mine"})
        assert await metric(rig, "hmas_retries_total") == 1.0
        assert await explained(rig, "mine") == [("a", True), ("b", False)], "the last failure is the outcome"
        assert rig.balanced()
    assert (answer.status, answer.error["code"]) == (502, "engine_unavailable")
    assert (first.posts, second.posts) == (1, 1)


async def test_one_engine_that_closes_a_kept_connection_gets_it_once_more(tmp_path: Path):
    engine = ClosingEngine()
    async with before(tmp_path, engine) as rig:
        assert (await rig.post(chat(), headers={"x-request-id": "mine"})).status == 502
        assert await metric(rig, "hmas_retries_total") == 1.0
        assert await explained(rig, "mine") == [("a", True), ("a", False)]
        assert rig.balanced()
    assert engine.posts == 2


async def test_a_stale_connection_costs_no_request(tmp_path: Path):
    engine = ClosingEngine(closes=1)
    async with before(tmp_path, engine) as rig:
        answers = [await rig.post(chat(stream=False), headers={"x-request-id": name}) for name in ("stale", "next")]
        assert await metric(rig, "hmas_retries_total") == 1.0
        assert await explained(rig, "stale") == [("a", True), ("a", False)]
        assert await explained(rig, "next") == [("a", False)]
        assert [(event["before"], event["after"]) for event in rig.events("engine.health")] == [("", "up")]
        assert rig.balanced()
    assert [answer.status for answer in answers] == [200, 200]
    assert engine.posts == 3


async def test_another_engine_is_asked_first(tmp_path: Path):
    closing, well = ClosingEngine(), BadEngine()
    async with before(tmp_path, closing, well) as rig:
        answer = await rig.post(chat(tokens=1))
        assert rig.balanced()
    assert (answer.status, closing.posts, well.posts) == (200, 1, 1)


@pytest.mark.parametrize("engines", [1, 2])
async def test_embeddings_are_sent_twice_at_most_too(tmp_path: Path, engines: int):
    closing = [ClosingEngine() for _ in range(engines)]
    async with before(tmp_path, *closing) as rig:
        answer = await rig.post({"model": MODEL, "input": "x"}, "/v1/embeddings")
        assert await metric(rig, "hmas_passthrough_retries_total") == 1.0
    assert answer.status == 502
    assert [engine.posts for engine in closing] == ([2] if engines == 1 else [1, 1])


async def test_a_second_try_waits_out_a_lost_connection_of_the_other_engine(tmp_path: Path):
    closing, busy = ClosingEngine(), BadEngine()
    busy.hung = True
    async with before(tmp_path, closing, busy, scheduler=SchedulerConfig(policy="fcfs", n_run=1)) as rig:
        rig.gateway.scheduler.set_draining("a", draining=True)
        first = asyncio.create_task(rig.post(chat(tokens=1)))
        await eventually(lambda: busy.running)
        rig.gateway.scheduler.set_draining("a", draining=False)
        waiting = asyncio.create_task(rig.post(chat(tokens=1)))
        await eventually(lambda: closing.posts and rig.gateway.scheduler.queued)
        rig.gateway.fleet.mark_down("b", "a connection broke")
        rig.gateway.manager.give_up_stranded()
        busy.release()
        answers = [await first, await waiting]
        assert rig.balanced()
    assert [answer.status for answer in answers] == [200, 200]
    assert (closing.posts, busy.posts) == (1, 2)
