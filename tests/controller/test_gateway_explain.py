"""The trace of a request in a real gateway: complete while it waits, runs and after its end; bounded; without its prompt."""

import asyncio
import json
from pathlib import Path
from unittest import mock

import msgspec
import orjson
import pytest
from gateway_kit import MODEL, Rig, chat, eventually, gateway_config, running
from message_kit import system_snapshot
from typing_kit import known

from hmas.cli.explain import page
from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.config.section import GatewayConfig
from hmas.controller.control.estimates import Declared
from hmas.controller.control.resolve import Configured, Directives, Received, resolve
from hmas.controller.core.messages import Completion, MetaDecision, OverrideNotice, RequestCost, RequestFeatures
from hmas.controller.core.types import EngineCached, Estimates, OutcomeKind, Request, Slo
from hmas.controller.observability.request_report import trace_report
from hmas.controller.observability.request_trace import RequestTraces
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.results import Dispatch
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

ONE_AT_A_TIME = SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02)


async def trace(rig: Rig, request_id: str) -> dict:
    answer = await rig.admin("GET", f"/admin/requests/{request_id}")
    assert answer.status == 200, answer.body
    return answer.json


async def test_a_request_that_was_served_at_once(tmp_path: Path):
    headers = {"x-slo-ttft-ms": "900", "x-request-id": "mine-1", "x-session-id": "talk"}
    async with running(tmp_path) as rig:
        answer = await rig.post(chat("a very secret prompt", tokens=8, max_tokens=50), headers=headers)
        told = await trace(rig, "mine-1")
        again = await trace(rig, told["id"])
    assert answer.headers["x-request-id"] == "mine-1"
    assert again == told
    assert (told["state"], told["client_id"], told["session"], told["model"]) == ("ended", "mine-1", "talk", MODEL)
    assert told["slo"]["declared"] == {"ttft_ms": 900.0, "tpot_ms": None}
    assert told["slo"]["active"]["ttft_ms"] == 900.0
    assert (told["max_output_tokens"], told["actual"]["output_tokens"]) == (50, 8)
    (sent,) = told["attempts"]
    assert (sent["instance"], sent["policy"]["name"], sent["policy"]["source"]) == ("sim-1", "fcfs", "configured")
    assert "the only one that may take it" in sent["reason"]
    assert sent["knobs"]["n_run"]["value"] == "16"
    assert sent["knobs"]["guard"] == {"value": "1", "source": "configured", "reason": "", "decision_id": ""}
    assert not sent["bypass"]
    known = {"kind": "completed", "status": 200, "reason": "", "slo_met": True, "instance": "sim-1"}
    assert told["outcome"] == known | {"whole_due_ms": None}
    assert told["actual"]["ttft_ms"] > 0
    assert (told["queue"]["waited_for"], told["queue"]["forecasts"], told["queue"]["too_costly"]) == ({}, [], None)
    assert "secret" not in json.dumps(told)
    text = page(told)
    assert "completed with status 200" in text
    assert "TTFT 900 ms (declared)" in text


async def test_a_request_that_waits_and_what_for(tmp_path: Path):
    async with running(tmp_path, scheduler=ONE_AT_A_TIME) as rig:
        blocker = asyncio.create_task(rig.post(chat("long", tokens=3000)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        waiting = []
        for name in ("first", "second"):
            waiting.append(asyncio.create_task(rig.post(chat("waits", tokens=3), headers={"x-request-id": name})))
            await eventually(lambda: rig.gateway.scheduler.queued == len(waiting))
        told = await trace(rig, "second")
        assert (told["state"], told["outcome"], told["actual"], told["attempts"]) == ("waiting", None, None, [])
        assert told["queue"]["position"] == 1
        assert "1 ahead of it now" in page(told)
        said = {"request_id": told["id"], "sent_s": 1.0, "tenant": "default", "model": MODEL, "prompt_tokens": 5, "task_type": "QA"}
        believed = {"confidence": 0.8, "importance": 0.9, "ttft_slo_ms": 3300.0, "tpot_slo_ms": 60.0}
        features = msgspec.convert(said | believed | {"output_tokens": 33.0, "output_tokens_p90": 70.0}, RequestFeatures)
        rig.gateway.manager.on_features(features)
        rig.gateway.manager.on_cost(
            RequestCost(request_id=told["id"], sent_s=1.0, ttft_ms={"sim-1": 41.0}, tpot_ms={"sim-1": 2.5}, output_tokens=33.0)
        )
        parameters = {"tpot_guard": 0.25}
        await rig.admin("POST", "/admin/policy", {"policy": "sjf", "parameters": parameters, "author": "kim", "reason": "short ones first"})
        blocker.cancel()
        await asyncio.gather(*waiting)
        told = await trace(rig, "second")
    assert [one["source"] for one in told["estimates"]][1:] == ["perception", "prediction"]
    assert (told["estimates"][1]["output_tokens"], told["estimates"][1]["task_type"]) == (33.0, "QA")
    assert told["slo"]["active"] == {"ttft_ms": 2000.0, "tpot_ms": 60.0}
    assert told["queue"]["waited_for"]["all instances at their limit"] >= 1
    assert [(one["policy"], one["source"]) for one in told["policies"]] == [("fcfs", "configured"), ("sjf", "operator")]
    (sent,) = told["attempts"]
    assert (sent["policy"]["name"], sent["policy"]["parameters"]["tpot_guard"]) == ("sjf", 0.25)
    assert "guard" not in sent["knobs"]  # a share that is named holds for all alike
    assert "short ones first" in sent["policy"]["reason"]
    assert told["queue"]["history"][0]["waiting"] == 2
    text = page(told)
    assert "all instances at their limit" in text
    assert "short ones first" in text


async def test_a_retry_and_a_refusal(tmp_path: Path):
    settings = SchedulerConfig(policy="fcfs", n_run=1, queue_limit=1, evict_lower_ranked=False, tick_s=0.02)
    async with running(tmp_path, engines=2, scheduler=settings) as rig:
        async with rig.session.post(rig.sims[0].url + "/sim/fault", json={"fault": "reset-before"}) as done:
            assert done.status == 200
        await rig.post(chat("again", tokens=3), headers={"x-request-id": "retried"})
        told = await trace(rig, "retried")
        async with rig.session.post(rig.sims[0].url + "/sim/fault", json={"fault": None}) as done:
            assert done.status == 200
        # The engine that failed must not come back later and take what waits.
        await eventually(lambda: all(one.healthy for one in rig.gateway.fleet.instances.values()))
        blockers = [asyncio.create_task(rig.post(chat("long", tokens=3000))) for _ in range(3)]
        await eventually(lambda: rig.gateway.scheduler.queued == 1)
        refused = await rig.post(chat("too many"), headers={"x-request-id": "refused"})
        other = await trace(rig, "refused")
        for blocker in blockers:
            blocker.cancel()
    assert [one["instance"] for one in told["attempts"]] == ["sim-1", "sim-2"]
    assert told["attempts"][0]["failed"]
    assert told["attempts"][1]["failed"] is None
    assert "FAILED" in page(told)
    assert refused.status == 429
    assert (other["state"], other["outcome"]["kind"], other["outcome"]["status"], other["attempts"]) == ("ended", "rejected", 429, [])


async def test_the_error_for_an_unknown_request_says_how_long_requests_are_known(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(explain_kept=2, explain_s=60.0)) as rig:
        for name in ("one", "two", "three", "two"):
            await rig.post(chat(tokens=2), headers={"x-request-id": name})
        statuses = [(await rig.admin("GET", f"/admin/requests/{name}")).status for name in ("one", "two", "three")]
        answer = await rig.admin("GET", "/admin/requests/one")
        assert len(rig.gateway.traces) == 2
    assert statuses == [404, 200, 200]
    assert answer.error["code"] == "not_found"
    assert "60 s after their end, the last 2 of them (gateway.explain_s, gateway.explain_kept)" in answer.error["message"]


async def test_it_can_be_switched_off(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(explain_kept=0)) as rig:
        await rig.post(chat(tokens=2), headers={"x-request-id": "one"})
        answer = await rig.admin("GET", "/admin/requests/one")
    assert answer.status == 404
    assert "gateway.explain_kept is 0" in answer.error["message"]


def alone() -> RequestTraces:
    scheduler = Scheduler(
        settings=SchedulerSettings(), instances=[InstanceSpec(name="i", capacity_n_run=1)], router=make_router("least-loaded"), policy="edf"
    )
    return RequestTraces(scheduler, kept=3, kept_s=60.0)


def one_request(traces: RequestTraces, number: int, client_id: str) -> None:
    request = Request(id=f"r{number}", tenant="t", model="m", arrival_s=1000.0, prompt_tokens=5)
    traces.received(request, client_id, Declared(), {}, Estimates(slo=Slo(ttft_ms=1.0, tpot_ms=1.0)))
    for revision in range(20):
        traces.estimated(request, Estimates(slo=Slo(ttft_ms=1.0 + revision, tpot_ms=1.0)), 1000.0)
    traces.ended(ended(request.id))


def ended(request_id: str) -> Completion:
    return Completion(request_id=request_id, sent_s=1000.0, tenant="t", model="m", outcome=OutcomeKind.FAILED, arrival_s=1.0, policy="edf")


def test_traces_are_bounded_in_number_in_length_and_in_time():
    traces = alone()
    for number in range(10):
        one_request(traces, number, "same")
    assert len(traces) == 3
    assert traces.find("r6") is None
    newest = traces.find("same")
    assert newest is not None
    assert (newest.request.id, newest.previous, len(newest.estimates)) == ("r9", "r8", 8)
    traces.sampled(system_snapshot(sent_s=1061.0))
    assert len(traces) == 0
    assert traces.find("same") is None
    for second in range(5000):
        traces.sampled(system_snapshot(sent_s=2000.0 + second))
    assert len(traces.samples) == 3600


def test_the_command_prints_the_page_or_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    from hmas.cli.main import main
    from hmas.controller.admin.client import AdminClient

    async def told() -> dict:
        async with running(tmp_path) as rig:
            await rig.post(chat(tokens=2), headers={"x-request-id": "one"})
            return await trace(rig, "one")

    document = asyncio.run(told())
    monkeypatch.setattr(AdminClient, "request", lambda _self, _id: document)
    assert main(["explain", "one", "--admin", "http://127.0.0.1:1"]) == 0
    assert "client id one" in capsys.readouterr().out
    assert main(["explain", "one", "--json", "--admin", "http://127.0.0.1:1"]) == 0
    assert orjson.loads(capsys.readouterr().out)["id"] == document["id"]


def test_the_settings_say_their_bounds():
    assert (GatewayConfig().explain_kept, GatewayConfig().explain_s) == (10_000, 3600.0)
    with pytest.raises(msgspec.ValidationError, match="explain_kept"):
        msgspec.convert({"explain_kept": -1}, GatewayConfig)


@pytest.mark.parametrize("answers", [1, 2])
async def test_an_answer_in_one_piece_is_judged_by_when_it_was_whole(tmp_path: Path, answers: int):
    headers = {"x-slo-ttft-ms": "2000", "x-slo-tpot-ms": "60", "x-request-id": "whole"}
    async with running(tmp_path) as rig:
        await rig.post(chat(tokens=11, stream=False, n=answers), headers=headers)
        told = await trace(rig, "whole")
    assert told["outcome"]["whole_due_ms"] == 2000.0 + 60.0 * 10
    assert told["actual"]["ttft_ms"] is None
    text = page(told)
    assert "met its targets (not streamed: the whole answer was due after 2600 ms" in text
    (measured,) = [line for line in text.splitlines() if " measured " in line]
    assert measured.count("not streamed") == 2


async def test_the_forecast_that_made_a_request_wait_is_marked(tmp_path: Path):
    """It is held back for the length that perception forecast, which is many times what it writes."""
    settings = SchedulerConfig(policy="sjf", n_run=1, tick_s=0.02)
    async with running(tmp_path, scheduler=settings) as rig:
        blocker = asyncio.create_task(rig.post(chat("long", tokens=3000)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        waiting = asyncio.create_task(rig.post(chat("waits", tokens=4), headers={"x-request-id": "held"}))
        await eventually(lambda: rig.gateway.scheduler.queued == 1)
        told = await trace(rig, "held")
        said = {"request_id": told["id"], "sent_s": 1.0, "tenant": "default", "model": MODEL, "prompt_tokens": 5, "task_type": "QA"}
        believed = {"confidence": 0.8, "importance": 0.9, "ttft_slo_ms": 3300.0, "tpot_slo_ms": 60.0}
        rig.gateway.manager.on_features(
            msgspec.convert(said | believed | {"output_tokens": 400.0, "output_tokens_p90": 900.0}, RequestFeatures)
        )
        entry = known(rig.gateway.manager.active[told["id"]].entry)
        entry.hold("KV cache full")
        await asyncio.sleep(0.15)
        blocker.cancel()
        await waiting
        told = await trace(rig, "held")
    by_reason = {one["reason"]: one for one in told["queue"]["forecasts"]}
    assert set(by_reason) == {"KV cache full", "its place in the order"}
    order = by_reason["its place in the order"]
    assert (order["forecast"], order["source"], order["measured"]) == (400.0, "perception", 4.0)
    text = page(told)
    assert "FORECAST  its place in the order: 400 output tokens, forecast by perception; measured 4: IT WAS 100.0 TIMES THE TRUTH" in text
    assert "KV cache full (1 attempt)" in text
    assert "waited    " in text


def test_what_an_overload_left_no_room_for_is_told_with_its_cost():
    traces = traces_of("robust-edf")
    request = Request(id="r1", tenant="t", model="m", arrival_s=1000.0, prompt_tokens=500)
    estimates = Estimates(slo=Slo(ttft_ms=1000.0, tpot_ms=50.0), output_tokens=100.0)
    traces.received(request, "r1", Declared(), {}, estimates)
    traces.queued(QueueEntry(request, estimates, 1))
    for second in range(1, 5):
        traces.sampled(system_snapshot(sent_s=1000.0 + second, policy="robust-edf", queued=9, cost_threshold=0.0 if second == 1 else 300.0))
    told = trace_report(known(traces.find("r1")), traces, position=None, bound_to="", now_s=1006.0) | {"tenant_now": None}
    assert told["queue"]["too_costly"] == {"cost": 700.0, "threshold": 300.0, "samples": 3, "of": 4}
    assert (
        "put behind others: its cost over its tenant's weight, 700 tokens, was above the 300 that the overload left room for (3 of 4"
        in page(told)
    )


def test_a_forecast_above_its_bound_is_told_to_be_unproven():
    traces = traces_of("robust-edf")
    request = Request(id="r1", tenant="t", model="m", arrival_s=1000.0, prompt_tokens=500)
    history = Estimates(slo=Slo(ttft_ms=1000.0, tpot_ms=50.0), output_tokens=35.0, output_tokens_upper=43.0)
    traces.received(request, "r1", Declared(), {}, history)
    traces.estimated(request, msgspec.structs.replace(history, output_tokens=200.0, proven=False), 1000.5)
    text = page(trace_report(known(traces.find("r1")), traces, position=None, bound_to="", now_s=1006.0) | {"tenant_now": None})
    assert " 35 (to 43) " in text
    assert " 200 (unproven, booked to 43) " in text


def test_where_the_router_goes_by_predictions_the_one_for_the_chosen_instance_is_told():
    traces = traces_of("robust-edf")
    request = Request(id="r1", tenant="t", model="m", arrival_s=1000.0, prompt_tokens=500)
    estimates = Estimates(slo=Slo(ttft_ms=1000.0, tpot_ms=50.0), output_tokens=100.0, alone={"i": (140.0, 12.0), "j": (1.0, 1.0)})
    entry, unknown = (
        QueueEntry(request, msgspec.structs.replace(estimates, alone=alone), 1) for alone in (estimates.alone, {"j": (1.0, 1.0)})
    )
    traces.received(request, "r1", Declared(), {}, estimates)
    traces.queued(entry)
    traces.estimated(request, estimates, 1000.5)
    by_prediction, by_load = (("backlog", 0.5, 0.8), ("alone", 0.25, 0.2)), (("queue", 0.5, 1.0),)
    for one, scores in ((entry, by_prediction), (unknown, by_prediction), (entry, by_load)):
        traces.dispatched(Dispatch(entry=one, instance="i", reason="why", scores=scores), 1001.0)
    trace = known(traces.find("r1"))
    told = trace_report(trace, traces, position=None, bound_to="", now_s=1006.0) | {"tenant_now": None}
    assert [one["alone_ms"] for one in told["attempts"]] == [1340.0, None, None]
    text = page(told)
    assert "scored backlog 0.50 x 0.8, alone 0.25 x 0.2; predicted 1340 ms there without load\n" in text
    assert text.count("without load") == 1
    traces.ended(ended("r1"))
    assert known(trace.entry).estimates.alone == {}, "a trace keeps none of the times of other instances"
    assert trace.estimates[-1][1].alone == {}
    assert len(entry.estimates.alone) == 2
    assert "alone" not in told["estimates"][-1]


def test_a_trace_keeps_no_blocks_of_the_prompt_and_nothing_that_engines_have_cached():
    traces = traces_of("robust-edf")
    cached = mock.Mock(EngineCached)
    request = Request(id="r1", tenant="t", model="m", arrival_s=1000.0, prompt_tokens=500, blocks=(1, 2, 3), cached=cached)
    estimates = Estimates(slo=Slo(ttft_ms=1000.0, tpot_ms=50.0))
    entry = QueueEntry(request, estimates, 1)
    traces.received(request, "r1", Declared(), {}, estimates)
    traces.queued(entry)
    traces.ended(ended("r1"))
    trace = known(traces.find("r1"))
    assert [(one.blocks, one.cached) for one in (trace.request, known(trace.entry).request)] == [((), None)] * 2
    assert (entry.request.blocks, entry.request.cached) == ((1, 2, 3), cached), "the scheduler's own entry stays as it is"


def test_another_reason_for_the_same_policy_is_no_change():
    traces = traces_of("robust-edf")
    for second, reason in enumerate(("keep: calm", "keep: still calm")):
        decision = MetaDecision(sent_s=1001.0, decision_id="d", policy="robust-edf", previous="robust-edf", reason=reason)
        traces.control_changed(traces.policies[-1][1], resolved(Received(1001.0, decision)), 1001.0 + second)
    assert [directives.policy.source for _, directives in traces.policies] == ["configured", "meta"]
    assert traces.policies[-1][1].policy.reason == "keep: calm"


def resolved(meta: Received[MetaDecision] | None = None) -> Directives:
    configured = Configured(policy="robust-edf", n_run=0)
    return resolve(configured, {}, meta, {}, OverrideNotice(sent_s=0.0), now_s=1001.0, stale_after_s=15.0)


def traces_of(policy: str) -> RequestTraces:
    scheduler = Scheduler(
        settings=SchedulerSettings(),
        instances=[InstanceSpec(name="i", capacity_n_run=1)],
        router=make_router("least-loaded"),
        policy=policy,
    )
    traces = RequestTraces(scheduler, kept=3, kept_s=60.0)
    traces.control_changed(None, resolved(), 999.0)
    return traces
