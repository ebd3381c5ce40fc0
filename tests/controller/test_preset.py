"""The preset `paper`: what it sets, what precedes it, and what the new switches of the scheduler do."""

from typing import Any

import pytest

from hmas.controller.config.derived import scheduler_settings
from hmas.controller.config.loader import ConfigMistakes, load_config
from hmas.controller.config.reload import taken
from hmas.controller.config.schema import Config
from hmas.controller.control.agent_scores import AgentScores
from hmas.controller.control.apply import apply_directives
from hmas.controller.control.resolve import Ceiling, Configured, Received, resolve
from hmas.controller.core.messages import MetaDecision, OverrideNotice
from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.engines.base import EngineSnapshot

SLO = Slo(ttft_ms=10_000.0, tpot_ms=1000.0)


def load(tmp_path, text: str, **env: str) -> Config:
    file = tmp_path / "hmas.yaml"
    file.write_text(text)
    return load_config(str(file), env)


def test_the_default_preset_changes_nothing():
    assert load_config(None, {"HMAS_PRESET": "default"}) == Config()


def test_the_paper_preset_is_the_papers_system(tmp_path):
    config = load(tmp_path, "preset: paper\n")
    assert config.preset == "paper"
    assert (config.scheduler.policy, config.scheduler.parameters, config.scheduler.n_run) == ("sjf", {"aging_ms_per_s": 0.0}, 0)
    settings = scheduler_settings(config)
    assert (settings.tpot_guard, settings.overdue, settings.fence, settings.headroom) == (0.0, "keep", True, 0.0)
    assert (settings.late_service_share, settings.late_confidence) == (0.0, 0.0)
    assert not any((settings.fence_overcommit, settings.fence_in_bypass, settings.idle_relief))
    assert not settings.evict_lower_ranked
    agents = config.agents
    assert (agents.meta_selector, agents.meta_guards, agents.meta_judge, agents.meta_agree) == ("paper-rules", "paper", False, 1)
    assert (agents.statera_law, agents.perception_unknown, agents.set_aside) == ("paper", "most-frequent", False)
    assert config == load_config(None, {"HMAS_PRESET": "paper"})


def test_explicit_settings_precede_the_preset(tmp_path):
    text = "preset: paper\nscheduler:\n  overdue: shed\nagents:\n  meta_agree: 3\n"
    config = load(tmp_path, text, HMAS_SCHEDULER__TPOT_GUARD="0.5")
    assert (config.scheduler.overdue, config.agents.meta_agree, config.scheduler.tpot_guard) == ("shed", 3, 0.5)
    assert (config.scheduler.policy, config.agents.statera_law) == ("sjf", "paper")


def test_a_policy_of_ones_own_leaves_the_presets_parameters_out(tmp_path):
    config = load(tmp_path, "preset: paper\nscheduler: {policy: edf}\n")
    assert (config.scheduler.policy, config.scheduler.parameters) == ("edf", {})


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("preset: papers\n", "preset", "got 'papers' (a text); allowed: one of default, paper"),
        (
            "scheduler: {policy: edf, parameters: {aging_ms_per_s: 1}}\n",
            "scheduler.parameters",
            "'aging_ms_per_s' is unknown to policy 'edf'",
        ),
        ("scheduler: {policy: sjf, parameters: {aging_ms_per_s: -1}}\n", "scheduler.parameters", "is -1.0; allowed: a number from 0 to"),
    ],
)
def test_mistakes_are_named(tmp_path, text, path, message):
    with pytest.raises(ConfigMistakes) as caught:
        load(tmp_path, text)
    (mistake,) = caught.value.mistakes
    assert mistake.path == path
    assert message in mistake.message


def test_a_reload_takes_a_policy_with_its_parameters(tmp_path):
    after = load(tmp_path, "scheduler: {policy: sjf, parameters: {aging_ms_per_s: 5}}\n")
    assert taken(Config(), after).scheduler.parameters == {"aging_ms_per_s": 5.0}


def scheduler(**settings: Any) -> Scheduler:
    return Scheduler(
        settings=SchedulerSettings(overdue="keep", fence_overcommit=False, **settings),
        instances=[InstanceSpec(name="a", capacity_n_run=4, kv_capacity_tokens=1000)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )


def fill(one: Scheduler) -> list[str]:
    for number in range(3):
        request = Request(id=f"r{number}", tenant="t", model="m", arrival_s=0.0, prompt_tokens=400, max_output_tokens=100)
        one.submit(request, Estimates(slo=SLO, importance=0.75, output_tokens=50.0, output_tokens_upper=100.0), 0.0)
    return [dispatch.entry.request.id for dispatch in one.dispatch(0.0)]


def bypass(one: Scheduler, *, active: bool) -> None:
    def directives(bypassed: bool):
        said = MetaDecision(sent_s=0.0, decision_id="d", policy="fcfs", previous="fcfs", reason="overload", bypass=bypassed)
        meta = Received(0.0, said)
        configured = Configured(policy="fcfs", n_run=0)
        return resolve(configured, {"a": Ceiling(4)}, meta, {}, OverrideNotice(sent_s=0.0), now_s=0.0, stale_after_s=15.0)

    apply_directives(one, directives(not active), directives(active), names=["a"], now_s=0.0, on_controls=lambda _name, _controls: None)


def test_the_bypass_lifts_the_fence_only_where_it_shall():
    bounded, unbounded = scheduler(), scheduler(fence_in_bypass=False)
    assert fill(bounded) == fill(unbounded) == ["r0"], "0.95 x 1000 tokens hold one request of 500"
    for one in (bounded, unbounded):
        bypass(one, active=True)
    assert bounded.dispatch(0.1) == []
    assert [dispatch.entry.request.id for dispatch in unbounded.dispatch(0.1)] == ["r1", "r2"]
    bypass(unbounded, active=False)
    assert unbounded.dispatch(0.2) == []


def test_idle_relief_can_be_switched_off():
    found = {}
    for relief in (True, False):
        one = scheduler(idle_relief=relief)
        fill(one)
        sent = []
        for step in range(40):
            now_s = step / 10
            one.observe(EngineSnapshot(engine="a", taken_s=now_s, healthy=True, running=1, kv_usage=0.01, kv_capacity_tokens=1000))
            one.expire(now_s)
            sent += one.dispatch(now_s)
        found[relief] = [dispatch.relieved for dispatch in sent]
    assert found[False] == []
    assert found[True], "the same requests are dispatched where relief is on"


def test_unjudged_agents_are_never_set_aside_and_count_as_proven():
    scores = AgentScores(judging=False)
    good, bad = (Estimates(slo=SLO, importance=0.75, output_tokens=n, output_tokens_upper=n) for n in (100.0, 5000.0))
    assert scores.proven("completion")
    for _ in range(60):
        assert not scores.answered("completion", bad, good, 100)
        assert not scores.dispatched("statera", held=True, relieved=True)
    assert not any(one.contest.aside for one in scores.standings())
    assert all(one.used for one in scores.standings())
