"""Identical engines get equal load, whatever windows agents have set; unlike ones do not."""

from collections import Counter

import pytest

from hmas.controller.core.types import Controls
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.likeness import pool_windows
from hmas.controller.scheduling.scheduler import InstanceSpec, Scheduler, SchedulerSettings
from hmas.controller.simulation import simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile, load_profile
from hmas.workloads.catalogue import build

WINDOWS = {"a": 108, "b": 54}


def share(router: str, profiles: dict[str, Profile], *, advised: bool = True) -> float:
    """The share of instance `a` in the requests of a load that leaves both windows open."""
    scheduler = Scheduler(
        settings=SchedulerSettings(overdue="keep", fence=False, tpot_guard=0.0),
        instances=[InstanceSpec(name=name, capacity_n_run=256) for name in WINDOWS],
        router=make_router(router),
        policy="fcfs",
    )
    for name, n_run in WINDOWS.items():
        scheduler.set_controls(name, Controls(n_run=n_run, advised=advised))
    engines = {name: EngineModel(profile, n_run=256) for name, profile in profiles.items()}
    load = build("poisson:rate=6,duration=100,seed=7")
    result = simulate(load.arrivals(model="m"), engines, scheduler)
    sent = Counter(record.instance for record in result.records)
    assert sum(sent.values()) == len(result.records) > 500
    return sent["a"] / sum(sent.values())


ONE = load_profile("a100-qwen3-8b")


@pytest.mark.parametrize("router", ["default", "least-loaded", "session-affine", "prefix-aware"])
def test_two_identical_engines_with_windows_of_108_and_54_get_equal_load(router):
    assert share(router, {"a": ONE, "b": ONE}) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("router", ["default", "least-loaded"])
def test_windows_that_an_operator_sets_hold(router):
    assert share(router, {"a": ONE, "b": ONE}, advised=False) > 0.57


@pytest.mark.parametrize(
    ("decode_ms", "prefill_ms", "ceiling", "pooled"),
    [(11.0, 0.11, 256, True), (20.0, 0.1, 256, False), (10.0, 0.2, 256, False), (10.0, 0.1, 128, False), (0.0, 0.0, 256, True)],
)
def test_windows_are_pooled_only_among_instances_that_are_alike(decode_ms, prefill_ms, ceiling, pooled):
    """The first has 10 ms a token and 0.1 ms a prompt token; 0 has not been measured."""
    one, other = (
        Instance(InstanceSpec(name=name, capacity_n_run=most), fenced=False, margin=0.0) for name, most in (("a", 256), ("b", ceiling))
    )
    for instance, n_run, decode, prefill in ((one, 108, 10.0, 0.1), (other, 54, decode_ms, prefill_ms)):
        instance.control(Controls(n_run=n_run, advised=True))
        if decode:
            instance.pace.decoded(decode)
            instance.pace.prefilled(1000.0 * prefill, 1000)
    pool_windows([one, other])
    assert [one.routing_window, other.routing_window] == ([81.0, 81.0] if pooled else [108.0, 54.0])
    one.control(Controls(n_run=200))
    assert one.routing_window == 200.0, "an operator's window holds at once"


def test_caches_that_differ_by_a_few_blocks_are_alike():
    """An engine sizes its cache by the memory that it finds free at its start."""
    sizes = {"a": 438_896, "b": 438_880, "c": 219_440}
    made = [
        Instance(InstanceSpec(name=name, capacity_n_run=256, kv_capacity_tokens=size), fenced=True, margin=0.0)
        for name, size in sizes.items()
    ]
    for instance, n_run in zip(made, (108, 54, 20), strict=True):
        instance.control(Controls(n_run=n_run, advised=True))
    pool_windows(made)
    assert [instance.routing_window for instance in made] == [81.0, 81.0, 20.0]
