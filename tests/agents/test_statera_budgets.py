"""The memory-driven token budget (AugServe Eq. 27 to 32), and the envelope that both laws stay in."""

import pytest
from control_kit import instance, short_view
from hypothesis import given
from hypothesis import strategies as st

from hmas.agents.statera.agent import make_agent
from hmas.agents.statera.budgets import BETA_LOW, LAWS, SAFETY, BudgetInputs, MemoryBudget
from hmas.controller.config.cross_checks import BUDGET_LAWS
from hmas.controller.config.schema import AgentsConfig, Config, SchedulerConfig
from hmas.controller.core.errors import ConfigError
from hmas.engines.base import EngineSnapshot

SEEN = st.builds(
    BudgetInputs,
    error=st.floats(-3, 5),
    n_run=st.integers(1, 4096),
    ceiling=st.integers(1, 16_384),
    active_tokens=st.integers(-10, 2_000_000),
    held_tokens=st.one_of(st.none(), st.integers(0, 2_000_000)),
    capacity_tokens=st.one_of(st.none(), st.integers(0, 1_000_000)),
)


@pytest.mark.parametrize("law", sorted(LAWS))
@given(cycles=st.lists(SEEN, min_size=1, max_size=30))
def test_every_law_serves_one_request_and_never_passes_the_engines_ceiling(law, cycles):
    budget = LAWS[law]()
    for seen in cycles:
        tokens = budget.update(seen)
        assert min(seen.ceiling, seen.n_run + 1) <= tokens <= seen.ceiling
        assert tokens >= min(seen.ceiling, int(BETA_LOW * seen.ceiling))
        assert tokens == budget.budget


def seen(active, held=None, capacity=10_000):
    return BudgetInputs(error=0.0, n_run=8, ceiling=2048, active_tokens=active, held_tokens=held, capacity_tokens=capacity)


def test_a_step_takes_no_more_than_memory_holds():
    free = int(10_000 * (1.0 - SAFETY)) - 8500
    assert MemoryBudget().update(seen(8500)) == free
    assert MemoryBudget().update(seen(2000)) == 2048
    assert MemoryBudget().update(seen(9999)) == 8 + int(BETA_LOW * 2048)


def test_a_cached_prompt_that_requests_share_counts_once():
    assert MemoryBudget().update(seen(36_000, held=3_000)) == MemoryBudget().update(seen(3_000))


def test_paused_contexts_count_as_free_for_they_may_go():
    assert MemoryBudget().update(seen(8500, held=9400)) == MemoryBudget().update(seen(8500))


def test_it_shrinks_at_once_and_grows_gently():
    budget = MemoryBudget()
    assert budget.update(seen(2000)) == 2048
    low = budget.update(seen(8900))
    assert low == 600
    grown = [budget.update(seen(0)) for _ in range(8)]
    assert grown[0] == int(1.25 * low + 1)
    assert grown[-1] == 2048


@given(active=st.integers(0, 20_000), more=st.integers(0, 5000))
def test_more_in_memory_never_means_more_budget(active, more):
    assert MemoryBudget().update(seen(active + more)) <= MemoryBudget().update(seen(active))


def test_an_engine_that_does_not_tell_its_memory_keeps_its_own_budget():
    assert MemoryBudget().update(seen(10**6, capacity=None)) == 2048


def test_the_configuration_knows_every_built_in_law_and_no_other_name_stands_for_one():
    assert tuple(LAWS)[: len(BUDGET_LAWS)] == BUDGET_LAWS
    with pytest.raises(ConfigError, match=r"agents\.statera_budget_law is 'magic'; allowed: one of band, memory"):
        make_agent(Config(agents=AgentsConfig(statera_budget_law="magic")))


def test_the_configuration_chooses_the_law():
    full = EngineSnapshot(engine="i0", taken_s=0.0, healthy=True, kv_usage=0.9, kv_capacity_tokens=10_000)
    said = {}
    for law in ("band", "memory"):
        model = make_agent(Config(scheduler=SchedulerConfig(n_run=32), agents=AgentsConfig(statera_budget_law=law))).model
        view = instance(max_token_budget=2048, in_flight_tokens=8800, tpot_pressure=0.8, engine=full)
        for step in range(8):
            for action in model.observe(short_view(float(step), instances=[view]), float(step)):
                said[law] = action.token_budget
    assert said["band"] == 2048
    assert said["memory"] == 700
