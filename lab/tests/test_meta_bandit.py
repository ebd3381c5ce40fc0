"""The contextual bandit: it learns which policy goes with which figures, forgets, stays bounded, and does the same twice."""

import pickle
from collections import Counter

import numpy as np
import pytest
from control_kit import long_view
from hmas_lab.meta.bandit import CONTEXT, HALF_LIFE, BanditSelector, context, make_bandit
from typing_kit import of_type

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.make import SELECTORS, make_meta
from hmas.agents.meta.selectors.base import Reward, Situation
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.core.messages import MetaDecision
from hmas.controller.scheduling.policies.registry import POLICIES

RED = Candidate(policy="robust-edf")
ALLOWED = tuple(sorted(POLICIES))


def situation(now_s: float, policy: str, view, *, since_s: float = -1000.0, allowed=ALLOWED) -> Situation:
    return Situation(view=view, current=Candidate(policy=policy), start=RED, allowed=allowed, since_s=since_s, now_s=now_s)


def view_of(load: str, now_s: float):
    figures = {"calm": {"late_service": 0.0, "violation_rate": 0.02}, "drowning": {"late_service": 0.8, "violation_rate": 0.6}}
    return long_view(now_s, **figures[load])


WORLD = {
    "calm": {"robust-edf": 0.98, "sjf": 0.90, "fcfs": 0.92, "two-lane": 0.93, "wfq": 0.90},
    "drowning": {"robust-edf": 0.40, "sjf": 0.65, "fcfs": 0.30, "two-lane": 0.50, "wfq": 0.35},
}


def live(selector: BanditSelector, rounds: int, world, seed: int = 3, loads=("calm", "drowning")) -> list[tuple[str, str]]:
    """Lets it have its way in a world of two loads, each for 20 windows in turn; a policy's share of good requests scatters by 2 %."""
    rng = np.random.default_rng(seed)
    policy, course = "robust-edf", []
    for step in range(rounds):
        load = loads[step // 20 % len(loads)]
        now = situation(60.0 * step, policy, view_of(load, 60.0 * step))
        policy = selector.propose(now).candidate.policy
        lived = situation(60.0 * step, policy, view_of(load, 60.0 * step))
        selector.learn(Reward(situation=lived, good=world[load][policy] + rng.normal(0.0, 0.02), requests=200))
        course.append((load, policy))
    return course


def regret(course, world) -> float:
    return float(np.mean([max(world[load].values()) - world[load][policy] for load, policy in course]))


def test_it_learns_which_policy_goes_with_which_load():
    course = live(BanditSelector("robust-edf"), 400, WORLD)
    assert regret(course[-200:], WORLD) < 0.02
    always = min(regret([(load, policy) for load, _ in course], WORLD) for policy in WORLD["calm"])
    assert regret(course[-200:], WORLD) < 0.5 * always
    drowning = Counter(policy for load, policy in course[-200:] if load == "drowning")
    assert drowning["sjf"] > 0.7 * drowning.total(), "now and then it looks again at what it has forgotten"


def test_it_follows_a_world_that_changes():
    selector = BanditSelector("robust-edf")
    live(selector, 300, WORLD)
    turned = {load: good | {"robust-edf": good["sjf"], "sjf": good["robust-edf"]} for load, good in WORLD.items()}
    course = live(selector, 4 * HALF_LIFE, turned)
    assert regret(course[-120:], turned) < 0.03


def test_the_same_views_give_the_same_words():
    assert live(BanditSelector("robust-edf"), 150, WORLD) == live(BanditSelector("robust-edf"), 150, WORLD)


def test_its_state_is_bounded():
    selector = BanditSelector("robust-edf")
    live(selector, 50, WORLD)
    before = len(pickle.dumps(selector))
    live(selector, 500, WORLD)
    assert len(pickle.dumps(selector)) == before


def test_a_window_that_was_not_the_policys_alone_teaches_nothing():
    selector = BanditSelector("robust-edf")
    view = view_of("calm", 100.0)
    untaught = pickle.dumps(selector)
    for reward in (
        Reward(situation=situation(100.0, "robust-edf", view, since_s=60.0), good=0.1, requests=500),
        Reward(situation=situation(100.0, "robust-edf", view), good=0.1, requests=3),
        Reward(situation=situation(100.0, "robust-edf", view), good=float("nan"), requests=500),
        Reward(situation=situation(100.0, "lottery", view), good=0.1, requests=500),
    ):
        selector.learn(reward)
    assert pickle.dumps(selector) == untaught
    selector.learn(Reward(situation=situation(100.0, "robust-edf", view), good=0.1, requests=500))
    assert pickle.dumps(selector) != untaught


def test_it_proposes_only_what_is_allowed_and_keeps_where_it_cannot_tell():
    selector = BanditSelector("robust-edf")
    live(selector, 100, WORLD)
    now = situation(1e6, "robust-edf", view_of("drowning", 1e6), allowed=("robust-edf", "fcfs"))
    assert selector.propose(now).candidate.policy in {"robust-edf", "fcfs"}
    few = situation(1e6, "lottery", long_view(1e6, ended=3))
    assert selector.propose(few).candidate.policy == "lottery"
    nothing = situation(1e6, "lottery", view_of("calm", 1e6), allowed=("lottery",))
    assert selector.propose(nothing).candidate.policy == "lottery"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300, 1e300])
def test_odd_figures_stay_within_bounds(value):
    x = context(long_view(0.0, violation_rate=value, total_cv=value, mismatch=value))
    assert x.shape == (CONTEXT,)
    assert np.all((x >= 0.0) & (x <= 1.0))


def test_it_is_put_together_as_configured(monkeypatch):
    monkeypatch.setitem(SELECTORS, "bandit", make_bandit)
    meta = make_meta(Config(agents=AgentsConfig(meta_selector="bandit", meta_period_s=5.0)))
    said = [word for step in range(8) for word in meta.on_view(long_view(5.0 * step), 5.0 * step)]
    assert of_type(MetaDecision, said[-1]).source == "bandit"
    assert "share of good requests as learnt" in of_type(MetaDecision, said[-1]).reason
