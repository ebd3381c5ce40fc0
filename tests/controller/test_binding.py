"""Binding at arrival: the router chooses once, the request waits in its instance's queue, and moves only if that one takes none."""

import random
from collections import Counter
from collections.abc import Mapping

import msgspec
import pytest

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import ROUTERS, make_router
from hmas.controller.scheduling.dispatch import TOO_SMALL
from hmas.controller.scheduling.results import Refusal
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import SHIPPED, InstanceSpec, SchedulerSettings
from hmas.engines.base import EngineSnapshot

ARRIVAL = SchedulerSettings(binding="arrival")
SHIPPED_AT_ARRIVAL = msgspec.structs.replace(SHIPPED, binding="arrival")


def build(
    *names: str,
    n_run: int = 2,
    router: str = "round-robin",
    policy: str = "fcfs",
    parameters: Mapping[str, float] | None = None,
    settings: SchedulerSettings = ARRIVAL,
) -> Scheduler:
    specs = [InstanceSpec(name=name, capacity_n_run=n_run) for name in names or ("a", "b")]
    return Scheduler(settings=settings, instances=specs, router=make_router(router), policy=policy, parameters=parameters)


def submit(made: Scheduler, number: int, now_s: float = 0.0, *, output: float = 10.0, **more) -> None:
    request = Request(id=f"{number:06d}", tenant=more.pop("tenant", "t"), model=more.pop("model", "m"), arrival_s=now_s, **more)
    made.submit(request, Estimates(slo=Slo(ttft_ms=1000, tpot_ms=100), output_tokens=output), now_s)


def placed(made: Scheduler, now_s: float = 0.0) -> dict[int, str]:
    return {int(one.entry.request.id): one.instance for one in made.dispatch(now_s)}


def reading(name: str, *, healthy: bool = True, at_s: float = 1.0) -> EngineSnapshot:
    return EngineSnapshot(engine=name, taken_s=at_s, healthy=healthy)


def test_the_turn_is_taken_at_arrival_and_kept():
    made = build("a", "b", n_run=1)
    for number in range(6):
        submit(made, number, prompt_tokens=10)
    assert placed(made) == {0: "a", 1: "b"}
    # b is done with all of its requests before a is with its first: with a central queue it would have got the others.
    done = [1]
    for _ in range(2):
        made.end(f"{done[-1]:06d}", OutcomeKind.COMPLETED, 1.0)
        done += placed(made, 1.0)
    assert done == [1, 3, 5]
    made.end("000005", OutcomeKind.COMPLETED, 2.0)
    assert placed(made, 2.0) == {}
    assert made.queued_ids() == ["000002", "000004"]
    made.check_conservation()


def test_a_router_counts_what_waits():
    made = build("a", "b", n_run=1, router="least-loaded")
    for number, tokens in enumerate((900, 10, 10, 10)):
        submit(made, number, prompt_tokens=tokens, output=1.0)
    assert placed(made) == {0: "a", 1: "b"}
    submit(made, 4, prompt_tokens=10)
    made.end("000001", OutcomeKind.COMPLETED, 1.0)
    made.end("000000", OutcomeKind.COMPLETED, 1.0)
    # Both had one in flight and one in the queue when the last one came; b has fewer tokens.
    assert placed(made, 1.0) == {2: "b", 3: "a"}
    made.end("000002", OutcomeKind.COMPLETED, 2.0)
    assert placed(made, 2.0) == {4: "b"}


@pytest.mark.parametrize("fails", ["drains", "unhealthy", "leaves", "other model"])
def test_requests_move_when_their_instance_takes_none(fails: str):
    made = build("a", "b", n_run=1)
    for number in range(6):
        submit(made, number, prompt_tokens=10)
    assert placed(made) == {0: "a", 1: "b"}
    if fails == "drains":
        made.set_draining("a", True)
    elif fails == "unhealthy":
        for at_s in range(3):
            made.observe(reading("a", healthy=not at_s, at_s=at_s))
    elif fails == "leaves":
        made.end("000000", OutcomeKind.CANCELLED, 1.0)
        made.remove_instance("a", 1.0)
    else:
        made.set_models("a", frozenset({"other"}))
    order: list[int] = []
    last: int | None = 1
    while last is not None:
        made.end(f"{last:06d}", OutcomeKind.COMPLETED, 2.0)
        now = placed(made, 2.0)
        assert set(now.values()) <= {"b"}
        order += now
        last = next(iter(now), None)
    assert order == [2, 3, 4, 5], "the order of submission is kept"
    made.check_conservation()


def test_one_report_that_may_be_of_a_lost_connection_moves_nothing():
    made = build("a", "b", n_run=1)
    for number in range(6):
        submit(made, number, prompt_tokens=10)
    assert placed(made) == {0: "a", 1: "b"}
    made.observe(reading("a"))
    for request in (0, 2):
        made.observe(reading("a", healthy=False, at_s=2.0), confirmed=False)
        assert placed(made, 2.0) == {}
        made.observe(reading("a", at_s=2.1))
        made.end(f"{request:06d}", OutcomeKind.COMPLETED, 2.1)
        assert placed(made, 2.1) == {request + 2: "a"}


def test_one_that_has_just_changed_its_models_gets_nothing_of_one_that_leaves():
    made = build("a", "b", "c", n_run=1)
    for number in range(9):
        submit(made, number, prompt_tokens=10)
    assert placed(made) == {0: "a", 1: "b", 2: "c"}
    for last in range(3):
        made.end(f"{last:06d}", OutcomeKind.CANCELLED, 1.0)
    made.set_models("a", frozenset({"other"}))
    made.remove_instance("b", 1.0)
    for number in range(3, 9):
        assert placed(made, 2.0) == {number: "c"}
        made.end(f"{number:06d}", OutcomeKind.COMPLETED, 2.0)


def test_with_no_instance_requests_wait_for_whichever_comes_first():
    made = build("a", "b", n_run=4)
    made.set_draining("a", True)
    made.set_draining("b", True)
    for number in range(4):
        submit(made, number, prompt_tokens=10)
    assert placed(made) == {}
    assert [head.request.id for head in made.heads()] == ["000000"]
    made.set_draining("b", False)
    assert placed(made) == dict.fromkeys(range(4), "b")
    made.check_conservation()


def test_a_request_that_failed_is_bound_elsewhere():
    made = build("a", "b", n_run=1)
    for number in range(3):
        submit(made, number, prompt_tokens=10)
    placed(made)
    assert made.retry("000000", 1.0)
    assert placed(made, 1.0) == {2: "a"}
    made.end("000001", OutcomeKind.COMPLETED, 2.0)
    assert placed(made, 2.0) == {0: "b"}
    made.check_conservation()


def test_a_request_that_is_bound_elsewhere_holds_no_place_of_its_lane():
    made = build("a", "b", n_run=1, policy="two-lane", parameters={"threshold_ms": 1.0, "slow_running": 1.0})
    submit(made, 0, prompt_tokens=10)
    submit(made, 1, prompt_tokens=10)
    assert placed(made) == {0: "a", 1: "b"}
    assert made.retry("000000", 1.0)
    made.set_draining("b", True)
    for number in range(2, 22):
        slo, fast = Slo(ttft_ms=60_000, tpot_ms=100), number != 2
        request = Request(id=f"{number:06d}", tenant="t", model="m", arrival_s=1.0, prompt_tokens=10)
        made.submit(request, Estimates(slo=slo, output_tokens=0.0 if fast else 10.0, ttft_ms=0.5), 1.0)
    order: list[int] = []
    for _ in range(10):
        order += placed(made, 1.0)
        made.end(f"{order[-1]:06d}", OutcomeKind.COMPLETED, 1.0)
    assert 2 in order, "the slow lane of a has its place free"
    made.check_conservation()


@pytest.mark.parametrize("policy", ["wfq", "vtc", "fcfs"])
def test_a_request_that_is_bound_elsewhere_is_not_charged_where_it_failed(policy: str):
    """Of two tenants that wait for a, the one whose long request went elsewhere has its turns as before."""
    made = build("a", "b", n_run=1, policy=policy)
    made.set_draining("b", True)
    for number in range(41):
        submit(made, number, prompt_tokens=100 if number else 90_000, tenant="xy"[number % 2])
    assert placed(made) == {0: "a"}
    made.set_draining("b", False)
    assert made.retry("000000", 0.1)
    served: list[int] = []
    for _ in range(20):
        served += [number for number, name in placed(made, 0.2).items() if name == "a"]
        made.end(f"{served[-1]:06d}", OutcomeKind.COMPLETED, 0.2, output_tokens=10)
    assert 8 <= sum(number % 2 for number in served) <= 12
    made.check_conservation()


def test_an_instance_without_room_for_the_prompt_is_not_chosen():
    specs = [InstanceSpec(name=name, capacity_n_run=4, kv_capacity_tokens=tokens) for name, tokens in (("small", 100), ("large", 10_000))]
    made = Scheduler(settings=ARRIVAL, instances=specs, router=make_router("round-robin"), policy="fcfs")
    for number in range(3):
        submit(made, number, prompt_tokens=500)
    assert set(placed(made).values()) == {"large"}


def build_unlike(**n_run: int) -> Scheduler:
    """A central queue before a small and a large KV cache."""
    kv = {"small": 100, "large": 10_000}
    specs = [InstanceSpec(name=name, capacity_n_run=n_run.get(name, 4), kv_capacity_tokens=tokens) for name, tokens in kv.items()]
    return Scheduler(settings=SchedulerSettings(), instances=specs, router=make_router("round-robin"), policy="fcfs")


def test_with_a_central_queue_a_prompt_goes_only_where_the_cache_can_hold_it():
    made = build_unlike(large=2)
    for number in range(40):
        submit(made, number, prompt_tokens=500 if number < 39 else 50)
    assert placed(made) == {0: "large", 1: "large", 39: "small"}, "however many wait for large, what fits passes them"
    made.end("000039", OutcomeKind.COMPLETED, 1.0)
    assert placed(made, 1.0) == {}, "an empty small cache would admit it"
    assert made.heads()[0].blocked == TOO_SMALL
    made.end("000000", OutcomeKind.COMPLETED, 1.0)
    assert placed(made, 1.0) == {2: "large"}
    made.check_conservation()


def test_a_prompt_that_no_instance_can_hold_any_more_does_not_wait_for_ever():
    made = build_unlike()
    submit(made, 0, prompt_tokens=500)
    made.set_draining("large", True)
    assert placed(made) == {0: "small"}
    made.set_draining("large", False)
    submit(made, 1, prompt_tokens=500)
    assert placed(made) == {1: "large"}
    assert made.retry("000001", 1.0)
    made.end("000000", OutcomeKind.COMPLETED, 1.0)
    assert placed(made, 1.0) == {1: "small"}, "large has failed it"


def test_a_prompt_that_waits_for_its_instance_is_not_taken_for_cached_there():
    made = build("a", router="prefix-aware")
    submit(made, 0, prompt_tokens=4096, blocks=tuple(range(64)))
    placed(made)
    made.end("000000", OutcomeKind.COMPLETED, 1.0, output_tokens=5, cached_tokens=100)
    submit(made, 1, 1.0, prompt_tokens=4096, blocks=tuple(range(100, 164)))
    assert placed(made, 1.0) == {1: "a"}
    assert made.instances["a"].prefill_tokens == 4096
    submit(made, 2, 1.0, prompt_tokens=4096, blocks=tuple(range(64)))
    assert placed(made, 1.0) == {2: "a"}
    assert made.instances["a"].prefill_tokens < 4096 + 64, "it has the prompt of the first request"


def test_one_that_has_to_show_that_it_serves_gets_no_long_queue():
    made = build("a", "b", n_run=8)
    made.observe(reading("a", healthy=False))
    made.observe(reading("a", at_s=2.0))
    for number in range(40):
        submit(made, number, prompt_tokens=10)
    assert Counter(placed(made).values()) == {"a": 4, "b": 8}
    made.set_draining("b", True)
    placed(made)
    assert made.queued == 28


def test_the_report_says_where_and_why():
    made = build("a", "b", router="default")
    submit(made, 0, prompt_tokens=10)
    (sent,) = made.dispatch(0.0)
    assert sent.reason == "fcfs; bound to it at arrival: score 0.50 among 2"
    assert {name: weight for name, _, weight in sent.scores}["queue"] == 1.0


def test_a_refused_client_hears_of_the_shortest_queue():
    made = build("a", "b", n_run=1, settings=SchedulerSettings(binding="arrival", queue_limit=4, evict_lower_ranked=False))
    for number in range(6):
        submit(made, number, prompt_tokens=10)
        placed(made)
    refused = made.submit(
        Request(id="late", tenant="t", model="m", arrival_s=1.0, prompt_tokens=10), Estimates(slo=Slo(ttft_ms=1000, tpot_ms=100)), 1.0
    )
    assert isinstance(refused, Refusal)
    assert 1.0 <= refused.retry_after_s <= 60.0
    assert made.models(1.0) == {}


@pytest.mark.parametrize("router", sorted(ROUTERS))
@pytest.mark.parametrize("policy", ["fcfs", "robust-edf", "wfq"])
def test_nothing_is_lost_whatever_happens(router: str, policy: str):
    """A thousand random steps: arrivals, ends, failures, engines that leave, come back and change their models, weights and policies."""
    chance = random.Random(f"{router} {policy}")
    made = build("a", "b", "c", n_run=3, router=router, policy=policy, settings=SHIPPED_AT_ARRIVAL)
    now_s, number = 0.0, 0
    names = ["a", "b", "c"]
    for step in range(1000):
        now_s += chance.expovariate(20.0)
        name = chance.choice(names)
        match chance.randrange(14):
            case 0 | 1 | 2 | 3:
                submit(made, number, now_s, prompt_tokens=chance.randrange(1, 2000), tenant=chance.choice("xy"), model=chance.choice("mn"))
                number += 1
            case 4 | 5 | 6 if running := made.running_ids():
                made.end(chance.choice(running), OutcomeKind.COMPLETED, now_s, output_tokens=5)
            case 7 if running := made.running_ids():
                made.retry(chance.choice(running), now_s)
            case 8 if waiting := made.queued_ids():
                made.end(chance.choice(waiting), OutcomeKind.CANCELLED, now_s)
            case 9:
                made.set_draining(name, chance.random() < 0.5)
            case 10:
                made.observe(reading(name, healthy=chance.random() < 0.7, at_s=now_s))
            case 11:
                made.set_models(name, chance.choice([None, frozenset({"m"}), frozenset({"n"})]))
            case 12:
                made.set_policy(chance.choice(["fcfs", "sjf", policy]), now_s)
            case 13:
                made.set_controls(name, Controls(n_run=chance.randrange(1, 6)))
        sent = made.dispatch(now_s)
        for one in sent:
            assert one.entry.bound in ("", one.instance)
        made.expire(now_s)
        if step % 50 == 0:
            made.check_conservation()
    for name in names:
        made.observe(reading(name, at_s=now_s))
        made.set_draining(name, False)
        made.set_models(name, None)
    for _ in range(200):
        now_s += 0.1
        made.dispatch(now_s)
        made.expire(now_s)
        for request_id in made.running_ids():
            made.end(request_id, OutcomeKind.COMPLETED, now_s, output_tokens=5)
    assert made.queued == 0
    made.check_conservation()
