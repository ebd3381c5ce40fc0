"""Agents and operators steer a gateway that serves: what they say takes effect, is told, and is taken back."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
from gateway_kit import TWO_TENANTS, Rig, chat, eventually, running, start_sim
from hmas_lab.memory_bus import MemoryBus
from message_kit import request_features
from typing_kit import all_of_type, of_type

from hmas.controller.config.schema import AgentsConfig, SchedulerConfig
from hmas.controller.core.messages import (
    EVENTS,
    OVERRIDES,
    TELEMETRY,
    ControlAction,
    Event,
    LengthBound,
    MetaDecision,
    OverrideNotice,
    RequestCost,
    RequestFeatures,
    SystemSnapshot,
)
from hmas.controller.core.types import TaskType
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

SLOW_TICKS = SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02)


def now_s(rig: Rig) -> float:
    return rig.gateway.clock.now_s()


def decision(rig: Rig, policy: str = "sjf", **fields: Any) -> MetaDecision:
    known: dict[str, Any] = {"sent_s": now_s(rig), "decision_id": "d-1", "previous": "fcfs", "reason": "bursty"}
    return MetaDecision(policy=policy, **(known | fields))


def features(rig: Rig, request_id: str, **fields: Any) -> RequestFeatures:
    known = {
        "sent_s": now_s(rig),
        "tenant": "default",
        "model": "tiny",
        "prompt_tokens": 5,
        "task_type": TaskType.SUMMARIZATION,
        "ttft_slo_ms": 7000.0,
        "tpot_slo_ms": 110.0,
        "importance": 0.8,
        "output_tokens": 40.0,
        "output_tokens_p90": 90.0,
    }
    return request_features(request_id, **(known | fields))


def put_file(rig: Rig, name: str, document: object) -> Path:
    """As an operator's editor does it: written aside, then moved."""
    rig.overrides.mkdir(exist_ok=True)
    data = document if isinstance(document, bytes) else orjson.dumps(document)
    aside = rig.overrides / f".{name}.part"
    aside.write_bytes(data)
    return aside.rename(rig.overrides / name)


def override(**fields: Any) -> dict[str, Any]:
    return {"version": 1, "author": "ana", "reason": "night shift", "expires": None} | fields


async def waiting_request(rig: Rig, headers: dict[str, str] | None = None) -> tuple[str, list["asyncio.Task[Any]"]]:
    """One request that waits behind another."""
    tasks = [asyncio.create_task(rig.post(chat("long", tokens=3500)))]
    await eventually(lambda: rig.sims[0].model.running == 1)
    tasks.append(asyncio.create_task(rig.post(chat("waits"), headers=headers or {})))
    await eventually(lambda: rig.gateway.scheduler.counts().queued == 1)
    return rig.gateway.scheduler.queued_ids()[0], tasks


async def leave(tasks: list["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_metas_decision_takes_effect_and_is_told(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.bus.post(decision(rig))
        await eventually(lambda: rig.gateway.scheduler.policy == "sjf")
        answer = await rig.post(chat())
        (event,) = rig.events("policy")
        on_bus = [message.kind for message in all_of_type(Event, await rig.bus.latest(EVENTS, 100))]
    assert answer.headers["x-hmas-policy"] == "sjf"
    assert (event["source"], event["before"], event["after"]) == ("meta", "fcfs (configured)", "sjf (meta)")
    assert (event["reason"], event["decision_id"]) == ("bursty", "d-1")
    assert "policy" in on_bus


async def test_a_decision_outside_the_whitelist_changes_nothing(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.bus.post(decision(rig, "no-such-policy"))
        rig.bus.post(decision(rig, "two-lane", parameters={"no_such_parameter": 1.0}))
        await eventually(lambda: len(rig.events("agent.rejected")) == 2)
        assert rig.gateway.scheduler.policy == "fcfs"
        metrics = (await rig.get("/metrics")).body.decode()
    assert 'hmas_agent_messages_rejected_total{agent="meta"} 2.0' in metrics


async def test_what_an_agent_said_before_its_newest_word_changes_nothing(tmp_path: Path):
    """As when a bus has failed over to a replica that lags, and its streams are read again from the start."""
    async with running(tmp_path) as rig:
        control, said_s = rig.gateway.control, now_s(rig)
        for sent_s, policy, n_run in ((said_s, "sjf", 3), (said_s - 2.0, "edf", 1)):
            control.on_decision(decision(rig, policy, sent_s=sent_s))
            control.on_action(ControlAction(sent_s=sent_s, instance="sim-1", n_run=n_run, token_budget=128, guard=0.4))
        assert rig.gateway.scheduler.policy == "sjf"
        assert control.statera["sim-1"].word.n_run == 3
        # A clock that was an hour ahead does not silence its agent once it is right.
        control.on_decision(decision(rig, "edf", sent_s=said_s + 3600.0))
        control.on_decision(decision(rig, "llf", sent_s=now_s(rig)))
        assert rig.gateway.scheduler.policy == "llf"


async def test_a_policy_that_fails_leaves_the_gateway_listening(tmp_path: Path, monkeypatch, caplog):
    def fails(*_: object) -> None:
        raise KeyError("a plugin's mistake")

    async with running(tmp_path, scheduler=SLOW_TICKS) as rig:
        waits, tasks = await waiting_request(rig)
        monkeypatch.setattr(type(rig.gateway.manager), "on_features", fails)  # its caller is not compiled
        rig.bus.post(features(rig, waits))
        rig.bus.post(decision(rig))
        await eventually(lambda: rig.gateway.scheduler.policy == "sjf")
        await leave(tasks)
    assert "a message of an agent was given up: RequestFeatures" in caplog.text


async def test_metas_router_takes_effect_is_told_and_an_operator_wins(tmp_path: Path):
    async with running(tmp_path, engines=2, scheduler=SchedulerConfig(policy="fcfs", routing="round-robin", tick_s=0.02)) as rig:
        rig.bus.post(decision(rig, "fcfs", router="default"))
        await eventually(lambda: rig.events("router"))
        (event,) = rig.events("router")
        ((shown,), log) = (await rig.admin("GET", "/admin/routers")).json["models"], (await rig.admin("GET", "/admin/decisions")).json
        served = {(await rig.post(chat(tokens=2))).headers["x-hmas-instance"] for _ in range(3)}
        rig.bus.post(decision(rig, "fcfs", decision_id="d-2", router="magic"))
        await eventually(lambda: rig.events("agent.rejected"))
        (refused,) = rig.events("agent.rejected")
        put_file(rig, "night.json", override(routers={"*": {"name": "least-loaded"}}))
        await eventually(lambda: rig.gateway.control.directives.routers["*"].source == "operator")
    assert (event["before"], event["after"], event["source"], event["reason"]) == ("round-robin", "default", "meta", "bursty")
    assert (shown["name"], shown["source"], shown["reason"]) == ("default", "meta", "bursty")
    assert [one["in_force"] for one in log["decisions"]] == ["fcfs, router default"]
    assert served == {"sim-1"}, "in turn it would be both"
    assert "router 'magic' is unknown; allowed: default" in refused["reason"]


async def test_stateras_action_reaches_window_and_engine(tmp_path: Path):
    async with running(tmp_path) as rig:
        bound = LengthBound(prompt_tokens_below=0, add_tokens=30, samples=50)
        rig.bus.post(
            ControlAction(
                sent_s=now_s(rig), instance="sim-1", n_run=3, token_budget=128, guard=0.4, length_bounds=[bound], reason="KV is full"
            )
        )
        await eventually(lambda: rig.sims[0].model.snapshot("x", 0).max_num_batched_tokens == 128)
        assert rig.sims[0].model.snapshot("x", 0).max_num_seqs == 3
        view = rig.gateway.scheduler.snapshot(now_s(rig), "g").instances[0]
        status = (await rig.admin("GET", "/admin/status")).json["instances"][0]
        rig.gateway.scheduler.set_tpot_guard(0.0)
        off = (await rig.admin("GET", "/admin/status")).json["instances"][0]
    assert (view.n_run, view.token_budget, view.capacity_n_run, view.guard) == (3, 128, 16, 0.4)
    assert (status["n_run"]["value"], status["n_run"]["source"], status["n_run"]["acts"]) == (3, "statera", "engine and window")
    assert (status["guard"]["value"], status["guard"]["source"], status["guard"]["acts"]) == (0.4, "statera", "TPOT guard")
    assert off["guard"]["acts"] == "nowhere: the TPOT guard is off"
    assert status["ceiling"] == {"n_run": 16, "token_budget": 512}


async def test_actions_that_make_no_sense_are_refused(tmp_path: Path):
    async with running(tmp_path) as rig:
        known: dict[str, Any] = {"instance": "sim-1", "n_run": 3}
        for fields in ({"instance": "nobody", "n_run": 3}, known | {"n_run": 0}, known | {"guard": 0.0}, known | {"guard": 1.5}):
            rig.bus.post(ControlAction(sent_s=now_s(rig), **fields))
        await eventually(lambda: len(rig.events("agent.rejected")) == 4)
        assert rig.gateway.control.directives.instances["sim-1"].controls.n_run == 16


async def test_a_silent_agent_is_no_longer_believed(tmp_path: Path):
    async with running(tmp_path, agents=AgentsConfig(stale_after_s=0.3)) as rig:
        rig.bus.post(decision(rig))
        rig.bus.post(ControlAction(sent_s=now_s(rig), instance="sim-1", n_run=3, token_budget=64))
        await eventually(lambda: rig.gateway.scheduler.policy == "sjf" and rig.sims[0].model.snapshot("x", 0).max_num_seqs == 3)
        await eventually(lambda: rig.gateway.scheduler.policy == "fcfs")
        await eventually(lambda: rig.sims[0].model.snapshot("x", 0).max_num_batched_tokens == 512)
        assert rig.sims[0].model.snapshot("x", 0).max_num_seqs == 16
        fallbacks = {event["kind"] for event in rig.gateway.event_log.newest(100) if event["source"] == "fallback"}
    assert fallbacks >= {"policy", "knobs.n_run", "knobs.token_budget"}


async def test_the_last_good_state_is_taken_up_again(tmp_path: Path):
    bus = MemoryBus()
    async with running(tmp_path, bus=bus) as rig:
        early = decision(rig, "wfq", sent_s=now_s(rig) - 100)
        rig.bus.post(early)
        rig.bus.post(decision(rig, "edf"))
        rig.bus.post(ControlAction(sent_s=now_s(rig), instance="sim-1", n_run=2))
        sims = rig.sims
        port = sims[0].port
        kept = [await bus.latest(stream, 10) for stream in ("hmas:decisions", "hmas:actions")]
    again = MemoryBus()
    for messages in kept:
        for message in messages:
            again.post(message)
    async with running(tmp_path, bus=again, sims=[await start_sim("sim-1", port=port)]) as rig:
        assert rig.gateway.scheduler.policy == "edf"
        assert rig.gateway.control.directives.instances["sim-1"].controls.n_run == 2


async def test_without_agents_their_words_count_for_nothing(tmp_path: Path):
    async with running(tmp_path, agents=AgentsConfig(enabled=False)) as rig:
        rig.bus.post(decision(rig))
        await rig.post(chat())
        assert rig.gateway.scheduler.policy == "fcfs"
        assert (await rig.admin("GET", "/admin/status")).json["agents"]["enabled"] is False


async def test_perception_changes_what_is_believed_but_not_what_was_declared(tmp_path: Path):
    async with running(tmp_path, scheduler=SLOW_TICKS) as rig:
        request_id, tasks = await waiting_request(rig, {"x-slo-ttft-ms": "1500"})
        entry = of_type(QueueEntry, rig.gateway.manager.active[request_id].entry)
        assert entry.request.half_declared == "ttft"
        rig.bus.post(features(rig, request_id))
        await eventually(lambda: entry.estimates.source == "perception")
        assert entry.estimates.task_type is TaskType.SUMMARIZATION
        assert (entry.estimates.slo.ttft_ms, entry.estimates.slo.tpot_ms) == (1500, 110)
        # The median orders the queue. The upper length stays the history's until forecasts have proven right.
        assert (entry.estimates.output_tokens, entry.estimates.output_tokens_upper, entry.estimates.proven) == (40, 1024, False)
        cost = RequestCost(
            request_id=request_id, sent_s=now_s(rig), ttft_ms={"sim-1": 55.0, "x": 65.0}, tpot_ms={"sim-1": 9.0}, output_tokens=44,
            alone_ttft_ms={"sim-1": 50.0, "x": 60.0}, alone_tpot_ms={"sim-1": 8.0},
        )  # fmt: skip
        rig.bus.post(cost)
        await eventually(lambda: entry.estimates.source == "prediction")
        assert entry.estimates.alone == {"sim-1": (50.0, 8.0)}
        assert (entry.estimates.ttft_ms, entry.estimates.tpot_ms, entry.estimates.output_tokens) == (60, 9, 40)
        assert entry.estimates.slo.ttft_ms == 1500
        await leave(tasks[:1])
        await tasks[1]
        completion = next(item for item in await rig.completions() if item.request_id == request_id)
    assert (completion.predicted_ttft_ms, completion.predicted_output_tokens) == (55, 40)
    assert completion.task_type is TaskType.SUMMARIZATION


async def test_malformed_features_leave_the_defaults(tmp_path: Path):
    async with running(tmp_path, scheduler=SLOW_TICKS) as rig:
        request_id, tasks = await waiting_request(rig)
        entry = of_type(QueueEntry, rig.gateway.manager.active[request_id].entry)
        before = entry.estimates
        bad = [{"ttft_slo_ms": -1.0}, {"importance": 7.0}, {"output_tokens": float("inf")}, {"output_tokens_p90": 1.0}, {"confidence": 2.0}]
        for fields in bad:
            rig.bus.post(features(rig, request_id, **fields))
        rig.bus.post(RequestCost(request_id=request_id, sent_s=now_s(rig), ttft_ms={}, tpot_ms={}, output_tokens=1))
        times = {"sim-1": 1.0}
        strange = {"x": 1.0}
        rig.bus.post(
            RequestCost(request_id=request_id, sent_s=now_s(rig), ttft_ms=times, tpot_ms=times, output_tokens=1, alone_tpot_ms=strange)
        )
        rig.bus.post(features(rig, "f" * 32))
        rig.bus.post(decision(rig))
        await eventually(lambda: rig.gateway.scheduler.policy == "sjf")
        assert entry.estimates is before
        metrics = (await rig.get("/metrics")).body.decode()
        await leave(tasks)
    assert 'hmas_agent_messages_rejected_total{agent="perception"} 5.0' in metrics
    assert 'hmas_agent_messages_rejected_total{agent="prediction"} 2.0' in metrics


async def test_an_override_file_wins_over_meta_until_it_is_gone(tmp_path: Path):
    async with running(tmp_path) as rig:
        put_file(rig, "night.json", override(policy={"name": "wfq"}, knobs={"*": {"n_run": 5}}))
        await eventually(lambda: rig.gateway.scheduler.policy == "wfq")
        rig.bus.post(decision(rig))
        await eventually(lambda: rig.gateway.liveness.received_s.get("meta"))
        assert rig.gateway.scheduler.policy == "wfq"
        assert rig.gateway.control.directives.instances["sim-1"].controls.n_run == 5
        assert rig.gateway.control.directives.forced == ("policy", "knobs")
        await asyncio.sleep(0.1)
        told = all_of_type(SystemSnapshot, await rig.bus.latest(TELEMETRY, 1))
        assert [one.forced for one in told] == [["policy", "knobs"]], "agents hear of it"
        (rig.overrides / "night.json").unlink()
        await eventually(lambda: rig.gateway.scheduler.policy == "sjf")
        notices = [message for message in await rig.bus.latest(OVERRIDES, 10) if isinstance(message, OverrideNotice)]
    assert [notice.policy for notice in notices] == ["", "wfq", ""]
    assert (notices[1].author, notices[1].knobs) == ("ana", {"*": {"n_run": 5}})


async def test_an_override_ends_by_itself(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.admin("POST", "/admin/policy", {"policy": "wfq", "for_s": 1.0, "author": "ana", "reason": "try"})
        assert (answer.status, answer.json["name"], answer.json["source"]) == (200, "wfq", "operator")
        await eventually(lambda: rig.gateway.scheduler.policy == "fcfs")


async def test_a_bad_override_file_changes_nothing_and_says_why(tmp_path: Path):
    async with running(tmp_path) as rig:
        put_file(rig, "night.json", override(policy={"name": "wfq"}))
        await eventually(lambda: rig.gateway.scheduler.policy == "wfq")
        put_file(rig, "night.json", b'{"version": 1, "author": "an')
        put_file(rig, "typo.json", override(knobs={"*": {"n_runn": 5}}))
        put_file(rig, "ghost.json", override(engines={"sim-9": {"drain": True}}))
        await eventually(lambda: len(rig.gateway.watch.errors) == 3)
        assert rig.gateway.scheduler.policy == "wfq", "its last good version stays"
        refused = {event["subject"]: event["reason"] for event in rig.events("override.refused")}
        status = (await rig.admin("GET", "/admin/overrides")).json
        put_file(rig, "night.json", override(policy={"name": "sjf"}))
        await eventually(lambda: rig.gateway.scheduler.policy == "sjf")
        assert [event["subject"] for event in rig.events("override.mended")] == ["night.json"]
    assert "half written" in refused["night.json"]
    assert "$.knobs" in refused["typo.json"]
    assert "$.engines.sim-9" in refused["ghost.json"]
    assert [item["file"] for item in status["refused"]] == ["ghost.json", "night.json", "typo.json"]


async def test_a_drained_engine_gets_nothing_new(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        drained = await rig.admin("POST", "/admin/engines/sim-1/drain", {"author": "ana", "reason": "new driver"})
        assert next(item for item in drained.json["engines"] if item["name"] == "sim-1")["draining"]
        for number in range(4):
            await rig.post(chat(f"number {number}"))
        assert {completion.instance for completion in await rig.completions()} == {"sim-2"}
        await rig.admin("POST", "/admin/engines/sim-2/drain")
        refused = await rig.post(chat())
        undrained = await rig.admin("POST", "/admin/engines/sim-1/undrain")
        answer = await rig.post(chat())
    assert (refused.status, refused.error["code"]) == (503, "engines_draining")
    assert undrained.json["released"]
    assert answer.headers["x-hmas-instance"] == "sim-1"


async def test_tenant_weights_follow_the_override(tmp_path: Path):
    async with running(tmp_path, tenants=TWO_TENANTS) as rig:
        assert rig.gateway.control.weight_of("acme") == 3
        assert rig.gateway.scheduler.snapshot(rig.gateway.clock.now_s(), "g").tenant_weights == {"acme": 3}, "agents hear of it"
        put_file(rig, "w.json", override(tenants={"zeta": {"weight": 8}}))
        await eventually(lambda: rig.gateway.control.weight_of("zeta") == 8)
        (rig.overrides / "w.json").unlink()
        await eventually(lambda: rig.gateway.control.weight_of("zeta") == 1)


async def test_overrides_are_in_force_from_the_first_request_on(tmp_path: Path):
    folder = tmp_path / "overrides"
    folder.mkdir()
    (folder / "early.json").write_bytes(orjson.dumps(override(policy={"name": "wfq"}, engines={"not-found-yet": {"drain": True}})))
    async with running(tmp_path) as rig:
        answer = await rig.post(chat())
        await rig.gateway.watch.scan()
        assert set(rig.gateway.watch.held) == {"early"}
        assert "$.engines.not-found-yet: no such instance" in rig.gateway.watch.errors["early.json"]
        (folder / "early.json").write_bytes(orjson.dumps(override(policy={"name": "edf"}, engines={"ghost": {"drain": True}})))
        await rig.gateway.watch.scan()
        assert rig.gateway.watch.held["early"].draining == ("not-found-yet",), "a new version has to name engines that are there"
    assert answer.headers["x-hmas-policy"] == "wfq"


async def test_an_engine_that_restarts_gets_its_knobs_again(tmp_path: Path):
    async with running(tmp_path) as rig:
        await rig.admin("POST", "/admin/knobs", {"instance": "sim-1", "n_run": 4, "token_budget": 256})
        await eventually(lambda: rig.sims[0].model.snapshot("x", 0).max_num_seqs == 4)
        port = rig.sims[0].port
        await rig.sims[0].kill()
        rig.sims.append(await start_sim("sim-1", port=port))
        await eventually(lambda: rig.sims[1].model.snapshot("x", 0).max_num_batched_tokens == 256)
        assert rig.sims[1].model.snapshot("x", 0).max_num_seqs == 4


async def test_two_tenants_share_by_weight_under_wfq(tmp_path: Path):
    """Three of acme's for one of zeta's, while both wait."""
    settings = SchedulerConfig(policy="wfq", n_run=1, tick_s=0.02, overdue="keep")
    async with running(tmp_path, tenants=TWO_TENANTS, scheduler=settings) as rig:
        _, tasks = await waiting_request(rig)
        for number in range(16):
            tenant = "acme" if number % 2 else "zeta"
            headers = {"x-gateway-inference-fairness-id": tenant}
            tasks.append(asyncio.create_task(rig.post(chat(f"number {number}", tokens=2), headers=headers)))
        await eventually(lambda: rig.gateway.scheduler.counts().queued == 17)
        await leave(tasks[:1])
        await asyncio.gather(*tasks[1:])
        order = [completion.tenant for completion in await rig.completions() if completion.tenant in {"acme", "zeta"}]
    assert order[:8].count("acme") >= 5
    assert order.count("zeta") == 8, "and nobody starves"
