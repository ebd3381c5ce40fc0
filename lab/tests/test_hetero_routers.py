"""HeteroServe's dispatchers as published."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hmas_lab.hetero.routers import Capability, CapabilityWeighted, LatencyAware, Oracle

from hmas.controller.core.errors import PolicyError
from hmas.controller.core.placement import Choice, InstanceState, Router
from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

H100 = Capability(tflops=989, memory_gb=80, bandwidth_tb_s=3.35)
A100 = Capability(tflops=312, memory_gb=80, bandwidth_tb_s=2.0)
L40S = Capability(tflops=362, memory_gb=48, bandwidth_tb_s=0.864)


@dataclass
class State:
    name: str
    n_run: int = 10
    in_flight: int = 0
    sequences: int = 0
    in_flight_tokens: int = 0
    prefill_tokens: int = 0
    awaiting: int = 0
    kv_committed: float = 0.0
    routing_window: float = 10.0
    kv_capacity_tokens: int = 0
    prefill_token_ms: float = 0.0
    decode_token_ms: float = 0.0
    caches_prefixes: bool | None = None


_ids = itertools.count()


def entry(prompt_tokens: int = 100) -> QueueEntry:
    request = Request(id=f"r{next(_ids)}", tenant="t", model="m", arrival_s=0.0, prompt_tokens=prompt_tokens)
    return QueueEntry(request=request, estimates=Estimates(slo=Slo(ttft_ms=1, tpot_ms=1)), seq=0)


def first(router: Router, one: QueueEntry, states: Sequence[InstanceState], now_s: float = 0.0) -> Choice:
    """The choice that a dispatch follows, as if it were made."""
    choice = next(iter(router.rank(one, states, now_s)))
    if isinstance(router, Oracle):
        router.sent(one, choice.instance, now_s)
    return choice


@pytest.mark.parametrize("router", [LatencyAware({"only": 1.0}), Oracle({"only": H100}), CapabilityWeighted({"only": H100})])
def test_one_instance_is_the_choice(router):
    choice = first(router, entry(), [State("only")])
    assert choice.instance == "only"
    assert choice.reason


def test_latency_aware_goes_by_the_wait_not_by_the_count():
    router = LatencyAware({"quick": 4.0, "slow": 1.0}, epoch_s=0.0)
    assert first(router, entry(), [State("slow"), State("quick", in_flight=9, awaiting=2)]).instance == "quick"
    assert first(router, entry(), [State("slow"), State("quick", awaiting=4)]).instance == "slow"
    assert first(router, entry(), [State("slow", awaiting=1), State("quick", awaiting=4)]).instance == "quick"


@pytest.mark.parametrize("router", [LatencyAware({"a": 1.0, "b": 1.0}), CapabilityWeighted({"a": A100, "b": A100})])
def test_queues_are_those_of_the_last_broadcast(router):
    idle, busy = [State("a"), State("b")], [State("a", in_flight=5, awaiting=5, in_flight_tokens=500), State("b", in_flight_tokens=900)]
    assert first(router, entry(), idle, 0.0).instance == "a"
    assert first(router, entry(), busy, 0.09).instance == "a", "the dispatcher has not heard of its own requests yet"
    assert first(router, entry(), busy, 0.1).instance == "b"


def test_the_oracle_gives_fixed_shares_by_length():
    router = Oracle({"h": H100, "a": A100, "l": L40S})
    states = [State("h", in_flight=99), State("a"), State("l")]
    short = Counter(first(router, entry(2048), states).instance for _ in range(6214))
    assert short == {"h": 3350, "a": 2000, "l": 864}, "by bandwidth"
    assert {first(router, entry(2049), states).instance for _ in range(50)} == {"h"}


def test_latency_aware_breaks_ties_by_tokens_in_flight_then_order():
    router = LatencyAware({"a": 1.0, "b": 1.0}, epoch_s=0.0)
    assert first(router, entry(), [State("a", in_flight_tokens=5), State("b", in_flight_tokens=4)]).instance == "b"
    assert first(router, entry(), [State("b"), State("a")]).instance == "b"


def test_capability_weighted_prefers_the_strong_until_enough_waits_there():
    router = CapabilityWeighted({"h": H100, "a": A100, "l": L40S}, epoch_s=0.0)
    states = {name: State(name) for name in "lah"}
    order = []
    for _ in range(60):
        chosen = first(router, entry(512), list(states.values())).instance
        order.append(chosen)
        states[chosen].in_flight += 1
    assert order[:5] == ["h"] * 5
    assert order.index("h") < order.index("a") < order.index("l")
    depth = Counter(order)
    # Eq. 5 settles where the weights are equal: the depths differ by Q_max / lambda times the log of the ratio of kappa.
    assert depth["h"] > depth["a"] > depth["l"]
    # ln(1.85) * 32 / 2, with the exponents of medium prompts.
    assert depth["h"] - depth["a"] == pytest.approx(9.8, abs=1.5)


def test_capability_weighted_passes_over_a_full_queue():
    router = CapabilityWeighted({"h": H100, "l": L40S}, damping=0.001, epoch_s=0.0)
    assert first(router, entry(100), [State("h", in_flight=31), State("l")]).instance == "h"
    assert first(router, entry(100), [State("h", in_flight=32), State("l", in_flight=31)]).instance == "l"
    # With every queue full, the weight alone decides.
    assert first(router, entry(100), [State("h", in_flight=33), State("l", in_flight=32)]).instance == "h"


def test_without_feedback_every_request_goes_to_the_strongest():
    router = CapabilityWeighted({"h": H100, "l": L40S}, damping=0.0, epoch_s=0.0)
    assert first(router, entry(100), [State("h", in_flight=500), State("l")]).instance == "h"


def test_long_prompts_can_be_kept_to_some_instances():
    router = CapabilityWeighted({"h": H100, "l": L40S}, epoch_s=0.0, long_on=["h"])
    states = [State("h", in_flight=100), State("l")]
    assert first(router, entry(2048), states).instance == "l"
    assert first(router, entry(2049), states).instance == "h"


def test_capability_weighted_reads_the_regime_from_the_last_prompts():
    # Much compute against much memory: which one is wanted depends on the prompts.
    router = CapabilityWeighted({"compute": dataclasses.replace(A100, tflops=900.0), "memory": dataclasses.replace(A100, memory_gb=240.0)})
    states = [State("compute"), State("memory")]
    assert {first(router, entry(64), states).instance for _ in range(200)} == {"compute"}
    longs = [first(router, entry(3000), states).instance for _ in range(200)]
    assert longs[0] == "compute"
    assert set(longs[-100:]) == {"memory"}


def test_capability_weighted_counts_a_request_once_however_often_it_is_looked_at():
    router = CapabilityWeighted({"compute": dataclasses.replace(A100, tflops=900.0), "memory": dataclasses.replace(A100, memory_gb=240.0)})
    states = [State("compute"), State("memory")]
    for _ in range(10):
        first(router, entry(64), states)
    waiting = entry(3000)
    assert {first(router, waiting, states).instance for _ in range(300)} == {"compute"}


def test_figures_that_make_no_sense_are_refused():
    with pytest.raises(PolicyError, match=r"speed of instance 'x' is 0"):
        LatencyAware({"x": 0.0})
    with pytest.raises(PolicyError, match="capabilities"):
        CapabilityWeighted({})
    with pytest.raises(PolicyError, match="'x'"):
        CapabilityWeighted({"x": Capability(tflops=1.0, memory_gb=0.0, bandwidth_tb_s=1.0)})
