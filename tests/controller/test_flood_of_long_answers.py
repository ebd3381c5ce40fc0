"""A flood of answers that run for minutes: what it leaves free for a tenant whose requests come later. Virtual time."""

import math
from functools import partial

import msgspec
import numpy as np
import pytest

from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.instance_group import InstanceGroup
from hmas.controller.scheduling.policies.registry import make_policy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.flood_watch import NOTHING_KEPT, FloodWatch, service_of
from hmas.controller.scheduling.queue.model_queue import ModelQueue, Passes
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import SHIPPED, InstanceSpec
from hmas.controller.simulation import Arrival, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile

pytestmark = pytest.mark.slow

CONTEXT, KV_BLOCKS = 1024, 360
PROFILE = msgspec.structs.replace(
    load_profile("demo-small"), step_ms=50.0, decode_ms_per_seq=5.0, prefill_ms_per_token=3.0, kv_blocks=KV_BLOCKS, max_model_len=CONTEXT
)
"""A small model on a few processor cores, with a KV cache for six answers that run to the context."""
TARGETS = (Slo(ttft_ms=5600, tpot_ms=168), Slo(ttft_ms=2800, tpot_ms=140))
CAPACITY_RPS, SPAN_S = 0.55, 90.0


def told(found, _request, _now_s):
    return found


def chats(tenant, rate_rps, seed, weight=1.0, from_s=0.0, until_s=SPAN_S):
    """Half of them with a cap of 128 tokens; one in eight of the others runs to the context. Lengths are forecast too short."""
    draws, at_s, number = np.random.default_rng(seed), from_s, 0
    while (at_s := at_s + draws.exponential(1 / rate_rps)) < until_s:
        prompt = 5 + int(min(300, draws.lognormal(math.log(60), 0.8)))
        cap = 128 if draws.random() < 0.5 else CONTEXT
        output = CONTEXT - prompt - 1 if draws.random() < 0.12 else 2 + int(min(900, draws.lognormal(math.log(90), 0.9)))
        expected = float(np.clip(min(output, 300) * draws.lognormal(0.0, 0.5), 2, cap))
        slo = TARGETS[number % 2]
        found = Estimates(
            slo=slo, output_tokens=expected, output_tokens_upper=min(cap, 3.0 * expected), ttft_ms=40 + 3 * prompt, tpot_ms=60
        )
        request = Request(
            id=f"{tenant}{seed}-{number:06d}",
            tenant=tenant,
            model="m",
            arrival_s=at_s,
            prompt_tokens=prompt,
            max_output_tokens=cap,
            declared_slo=slo,
        )
        yield Arrival(request=request, estimate=partial(told, found), output_tokens=min(cap, output), weight=weight)
        number += 1


def good(arrivals, tenant, policy, from_s=0.0):
    spec = InstanceSpec(name="a", capacity_n_run=256, kv_capacity_tokens=16 * KV_BLOCKS, kv_bytes_per_token=1)
    scheduler = Scheduler(settings=SHIPPED, instances=[spec], router=make_router("least-loaded"), policy=policy)
    result = simulate(sorted(arrivals, key=lambda one: one.request.arrival_s), {"a": EngineModel(PROFILE)}, scheduler)
    return sum(one.slo_met for one in result.records if one.tenant == tenant and one.arrival_s >= from_s)


@pytest.mark.parametrize("policy", ["robust-edf", "wfq"])
@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_a_flood_of_long_answers_leaves_room_for_another_tenant(weight, policy):
    share, alone, beside = weight / (1 + weight), 0, 0
    for seed in (1, 2, 3):
        mine = list(chats("b", 0.6 * share * CAPACITY_RPS, seed, weight))
        flood = chats("a", 10 * (1 - share) * CAPACITY_RPS, seed + 50)
        alone += good(mine, "b", policy)
        beside += good([*mine, *flood], "b", policy)
    assert beside >= 0.93 * alone


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_a_tenant_within_its_share_does_not_flood_while_answers_grow(weight):
    """A flood that begins after half a minute, near the capacity of an engine whose answers take a minute: what ends in that time says too
    little about what the engine serves."""
    share, alone, beside, rate_rps = weight / (1 + weight), 0, 0, 1.5 * CAPACITY_RPS
    for seed in (1, 2, 3, 4):
        mine = list(chats("b", 0.6 * share * rate_rps, seed, weight, until_s=SPAN_S + 30.0))
        flood = chats("a", 10 * (1 - share) * rate_rps, seed + 50, from_s=30.0, until_s=SPAN_S + 30.0)
        alone += good(mine, "b", "robust-edf", from_s=30.0)
        beside += good([*mine, *flood], "b", "robust-edf", from_s=30.0)
    assert beside >= 0.9 * alone


def entry(number, tenant, at_s, output=100.0):
    request = Request(id=f"{tenant}{number}", tenant=tenant, model="m", arrival_s=at_s, prompt_tokens=100)
    estimates = Estimates(slo=TARGETS[1], output_tokens=output, output_tokens_upper=2 * output, ttft_ms=60, tpot_ms=60)
    return QueueEntry(request=request, estimates=estimates, seq=number)


class Watched:
    """A watch, and the service that engines have given."""

    def __init__(self):
        self.watch = FloodWatch()
        self.made = 0.0

    def ends(self, now_s):
        self.made += service_of(100, 100)
        self.watch.ended(now_s)

    def look(self, waiting, now_s):
        self.watch.look(waiting, now_s, lambda _now_s: self.made, kept=frozenset().__contains__)


def watched(ends_per_s):
    """A flood that sent a burst into an empty engine and asks for 3 requests a second, beside one request of another tenant each 5 s."""
    made = Watched()
    watch = made.watch
    for step in range(600):
        now_s = 0.1 * step
        for number in range(20 if step == 0 else step % 10 < 3):
            watch.asks(entry(number, "a", now_s), now_s)
        for number in range(20) if step == 0 else [step] * (step % round(10 / ends_per_s) == 0):
            watch.sent(entry(number, "a", now_s), now_s)
        if step % 50 == 10:
            watch.asks(entry(step, "b", now_s), now_s)
        if step > 20 and step % max(1, round(10 / ends_per_s)) == 0:
            made.ends(now_s)
        made.look(10, now_s)
    return made


def test_a_burst_into_an_empty_engine_does_not_hide_a_flood():
    watch = watched(0.5).watch
    assert watch.flooding == {"a"}
    # It is kept a quarter more than what it asks for (0.2 requests a second of 0.5), and at most its share.
    assert watch.reserve.share == pytest.approx(0.5, abs=0.1)
    assert watch.reserve.tpot_ms == 140


def test_nothing_is_kept_free_where_requests_end_all_the_time():
    watch = watched(5.0).watch
    assert watch.reserve == NOTHING_KEPT


def test_a_flood_of_yesterday_is_forgotten():
    made = watched(0.5)
    day_s = 60.0 + 86_400.0
    for number, tenant in enumerate("ab"):
        made.watch.asks(entry(9000 + number, tenant, day_s), day_s)
        made.look(2, day_s + 0.2 * number)
    assert (made.watch.flooding, made.watch.reserve) == (set(), NOTHING_KEPT)


def test_two_tenants_that_come_back_after_a_pause_do_not_flood():
    made = watched(0.5)
    made.watch.flooding.clear()
    for step in range(40):
        now_s = 660.0 + 0.1 * step
        for tenant in "ab":
            one = entry(9000 + step, tenant, now_s)
            made.watch.asks(one, now_s)
            made.watch.sent(one, now_s)
            if step > 5:
                made.ends(now_s)
        made.look(4, now_s)
        assert made.watch.flooding == set(), step


@pytest.mark.parametrize(("together", "floods"), [(2, set()), (60, {"b"})])
def test_a_few_requests_that_come_together_are_no_flood(together, floods):
    """Two tenants that each ask for 60 % of their share; then one sends some requests at once."""
    made = Watched()
    for step in range(400):
        now_s = 0.1 * step
        due = ["a", "b"] if step % 50 == 0 else []
        for number, tenant in enumerate(due + ["b"] * (together if step == 390 else 0)):
            one = entry(1000 * step + number, tenant, now_s)
            made.watch.asks(one, now_s)
            made.watch.sent(one, now_s)
        if step % 25 == 20:
            made.ends(now_s)
        made.look(4, now_s)
    assert made.watch.flooding == floods


def test_what_an_instance_gave_before_it_served_the_model_does_not_count():
    """Otherwise engines would seem to serve much for minutes after an instance has changed its models, and nobody to flood."""
    old, new = (Instance(InstanceSpec(name=name, capacity_n_run=4), fenced=False, margin=0.0) for name in ("old", "new"))
    group = ModelQueue(InstanceGroup([old]), make_policy("fcfs"), make_policy("fcfs"), Tenancy({}, (old, new)), Passes())
    assert group.produced(0.0) == 0.0
    for instance, tokens in ((old, 50), (new, 10_000)):
        instance.progress(instance.start(entry(1, "a", 0.0), 1, "fcfs", 0.0), tokens, 1.0)
    assert group.produced(1.0) == pytest.approx(service_of(100, 50), abs=1)
    group.instances = InstanceGroup([old, new])
    assert group.produced(2.0) == pytest.approx(service_of(100, 50), abs=1)
    new.progress(new.running["a1"], 10_020, 3.0)
    assert group.produced(3.0) == pytest.approx(service_of(100, 70), abs=1)
