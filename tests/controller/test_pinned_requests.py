"""A request that only one instance may serve goes to that one or to none: bound at arrival or not, first try or second."""

from pathlib import Path
from typing import Any

import pytest
from bad_engines import ClosingEngine, before
from gateway_kit import MODEL, running

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.gateway.requests.apis.kept_responses import KeptResponses
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.dispatch import BARRED_MOST, PATIENCE, PINNED
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.engines.base import EngineSnapshot
from hmas.engines.openai import OpenAIEngine

PATH = "/v1/responses"


def build(binding: Any = "central", *names: str, n_run: int = 2) -> Scheduler:
    specs = [InstanceSpec(name=name, capacity_n_run=n_run) for name in names or ("a", "b")]
    return Scheduler(settings=SchedulerSettings(binding=binding), instances=specs, router=make_router("round-robin"), policy="fcfs")


def submit(made: Scheduler, name: str, only: str = "", now_s: float = 0.0, *, sequences: int = 1) -> QueueEntry:
    request = Request(id=name, tenant="t", model="m", arrival_s=now_s, prompt_tokens=10, sequences=sequences)
    entry = made.submit(request, Estimates(slo=Slo(ttft_ms=60_000, tpot_ms=100), output_tokens=5), now_s, only=only)
    assert isinstance(entry, QueueEntry)
    return entry


def sent(made: Scheduler, now_s: float = 0.0) -> dict[str, str]:
    return {one.entry.request.id: one.instance for one in made.dispatch(now_s)}


@pytest.mark.parametrize("binding", ["central", "arrival"])
def test_it_goes_to_its_instance_and_waits_for_no_other(binding: str):
    made = build(binding)
    entries = [submit(made, f"r{number}", "b") for number in range(3)]
    assert sent(made) == {"r0": "b", "r1": "b"}
    if binding == "central":
        assert entries[2].blocked == PINNED
    made.end("r0", OutcomeKind.COMPLETED, 1.0)
    assert sent(made, 1.0) == {"r2": "b"}
    made.check_conservation()


@pytest.mark.parametrize("binding", ["central", "arrival"])
def test_an_instance_that_joins_meanwhile_does_not_get_it(binding: str):
    made = build(binding, "a")
    submit(made, "r0", "a")
    made.set_draining("a", True)
    made.add_instance(InstanceSpec(name="new", capacity_n_run=2), 0.1)
    made.set_draining("new", False)
    assert sent(made, 0.2) == {}
    made.set_draining("a", False)
    assert sent(made, 0.3) == {"r0": "a"}
    made.check_conservation()


@pytest.mark.parametrize("binding", ["central", "arrival"])
def test_it_is_sent_again_only_where_its_own_instance_has_not_read_it(binding: str):
    made = build(binding)
    submit(made, "r0", "a")
    assert sent(made) == {"r0": "a"}
    assert not made.may_retry("r0")
    assert not made.retry("r0", 0.1)
    assert made.retry("r0", 0.2, unread=True)
    assert sent(made, 0.2) == {"r0": "a"}
    assert not made.retry("r0", 0.3, unread=True), "twice at most"
    made.check_conservation()


def test_an_idle_instance_does_not_relieve_it():
    made = build("central", n_run=8)
    for number in range(9):
        submit(made, f"r{number}", "a")
    assert len(sent(made)) == 8
    for tick in range(1, 31):
        now_s = tick / 10
        for name in "ab":
            made.observe(EngineSnapshot(engine=name, taken_s=now_s, healthy=True, kv_usage=0.01, kv_capacity_tokens=10_000, waiting=0))
        made.expire(now_s)
        assert sent(made, now_s) == {}


@pytest.mark.parametrize("sequences", [1, 2])
def test_however_many_wait_for_a_full_instance_another_one_takes_what_is_behind_them(sequences: int):
    made = build("central", n_run=2)
    submit(made, "r0", "a")
    submit(made, "r1", "a", sequences=sequences)
    for number in range(2, 15):
        submit(made, f"r{number}", "a")
    assert sent(made) == {"r0": "a", f"r{sequences}": "a"}
    for number in range(2 * PATIENCE):
        submit(made, f"free{number}")
        assert sent(made) == {f"free{number}": "b"}
        made.end(f"free{number}", OutcomeKind.COMPLETED, 0.0)
    for name in ("r0", f"r{sequences}"):
        made.end(name, OutcomeKind.COMPLETED, 1.0)
    submit(made, "free")
    assert sent(made, 1.0) == ({"r2": "a", "r3": "a", "free": "b"} if sequences == 1 else {"r1": "a", "free": "b"})
    made.check_conservation()


def test_however_many_an_instance_has_failed_it_takes_what_is_behind_them():
    made = build("central", n_run=12)
    made.set_draining("b", True)
    for number in range(12):
        submit(made, f"r{number}")
    assert set(sent(made).values()) == {"a"}
    made.set_draining("b", False)
    made.set_controls("b", Controls(n_run=1))
    submit(made, "other", "b")
    assert sent(made) == {"other": "b"}
    for number in range(12):
        assert made.retry(f"r{number}", 0.1)
    submit(made, "free", now_s=0.2)
    assert sent(made, 0.2) == {"free": "a"}
    made.end("other", OutcomeKind.COMPLETED, 0.3)
    assert sent(made, 0.3) == {"r0": "b"}
    made.check_conservation()


def test_how_many_are_passed_is_bounded():
    made = build("central", n_run=2)
    for number in range(2 + BARRED_MOST):
        submit(made, f"r{number}", "a")
    submit(made, "free")
    assert sent(made) == {"r0": "a", "r1": "a"}
    made.end("r0", OutcomeKind.COMPLETED, 1.0)
    assert sent(made, 1.0) == {"r2": "a", "free": "b"}


def test_an_idle_instance_relieves_what_waits_behind_them():
    made = build("central", n_run=8)
    for name in "ab":
        made.set_controls(name, Controls(n_run=1, advised=True))
    submit(made, "other", "b")
    for number in range(14):
        submit(made, f"r{number}", "a")
    submit(made, "free")
    assert sent(made) == {"other": "b", "r0": "a"}
    relieved: dict[str, str] = {}
    for tick in range(1, 10):
        made.expire(tick / 10)
        relieved = relieved or sent(made, tick / 10)
    assert relieved == {"r1": "a", "free": "b"}


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "hello there", "sim": {"output_tokens": 3}} | fields


async def test_a_follow_up_that_its_engine_fails_is_sent_to_no_other(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        first = await rig.post(ask(), PATH)
        held, other = sorted(rig.sims, key=lambda sim: sim.name != first.headers["x-hmas-instance"])
        async with rig.session.post(held.url + "/sim/fault", json={"fault": "status:500"}) as response:
            assert response.status == 200
        answer = await rig.post(ask(previous_response_id=first.json["id"]), PATH)
        assert rig.balanced()
    assert (answer.status, other.bodies) == (500, [])


async def test_a_follow_up_on_a_stale_connection_goes_to_the_same_engine_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(KeptResponses, "holder_of_previous", lambda *_: ("b", 0))
    engines = ClosingEngine(closes=0), ClosingEngine(closes=1)
    aborted: list[str] = []

    async def abort(_: object, request_id: str) -> bool:
        aborted.append(request_id)
        return True

    monkeypatch.setattr(OpenAIEngine, "abort", abort)
    async with before(tmp_path, *engines) as rig:
        await rig.post(ask(previous_response_id="resp_1"), PATH)
        assert rig.balanced()
    assert [engine.posts for engine in engines] == [0, 2]
    assert aborted == [], "the second try has the same id"
