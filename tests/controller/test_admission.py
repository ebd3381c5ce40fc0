"""The KV fence: Eq. 4's bound, and Eq. 2's sum under any sequence of events."""

from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.core.messages import LengthBound
from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.instances.kv_fence import Fence, upper_tokens
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

BOUNDS = (
    LengthBound(prompt_tokens_below=256, add_tokens=40.5, samples=50),
    LengthBound(prompt_tokens_below=1024, add_tokens=-500.0, samples=50),
    LengthBound(prompt_tokens_below=0, add_tokens=300.0, samples=50),
)


def entry(prompt, output=100.0, upper=250.0, cap=None):
    request = Request(id="r", tenant="t", model="m", arrival_s=0.0, prompt_tokens=prompt, max_output_tokens=cap)
    slo = Slo(ttft_ms=1, tpot_ms=1)
    return QueueEntry(request=request, estimates=Estimates(slo=slo, output_tokens=output, output_tokens_upper=upper), seq=0)


def test_the_bound_is_that_of_the_prompts_bucket():
    assert upper_tokens(entry(100), BOUNDS) == 100 + 141
    assert upper_tokens(entry(255), BOUNDS) == 255 + 141
    assert upper_tokens(entry(5000), BOUNDS) == 5000 + 400


def test_a_models_own_bound_stands_before_that_of_all():
    own = LengthBound(prompt_tokens_below=256, add_tokens=900.0, samples=50, model="m")
    other = LengthBound(prompt_tokens_below=0, add_tokens=7000.0, samples=50, model="other")
    assert upper_tokens(entry(100), (other, own, *BOUNDS)) == 100 + 1000
    assert upper_tokens(entry(5000), (other, own, *BOUNDS)) == 5000 + 400


def test_at_least_one_output_token_counts_and_the_clients_cap_holds():
    assert upper_tokens(entry(256), BOUNDS) == 256 + 1
    assert upper_tokens(entry(100, cap=20), BOUNDS) == 120


def test_without_bounds_the_upper_estimate_stands_in():
    assert upper_tokens(entry(100), ()) == 350
    assert upper_tokens(entry(100), BOUNDS[:1]) == 241
    assert upper_tokens(entry(300), BOUNDS[:1]) == 550


events = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "grow", "resize"]), st.integers(0, 9), st.integers(1, 1500)), min_size=1, max_size=60
)


@given(events)
def test_nobody_is_admitted_past_the_limit(script):
    fence = Fence(1000, 7, 0.1)
    held: dict[str, int] = {}
    asked: dict[str, int] = {}
    for step, number, tokens in script:
        name = str(number)
        if step == "join" and name not in held and fence.admits(tokens):
            need = min(tokens * 7, fence.limit_bytes)
            assert not held or sum(held.values()) + need <= fence.limit_bytes
            fence.commit(name, tokens)
            held[name], asked[name] = need, tokens * 7
        elif step == "leave":
            fence.release(name)
            held.pop(name, None)
        elif step == "grow" and name in held:
            fence.outgrow(name, tokens)
            held[name] = max(held[name], tokens * 7)
        elif step == "resize":
            fence.resize(tokens)
            # What cannot be booked in full any more keeps its booking, for nobody is evicted; what was cut grows with the limit.
            held = {one: max(booked, min(asked[one], fence.limit_bytes)) for one, booked in held.items()}
        assert fence.committed_bytes == sum(held.values())
        assert fence.free_bytes == fence.limit_bytes - sum(held.values())


def test_one_too_large_for_comfort_runs_alone():
    fence = Fence(1000, 1, 0.0)
    assert fence.admits(5000)
    fence.commit("big", 5000)
    assert fence.share == 1.0
    assert not fence.admits(1)
    fence.release("big")
    fence.commit("small", 1)
    assert not fence.admits(5000)
    assert not fence.fits(1001)


def test_a_booking_that_the_limit_cut_grows_with_it():
    fence = Fence(200, 1, 0.0)
    fence.commit("large", 568)
    assert fence.committed_bytes == 200
    fence.resize(322)
    assert (fence.committed_bytes, fence.admits(33)) == (322, False)
    fence.resize(1000)
    assert (fence.committed_bytes, fence.admits(432), fence.admits(433)) == (568, True, False)
    fence.release("large")
    assert fence.committed_bytes == 0


def test_no_capacity_means_no_fence():
    fence = Fence(0, 1, 0.1)
    fence.commit("a", 10**9)
    assert fence.admits(10**9)
    assert fence.fits(10**9)
    assert fence.share == 0.0


def test_a_booking_can_be_made_anew():
    fence = Fence(1000, 2, 0.0)
    fence.commit("a", 100)
    fence.commit("a", 40)
    assert fence.committed_bytes == 80
    assert fence.limit_tokens == 1000
