"""A router that fails: requests go on, and the fault is told."""

from collections.abc import Iterable, Sequence

import pytest

from hmas.controller.core.placement import Choice, InstanceState, Routable
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.dispatch import ROUTER
from hmas.controller.scheduling.scheduler import InstanceSpec, Scheduler, SchedulerSettings


class Faulty:
    name = "faulty"

    def __init__(self, *names: str, error: Exception | None = None) -> None:
        self._names = names
        self._error = error

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterable[Choice]:
        yield from (Choice(name, "so") for name in self._names)
        if self._error is not None:
            raise self._error


def build(router, count: int = 3, **more) -> Scheduler:
    specs = [InstanceSpec(name=f"i{number}", capacity_n_run=4) for number in range(count)]
    return Scheduler(settings=SchedulerSettings(**more), instances=specs, router=router, policy="fcfs")


def submit(made: Scheduler, number: int, **more) -> None:
    request = Request(id=f"{number:06d}", tenant="t", model=more.pop("model", "m"), arrival_s=0.0, prompt_tokens=10, **more)
    made.submit(request, Estimates(slo=Slo(ttft_ms=1000, tpot_ms=100)), 0.0)


@pytest.mark.parametrize(
    ("router", "told"),
    [
        (Faulty("nope"), "named 'nope'; allowed: i0, i1, i2"),
        (Faulty(error=KeyError("lost")), "raised KeyError: 'lost'"),
    ],
)
def test_a_ranking_that_cannot_be_followed_sends_the_request_to_the_emptiest(router, told):
    made = build(router)
    for number in range(7):
        submit(made, number)
        (sent,) = made.dispatch(0.0)
        assert sent.instance == f"i{number % 3}"
        assert "the router failed; the emptiest instance" in sent.reason
    faults, fault = made.router_fault
    assert faults == 7
    assert fault == f"router 'faulty' of model 'm' {told}"
    made.check_conservation()


def test_an_instance_named_twice_is_a_fault_once_the_first_is_refused():
    made = build(Faulty("i1", "i1"), fence_margin=0.0)
    submit(made, 0)
    (sent,) = made.dispatch(0.0)
    assert (sent.instance, made.router_fault) == ("i1", (0, "")), "a ranking is read only as far as it is needed"


def test_no_ranking_lets_the_request_wait_and_says_so():
    made = build(Faulty())
    submit(made, 0)
    assert made.dispatch(0.0) == []
    (head,) = made.heads()
    assert head.blocked == ROUTER
    assert made.router_fault == (0, "")


def test_a_hook_that_raises_stops_no_request():
    class Hooked(Faulty):
        def sent(self, entry, instance, now_s):
            raise RuntimeError("no room")

    made = build(Hooked("i0"))
    submit(made, 0)
    (sent,) = made.dispatch(0.0)
    assert sent.instance == "i0"
    assert made.router_fault == (1, "router 'faulty': sent raised RuntimeError: no room")


def test_each_model_has_its_router_and_it_can_be_replaced_while_requests_wait():
    made = build(make_router("least-loaded"))
    made.set_router("mine", Faulty("i2"))
    for number in range(3):
        submit(made, number, model="mine" if number else "other")
    assert [one.instance for one in made.dispatch(0.0)] == ["i0", "i2", "i2"]
    for number in range(3, 6):
        submit(made, number, model="mine")
    made.set_router("mine", None)
    assert [one.instance for one in made.dispatch(0.0)] == ["i1", "i0", "i1"]
    made.set_router("*", Faulty("i0"))
    submit(made, 6)
    assert [one.instance for one in made.dispatch(0.0)] == ["i0"]
    made.check_conservation()


def test_the_router_that_was_told_of_a_dispatch_is_told_of_its_end():
    """Another router of the request's model, set meanwhile, is not."""
    told: list[tuple[str, str, str]] = []

    class Hooked(Faulty):
        def __init__(self, whose: str) -> None:
            super().__init__("i0")
            self._whose = whose

        def sent(self, entry, instance, now_s):
            told.append((self._whose, "sent", entry.request.id))

        def ended(self, request, instance, cached_tokens):
            told.append((self._whose, "ended", request.id))

    made = build(Hooked("all"))
    submit(made, 0)
    made.dispatch(0.0)
    made.set_router("m", Hooked("own"))
    submit(made, 1)
    made.dispatch(0.0)
    made.set_router("m", None)
    for number in range(2):
        made.end(f"{number:06d}", OutcomeKind.COMPLETED, 1.0, 1)
    assert told == [("all", "sent", "000000"), ("own", "sent", "000001"), ("all", "ended", "000000"), ("own", "ended", "000001")]


def test_turns_count_only_what_was_sent():
    """The KV fence refuses the first in turn: it keeps its turn."""
    specs = [
        InstanceSpec(name="a", capacity_n_run=4, kv_capacity_tokens=50, kv_bytes_per_token=1),
        InstanceSpec(name="b", capacity_n_run=4, kv_capacity_tokens=10_000, kv_bytes_per_token=1),
    ]
    made = Scheduler(settings=SchedulerSettings(fence_overcommit=False), instances=specs, router=make_router("round-robin"), policy="fcfs")
    for name in ("a", "b"):
        made.set_controls(name, Controls(n_run=4))
    for number in range(4):
        submit(made, number, max_output_tokens=20)
    assert [one.instance for one in made.dispatch(0.0)] == ["a", "b", "b", "b"]
    made.end("000000", OutcomeKind.COMPLETED, 1.0, 1)
    for number in range(4, 6):
        submit(made, number, max_output_tokens=20)
    assert [one.instance for one in made.dispatch(1.0)] == ["a", "b"]
