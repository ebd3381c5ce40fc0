"""What a gateway tells operators of its agents: both views of qos, who is late, and who answered too late for a dispatch."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from control_kit import long_view, short_view
from gateway_kit import MODEL, chat, eventually, running
from test_admin_api import call

from hmas.cli.doctor import check_advice, check_agents
from hmas.cli.status import page as status_page
from hmas.cli.views import page
from hmas.controller.config.schema import AgentsConfig, Config, EngineConfig, SchedulerConfig
from hmas.controller.core.messages import MetaDecision, ModelReport, RequestCost, RequestFeatures
from hmas.controller.core.messages.views import ChangePoint
from hmas.controller.core.types import TaskType
from hmas.controller.runtime.clock import SystemClock


async def test_both_views_are_shown_with_their_age(tmp_path: Path):
    change = ChangePoint(figure="arrival_rps", at_s=1_700_000_000.0, found_s=1_700_000_010.0, before=2.0, after=9.5)
    async with running(tmp_path) as rig:
        client = rig.operator
        empty = await call(client.views)
        now_s = SystemClock().now_s()
        rig.bus.post(long_view(now_s - 2.0, arrived=600, changes=[change], by_task={"QA": 0.7, "other": 0.3}))
        rig.bus.post(short_view(now_s, queued=7, overdue=3, anomalies=["stuck"], utilization_source={"i0": "kv_usage"}))
        await eventually(lambda: rig.gateway.liveness.received_s.get("qos"))
        found = await call(client.views)
    assert empty == {"short": None, "long": None}
    assert "qos has sent no view yet" in page(empty)
    assert (found["short"]["queued"], found["long"]["arrived"]) == (7, 600)
    assert 2.0 <= found["long"]["age_s"] < 10.0
    assert not {"recent", "instances"} & (set(found["short"]) | set(found["long"]))
    lines = [" ".join(line.split()) for line in page(found).splitlines()]
    assert lines[0].startswith("figure short: 5.0 s, ")
    assert re.search(r"long: 60 s, [2-9]\.\d s old$", lines[0])
    assert "waiting 7 0" in lines
    assert "past their TTFT target 3 -" in lines
    assert "by task, of those that ended and whose type is known - QA 70%, other 30%" in lines
    assert "miss a target, of those settled 2% 2%" in lines
    assert "service of tenants beside their fair share (Jain) - not measured: fewer than two were served" in lines
    assert any(line.startswith("settled: requests that ended within the span") for line in lines)
    found["long"] |= {"fairness": 0.62, "fairness_tenants": 2}
    assert any(line.endswith("(Jain) - 0.62 of 2") for line in (" ".join(line.split()) for line in page(found).splitlines()))
    assert "i0 0.80 kv_usage -" in lines
    assert "change of arrival_rps at 2023-11-14 22:13:20Z: 2 -> 9.5" in lines
    assert any("CONTRADICTION in the telemetry: stuck" in line for line in lines)


async def test_doctor_asks_the_running_gateway(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.bus.post(short_view(SystemClock().now_s()))
        await eventually(lambda: rig.gateway.liveness.received_s.get("qos"))
        status = await call(rig.operator.status)
    own = list(check_advice(Config(), {}, None))
    assert {check.state for check in own} == {"WARN"}, "no engine and no key in the command's own configuration"
    (check,) = check_advice(Config(), {}, status)
    assert (check.state, check.found) == ("OK", "of the running gateway: 1 engine, 0 tenants, served without keys (no_auth)")
    agents = {check.name: check for check in check_agents(status["agents"])}
    assert list(agents) == ["agent perception", "agent prediction", "agent qos", "agent meta", "agent statera"]
    assert {check.state for check in agents.values()} == {"OK"}
    assert "may be 3 s" in agents["agent qos"].found
    assert "no request waits for one" in agents["agent perception"].found


async def test_dispatches_before_an_agents_answer_are_counted_by_agent(tmp_path: Path):
    async with running(tmp_path, scheduler=SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02)) as rig:
        blocker = asyncio.create_task(rig.post(chat("long", tokens=3000)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        waiting = asyncio.create_task(rig.post(chat("answered in time", tokens=3)))
        await eventually(lambda: rig.gateway.scheduler.queued == 1)
        (request_id,) = [name for name, live in rig.gateway.manager.active.items() if not live.dispatched_s]
        known: dict[str, Any] = {
            "request_id": request_id,
            "sent_s": 1.0,
            "tenant": "default",
            "model": MODEL,
            "prompt_tokens": 5,
            "task_type": TaskType.QA,
        }
        believed: dict[str, Any] = {"confidence": 0.8, "importance": 0.9, "ttft_slo_ms": 3300.0, "tpot_slo_ms": 60.0}
        rig.gateway.manager.on_features(RequestFeatures(**known, **believed, output_tokens=33.0, output_tokens_p90=70.0))
        late = asyncio.create_task(rig.post(chat("half answered", tokens=3)))
        await eventually(lambda: rig.gateway.scheduler.queued == 2)
        other = next(name for name, live in rig.gateway.manager.active.items() if not live.dispatched_s and name != request_id)
        cost: dict[str, Any] = {"sent_s": 1.0, "ttft_ms": {"sim-1": 41.0}, "tpot_ms": {"sim-1": 2.5}, "output_tokens": 33.0}
        rig.gateway.manager.on_cost(RequestCost(request_id=request_id, **cost))
        rig.gateway.manager.on_cost(RequestCost(request_id=other, **cost))
        blocker.cancel()
        await asyncio.gather(waiting, late)
        metrics = (await rig.get("/metrics")).body.decode()
        status = await call(rig.operator.status)
    # The first was sent at once, the second had both answers, the third only prediction's.
    assert "hmas_dispatched_requests_total 3.0" in metrics
    assert "hmas_dispatched_unasked_requests_total 1.0" in metrics
    assert 'hmas_dispatched_on_defaults_requests_total{agent="perception"} 1.0' in metrics
    assert 'hmas_dispatched_on_defaults_requests_total{agent="prediction"} 0.0' in metrics
    assert status["on_defaults"] == {"window_s": 60.0, "dispatched": 3, "unasked": 1, "on_defaults": {"perception": 1, "prediction": 0}}
    shares = "33% without asking the agents and 33% before perception's answer came and 0% before prediction's answer came"
    assert f"sent      3 requests in the last 60 s, {shares}, and so by the gateway's own estimates" in status_page(status)


async def test_an_agent_that_does_not_run_is_never_late_for_a_dispatch(tmp_path: Path):
    async with running(tmp_path, agents=AgentsConfig(only="perception", ask="all")) as rig:
        await rig.post(chat(tokens=2))
        metrics = (await rig.get("/metrics")).body.decode()
    assert 'hmas_dispatched_on_defaults_requests_total{agent="perception"} 1.0' in metrics
    assert 'agent="prediction"}' not in [line for line in metrics.splitlines() if line.startswith("hmas_dispatched_on_defaults")]


async def test_an_agent_that_is_left_out_and_runs_all_the_same_is_not_heard(tmp_path: Path):
    async with running(tmp_path, agents=AgentsConfig(only="statera"), scheduler=SchedulerConfig(policy="fcfs")) as rig:
        rig.gateway.subscriber.on_message(MetaDecision(sent_s=rig.gateway.clock.now_s(), decision_id="d", policy="sjf", previous="fcfs"))
        rig.gateway.control.settle()
        assert rig.gateway.scheduler.policy == "fcfs"
        assert rig.gateway.liveness.received_s == {}


async def test_a_request_that_perception_dropped_makes_it_late_until_it_reports(tmp_path: Path):
    async with running(tmp_path) as rig:
        now_s = rig.gateway.clock.now_s()
        rig.gateway.liveness.asked(now_s - 30.0)
        assert (await call(rig.operator.status))["agents"]["perception"]["state"] == "late"
        rig.bus.post(ModelReport(sent_s=now_s, agent="perception", model="rules"))
        await eventually(rig.gateway.model_reports.fresh)
        assert (await call(rig.operator.status))["agents"]["perception"]["state"] == "ok"


async def test_an_engine_that_has_never_answered_is_not_down_for_56_years(tmp_path: Path):
    engines = [EngineConfig(name="gone", url="http://127.0.0.1:9")]
    async with running(tmp_path, engines_config=engines) as rig:
        status = await call(rig.operator.status)
    assert [one["down_for_s"] for one in status["instances"]] == [None]
    assert re.search(r"^gone +\S+ +has not answered yet ", status_page(status), flags=re.MULTILINE)


async def test_a_cost_threshold_is_shown_only_while_something_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with running(tmp_path, scheduler=SchedulerConfig(policy="robust-edf", n_run=1, tick_s=0.02)) as rig:
        monkeypatch.setattr(type(rig.gateway.scheduler), "cost_threshold", 300.0)
        idle = await call(rig.operator.policy)
        blocker = asyncio.create_task(rig.post(chat("long", tokens=3000)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        waiting = asyncio.create_task(rig.post(chat("waits", tokens=3)))
        await eventually(lambda: rig.gateway.scheduler.queued == 1)
        busy = await call(rig.operator.policy)
        blocker.cancel()
        await waiting
    assert (idle["cost_threshold_now"], busy["cost_threshold_now"]) == (None, 300.0)


async def test_a_dead_engine_is_down_and_not_a_circuit(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        await rig.sims[1].kill()
        await eventually(lambda: not rig.gateway.fleet.instances["sim-2"].healthy)
        instance = rig.gateway.fleet.instances["sim-2"]
        for number in range(20):
            instance.breaker.failed(number, SystemClock().now_s(), "reset", SystemClock().now_s())
        assert instance.breaker.state == "open"
        text = status_page(await call(rig.operator.status))
    (line,) = [line for line in text.splitlines() if line.startswith("sim-2 ")]
    assert "down for" in line
    assert "circuit" not in line
    assert "nothing ended in the last" in text
