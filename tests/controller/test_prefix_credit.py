"""What requests share is booked once, never for more than was seen, and only while somebody in flight holds it."""

from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.instances.kv_fence import Fence
from hmas.controller.scheduling.instances.prefix_credit import PrefixCredit
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings


def request(number=0, *, prompt=100, session="s", tenant="a", at_s=0.0):
    return Request(id=f"{number:06d}", tenant=tenant, model="m", arrival_s=at_s, prompt_tokens=prompt, session=session)


def test_the_least_of_what_was_seen_is_expected_and_a_miss_ends_it():
    credit = PrefixCredit()
    credit.learn(request(), 80)
    assert credit.expected(request()) == 0
    credit.learn(request(), 60)
    assert credit.expected(request()) == 60
    assert credit.expected(request(prompt=50)) == 49
    assert credit.expected(request(session="other")) == credit.expected(request(tenant="b")) == credit.expected(request(session="")) == 0
    credit.learn(request(), 0)
    for _ in range(7):
        credit.learn(request(), 90)
        assert credit.expected(request()) == 0
    credit.learn(request(), 90)
    assert credit.expected(request()) == 90


def test_the_table_is_bounded():
    credit = PrefixCredit()
    for number in range(5000):
        credit.learn(request(session=f"s{number}"), 10)
    credit.learn(request(session=""), 10)
    assert len(credit) == 4096


steps = st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 900), st.integers(0, 3), st.integers(0, 400)), max_size=60)


@given(steps)
def test_a_shared_prefix_is_booked_once_from_first_to_last(script):
    fence = Fence(1000, 7, 0.1)
    live: dict[str, tuple[int, int, int]] = {}
    largest: dict[int, int] = {}
    for joins, number, tokens, group, shared in script:
        name = str(number)
        if joins and name not in live:
            prefix, part = (group, shared) if group and shared else (None, 0)
            if not fence.admits(tokens, prefix, part):
                continue
            fence.commit(name, tokens, prefix, part)
            need = min(7 * tokens, fence.limit_bytes)
            live[name] = (need, group if part else 0, min(need, 7 * part))
            if part:
                largest[group] = max(largest.get(group, 0), live[name][2])
            assert fence.committed_bytes <= fence.limit_bytes
        elif not joins:
            fence.release(name)
            live.pop(name, None)
        held = {one[1] for one in live.values()}
        largest = {group: size for group, size in largest.items() if group in held}
        assert fence.committed_bytes == sum(need - part for need, _, part in live.values()) + sum(largest.values())


def believed(output=50.0):
    return Estimates(slo=Slo(ttft_ms=600_000, tpot_ms=100), output_tokens=output, output_tokens_upper=output)


def build(*, credit):
    made = Scheduler(
        settings=SchedulerSettings(fence_margin=0.0, fence_prefix_credit=credit),
        instances=[InstanceSpec(name="i0", capacity_n_run=64, kv_capacity_tokens=2000, kv_bytes_per_token=3)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    made.set_controls("i0", Controls(n_run=64))
    return made


def serve(made, numbers, cached):
    for number in numbers:
        made.submit(request(number, prompt=800), believed(), 0.0)
        (one,) = made.dispatch(0.0)
        made.end(one.entry.request.id, OutcomeKind.COMPLETED, 0.0, 10, cached_tokens=cached)


def test_with_credit_more_of_the_same_prefix_run_together():
    for credit, together in ((False, 2), (True, 8)):
        made = build(credit=credit)
        serve(made, range(3), 700)
        for number in range(10, 30):
            made.submit(request(number, prompt=800), believed(), 1.0)
        # The first takes 850 tokens, the others 150 beside the 700 that are there already: 850 + 7 x 150 = 1900.
        assert len(made.dispatch(1.0)) == together


def test_what_was_cached_of_those_that_ended_earns_nothing():
    made = build(credit=True)
    serve(made, range(3), 700)
    for number in range(10, 13):
        made.submit(request(number, prompt=1500, session=f"s{number}"), believed(), 1.0)
    made.submit(request(13, prompt=800), believed(), 1.0)
    made.dispatch(1.0)
    assert made.instances["i0"].fence.committed_bytes == 3 * 1550


def test_a_miss_takes_the_credit_back():
    made = build(credit=True)
    serve(made, range(3), 700)
    serve(made, range(3, 4), 0)
    for number in range(10, 30):
        made.submit(request(number, prompt=800), believed(), 1.0)
    assert len(made.dispatch(1.0)) == 2
