"""Agents that are worse than the gateway's defaults: set aside with an event, scored all the same, used again once they are better."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway_kit import Rig, chat, eventually, running
from message_kit import request_features
from msgspec.structs import replace
from typing_kit import known, of_type

from hmas.cli.doctor import check_agents
from hmas.cli.explain import page as trace_page
from hmas.cli.status import page
from hmas.controller.config.schema import AgentsConfig
from hmas.controller.control.agent_scores import HELD_LEAST
from hmas.controller.core.messages import REQUESTS, ControlAction, LengthBound, Message, MetaDecision, RequestCost, RequestNotice
from hmas.controller.gateway.requests.active_request import ActiveRequest

pytestmark = pytest.mark.slow

TOKENS = 60
ALL_ASKED = AgentsConfig(ask="all")
Answer = Callable[[ActiveRequest], Message]


@asynccontextmanager
async def answering(rig: Rig, answer: list[Answer]) -> AsyncIterator[None]:
    """Answers every request by the last of `answer`."""

    async def run() -> None:
        async for deliveries in rig.bus.follow([REQUESTS]):
            for delivery in deliveries:
                live = rig.gateway.manager.active.get(of_type(RequestNotice, delivery.message).request_id)
                if live is not None:
                    rig.bus.post(replace(answer[-1](live), sent_s=rig.gateway.clock.now_s()))

    task = asyncio.create_task(run())
    await asyncio.sleep(0.05)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def send(rig: Rig, count: int, tokens: int = TOKENS) -> None:
    for first in range(0, count, 10):
        await asyncio.gather(*(rig.post(chat(f"number {n}", tokens=tokens)) for n in range(first, min(count, first + 10))))


def lengths(tokens: float) -> Answer:
    return lambda live: request_features(live.request.id, output_tokens=tokens, output_tokens_p90=tokens)


def default_lengths(live: ActiveRequest) -> Message:
    default = known(live.answers).default
    return request_features(live.request.id, output_tokens=default.output_tokens, output_tokens_p90=default.output_tokens_upper)


def costs(live: ActiveRequest) -> Message:
    times = {"sim-1": 8e7}
    return RequestCost(
        request_id=live.request.id, sent_s=1.0, ttft_ms=times, tpot_ms=times, output_tokens=1.0, alone_ttft_ms=times, alone_tpot_ms=times
    )


def default_costs(live: ActiveRequest, **others: float) -> Message:
    default = known(live.answers).default
    ttft_ms, tpot_ms = {"sim-1": default.ttft_ms} | others, {"sim-1": default.tpot_ms} | others
    return RequestCost(request_id=live.request.id, sent_s=1.0, output_tokens=1.0, ttft_ms=ttft_ms, tpot_ms=tpot_ms)


def costs_with_a_slow_engine(live: ActiveRequest) -> Message:
    """Right about each engine. The mean, by which the queue is ordered, is far off for a request on the fast one."""
    return default_costs(live, slow=8e7)


async def doctor_and_status(rig: Rig) -> str:
    status = (await rig.admin("GET", "/admin/status")).json
    found = [f"{check.name} {check.found} {check.do}" for check in check_agents(status["agents"]) if check.state == "WARN"]
    return "\n".join([page(status), *found])


@pytest.mark.parametrize(
    ("agent", "answers", "wrong", "right"),
    [
        ("perception", "lengths", lengths(3000.0), default_lengths),
        ("prediction", "costs", costs, default_costs),
        ("prediction", "costs", costs_with_a_slow_engine, default_costs),
    ],
)
async def test_answers_about_requests(tmp_path: Path, agent: str, answers: str, wrong: Answer, right: Answer):
    async with running(tmp_path, agents=ALL_ASKED) as rig:
        await send(rig, 10)
        said = [wrong]
        async with answering(rig, said):
            await send(rig, 60)
            (event,) = rig.events("agent.aside")
            assert (event["subject"], event["before"], event["after"], event["severity"]) == (agent, "used", "set aside", "warning")
            assert event["reason"].startswith(f"{agent}'s {answers}: ")
            assert event["reason"].endswith("(lower is better)")
            before = {completion.request_id for completion in await rig.completions()}
            await send(rig, 10)
            shown = await doctor_and_status(rig)
            metrics = (await rig.get("/metrics")).body.decode()
            late = [completion for completion in await rig.completions() if completion.request_id not in before]
            said.append(right)
            await send(rig, 70)
        events = rig.events("agent.aside")
    assert len(late) == 10
    if agent == "perception":
        assert {completion.predicted_output_tokens for completion in late} == {TOKENS}
    assert f"{agent}'s {answers} SET ASIDE" in shown
    assert f"agent {agent} set aside, worse than the gateway's own estimates: {answers}: " in shown
    assert f'hmas_agent_set_aside{{agent="{agent}"}} 1.0' in metrics
    assert f'hmas_agent_loss{{agent="{agent}",answers="{answers}",of="default"}}' in metrics
    assert [(one["before"], one["after"]) for one in events] == [("used", "set aside"), ("set aside", "used")]


async def test_costs_that_are_set_aside_leave_the_routers_the_times_without_load(tmp_path: Path):
    async with running(tmp_path, agents=ALL_ASKED) as rig, answering(rig, [costs]):
        await send(rig, 70)
        blocker = asyncio.create_task(rig.post(chat("long", tokens=500)))
        await eventually(lambda: len(rig.gateway.manager.active) == 1)
        (live,) = rig.gateway.manager.active.values()
        await eventually(lambda: known(live.answers).cost is not None)
        assert known(live.entry).estimates.ttft_ms < 1000.0
        assert known(live.entry).estimates.alone == {"sim-1": (8e7, 8e7)}
        await blocker


def window(rig: Rig, agent: str, n_run: int) -> Message:
    sent_s = rig.gateway.clock.now_s()
    if agent == "statera":
        return ControlAction(sent_s=sent_s, instance="sim-1", n_run=n_run)
    return MetaDecision(sent_s=sent_s, decision_id="d", policy="fcfs", previous="fcfs", n_run=n_run, parameters={"tpot_guard": 1e-9})


@pytest.mark.parametrize("agent", ["statera", "meta"])
async def test_a_window_that_holds_requests_back_beside_room(tmp_path: Path, agent: str):
    async with running(tmp_path) as rig:

        def in_force() -> tuple[int, str]:
            setting = rig.gateway.control.directives.instances["sim-1"]
            return setting.controls.n_run, setting.n_run.source

        await send(rig, 30)
        rig.bus.post(window(rig, agent, 1))
        await eventually(lambda: in_force() == (1, agent))
        held = [asyncio.create_task(rig.post(chat("long", tokens=1000), headers={"x-request-id": f"r{n}"})) for n in range(5)]
        await eventually(lambda: rig.gateway.scheduler.in_flight("sim-1") == 5, timeout_s=2.0)
        assert in_force()[0] == 16
        assert "tpot_guard" not in rig.gateway.scheduler.parameters
        (event,) = rig.events("agent.aside")
        assert (event["subject"], event["after"]) == (agent, "set aside")
        assert [one["subject"] for one in rig.events("dispatch.relieved")] == ["sim-1"]
        relieved = rig.events("dispatch.relieved")[0]["after"]
        told = (await rig.admin("GET", f"/admin/requests/{relieved}")).json
        assert told["attempts"][0]["relieved"] == "window"
        assert "DISPATCHED DESPITE A HOLD (window)" in trace_page(told)
        await asyncio.gather(*held)
        rig.bus.post(window(rig, agent, 16))
        await send(rig, 60, tokens=3)
        await eventually(lambda: in_force()[1] == agent)
    assert [one["after"] for one in rig.events("agent.aside")] == ["set aside", "used"]


async def test_a_window_is_not_to_blame_for_a_request_alone_that_has_more_sequences(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.bus.post(window(rig, "statera", 2))
        await eventually(lambda: rig.gateway.control.directives.instances["sim-1"].controls.n_run == 2)
        for number in range(HELD_LEAST):
            answer = await rig.post(chat(f"number {number}", tokens=3, n=4))
            assert answer.status == 200
        assert rig.gateway.control.directives.instances["sim-1"].n_run.source == "statera"
    scores = rig.gateway.agents.scores.windows["statera"]
    assert (scores.scored, scores.agent_loss) == (HELD_LEAST, 0.0)


async def test_length_bounds_count_once_they_have_proven_right_and_no_longer_when_they_are_wrong(tmp_path: Path):
    def bounds(add_tokens: float) -> Message:
        bound = LengthBound(prompt_tokens_below=0, add_tokens=add_tokens, samples=100)
        return ControlAction(sent_s=rig.gateway.clock.now_s(), instance="sim-1", n_run=16, length_bounds=[bound])

    def in_force() -> str:
        return rig.gateway.control.directives.bounds_source

    async with running(tmp_path) as rig:
        await send(rig, 20)
        rig.bus.post(bounds(0.0))
        await send(rig, 10)
        assert in_force() == "configured"
        await send(rig, 20)
        await eventually(lambda: in_force() == "statera")
        rig.bus.post(bounds(1e9))
        await send(rig, 30)
        await eventually(lambda: in_force() == "configured")
        (event,) = rig.events("agent.aside")
        status = (await rig.admin("GET", "/admin/status")).json
    assert event["reason"].startswith("statera's length bounds: ")
    known: dict[str, Any] = {one["answers"]: one for one in status["agents"]["statera"]["answers"]}
    assert known["length bounds"]["set_aside"]
    assert not known["length bounds"]["used"]
    assert known["windows"]["used"]
