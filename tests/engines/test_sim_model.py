"""The step function keeps vLLM V1's rules, whatever comes in and whatever is turned meanwhile."""

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hmas.engines.base import Knobs
from hmas.engines.errors import EngineError
from hmas.engines.sim.model import EngineModel, SimRequest, StepResult
from hmas.engines.sim.profile import Profile, load_profile

SMALL = Profile(
    name="small",
    gpu="none",
    model="none",
    source="made up for the tests",
    step_ms=10.0,
    prefill_ms_per_token=0.1,
    prefill_ms_per_ktoken_sq=5.0,
    decode_ms_per_seq=0.5,
    decode_ms_per_kv_ktoken=0.2,
    block_size=4,
    kv_blocks=16,
    kv_bytes_per_token=1024,
    max_num_seqs=4,
    max_num_batched_tokens=24,
    max_model_len=64,
)


def run(model: EngineModel, limit: int = 10_000) -> list[StepResult]:
    """Steps until idle."""
    steps: list[StepResult] = []
    now_s = 0.0
    while (result := model.step(now_s)) is not None:
        steps.append(result)
        now_s = result.end_s
        assert len(steps) < limit, "the engine never becomes idle"
    return steps


def finish_times(model: EngineModel) -> dict[str, float]:
    return {event.id: step.end_s for step in run(model) for event in step.produced if event.finished}


requests = st.lists(
    st.builds(
        lambda prompt, output, priority, arrival: (prompt, output, priority, arrival),
        st.integers(1, 48),
        st.integers(1, 16),
        st.integers(-2, 2),
        st.floats(0, 3, allow_nan=False),
    ),
    min_size=1,
    max_size=24,
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("abort"), st.integers(0, 23)),
        st.tuples(st.just("n_run"), st.integers(1, 4)),
        st.tuples(st.just("token_budget"), st.integers(1, 24)),
        st.tuples(st.just("step"), st.just(0)),
        st.tuples(st.just("add"), st.just(0)),
    ),
    max_size=80,
)


@settings(max_examples=150, deadline=None)
@example([(10, 5, 0, 0.0), (44, 6, 0, 1.0)], [("add", 0), ("step", 0)], "priority")
@given(requests, actions, st.sampled_from(["fcfs", "priority"]))
def test_invariants_hold_under_any_history(rows, todo, order):
    model = EngineModel(SMALL, order=order)
    pending = [SimRequest(f"r{i}", p, o, priority, arrival) for i, (p, o, priority, arrival) in enumerate(rows)]
    wanted: dict[str, SimRequest] = {}
    got: dict[str, int] = {}
    aborted: set[str] = set()
    finished: set[str] = set()
    budget, cap, before, now_s = 24, 4, 0, 0.0

    def step() -> bool:
        nonlocal now_s, before
        before = model.running
        result = model.step(now_s)
        if result is None:
            assert model.idle
            return False
        assert result.end_s > now_s
        assert result.prefill_tokens + result.decode_seqs <= budget
        assert result.prefill_tokens + result.decode_seqs > 0, "a step that does nothing"
        assert 0 <= model.batch.pool.free <= SMALL.kv_blocks
        assert model.running <= max(cap, before)
        seen = [event.id for event in result.produced]
        assert len(seen) == len(set(seen))
        for event in result.produced:
            assert event.id in wanted
            assert event.id not in aborted | finished
            got[event.id] = got.get(event.id, 0) + 1
            assert event.tokens_so_far == got[event.id]
            assert event.first == (got[event.id] == 1)
            assert event.finished == (got[event.id] == wanted[event.id].output_tokens)
            if event.finished:
                finished.add(event.id)
        now_s = result.end_s
        return True

    for name, value in todo:
        if name == "add" and pending:
            request = pending.pop()
            model.add(request)
            wanted[request.id] = request
        elif name == "abort":
            request_id = f"r{value}"
            live = request_id in wanted and request_id not in aborted | finished
            assert model.abort(request_id) == live
            if live:
                aborted.add(request_id)
        elif name == "n_run":
            cap = value
            model.apply_knobs(Knobs(n_run=value))
        elif name == "token_budget":
            budget = value
            model.apply_knobs(Knobs(token_budget=value))
        elif name == "step":
            step()
    for request in pending:
        model.add(request)
        wanted[request.id] = request
    for _ in range(50_000):
        if not step():
            break
    assert finished == set(wanted) - aborted, "everything that was not aborted finishes, preempted or not"
    assert model.batch.pool.free == SMALL.kv_blocks
    state = model.snapshot("e", now_s)
    assert (state.running, state.waiting, state.kv_usage) == (0, 0, 0.0)
    assert state.generation_tokens_total == sum(got.values())


@settings(max_examples=40, deadline=None)
@given(requests, st.sampled_from(["fcfs", "priority"]))
def test_same_input_same_steps(rows, order):
    runs = []
    for _ in range(2):
        model = EngineModel(SMALL, order=order)
        for i, (prompt, output, priority, arrival) in enumerate(rows):
            model.add(SimRequest(f"r{i}", prompt, output, priority, arrival))
        runs.append(run(model))
    assert runs[0] == runs[1]


def test_a_lone_request_takes_the_profile_s_time():
    model = EngineModel(SMALL)
    model.add(SimRequest("a", prompt_tokens=10, output_tokens=3))
    steps = run(model)
    assert [step.prefill_tokens for step in steps] == [10, 0, 0]
    assert [step.decode_seqs for step in steps] == [0, 1, 1]
    prefill_s = (10 + 0.1 * 10 + 5.0 * 55e-6) / 1000
    first_decode_s = (10 + 0.5 + 0.2 * 11e-3) / 1000
    second_decode_s = (10 + 0.5 + 0.2 * 12e-3) / 1000
    assert steps[-1].end_s == pytest.approx(prefill_s + first_decode_s + second_decode_s)


def test_a_long_prompt_is_computed_in_chunks_beside_decodes():
    model = EngineModel(SMALL)
    model.add(SimRequest("short", 2, 8))
    first = model.step(0.0)
    assert first is not None
    model.add(SimRequest("long", 40, 1))
    second = model.step(first.end_s)
    assert second is not None
    assert (second.decode_seqs, second.prefill_tokens) == (1, 23)
    third = model.step(second.end_s)
    assert third is not None
    assert (third.decode_seqs, third.prefill_tokens) == (1, 17)
    assert [event.id for event in third.produced] == ["short", "long"]


def test_a_full_cache_preempts_the_latest_and_it_still_finishes():
    model = EngineModel(SMALL)
    for name in ("a", "b", "c"):
        model.add(SimRequest(name, 12, 20))
    steps = run(model)
    preempted = [name for step in steps for name in step.preempted]
    assert preempted
    assert "a" not in preempted
    assert {event.id for step in steps for event in step.produced if event.finished} == {"a", "b", "c"}
    assert model.snapshot("e", 0).preemptions_total == len(preempted)
    assert sum(step.prefill_tokens for step in steps) > 36, "what was preempted is computed again"


def test_priority_order_serves_the_lower_value_first_and_preempts_the_higher():
    model = EngineModel(SMALL, n_run=1, order="priority")
    for name, priority in (("late", 5), ("soon", -5), ("middle", 0)):
        model.add(SimRequest(name, 4, 2, priority))
    times = finish_times(model)
    assert sorted(times, key=times.__getitem__) == ["soon", "middle", "late"]
    model = EngineModel(SMALL, order="priority")
    model.add(SimRequest("low", 12, 20, priority=9))
    model.add(SimRequest("high", 12, 20, priority=1))
    model.add(SimRequest("mid", 12, 20, priority=5))
    assert {name for step in run(model) for name in step.preempted} == {"low"}


def test_fcfs_ignores_priority():
    model = EngineModel(SMALL, n_run=1)
    for name, priority in (("first", 5), ("second", -5)):
        model.add(SimRequest(name, 4, 2, priority))
    times = finish_times(model)
    assert times["first"] < times["second"]


def test_lowering_the_window_evicts_nothing():
    model = EngineModel(SMALL)
    for i in range(4):
        model.add(SimRequest(f"r{i}", 4, 6))
    result = model.step(0.0)
    assert model.running == 4
    assert model.apply_knobs(Knobs(n_run=1)).applied == {"n_run": 1}
    for i in range(3):
        model.add(SimRequest(f"next{i}", 4, 2))
    seen = []
    while result is not None:
        seen.append(model.running)
        result = model.step(result.end_s)
    assert seen == [4, 4, 4, 4, 4, 0, 1, 0, 1, 0, 1, 0]
    assert model.snapshot("e", 0).max_num_seqs == 1


def test_knobs_beyond_the_start_values_are_refused():
    model = EngineModel(SMALL, n_run=3)
    report = model.apply_knobs(Knobs(n_run=4, token_budget=8))
    assert report.applied == {"token_budget": 8}
    assert report.refused == {"n_run": "4: allowed 1 to 3, the value at start"}
    assert model.apply_knobs(Knobs(n_run=0)).refused
    assert model.snapshot("e", 0).max_num_seqs == 3


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (SimRequest("a", 60, 5), "allowed up to 64 together"),
        (SimRequest("a", 0, 5), "prompt_tokens 0"),
        (SimRequest("a", 5, 0), "output_tokens 0"),
        (SimRequest("taken", 5, 5), "already"),
    ],
)
def test_what_does_not_fit_is_refused(request_, word):
    model = EngineModel(SMALL)
    model.add(SimRequest("taken", 1, 1))
    with pytest.raises(EngineError, match=word):
        model.add(request_)


def test_aborted_waiting_requests_leave_no_trace():
    model = EngineModel(SMALL, n_run=1)
    model.add(SimRequest("keeps", 4, 40))
    assert model.step(0.0) is not None
    for i in range(500):
        model.add(SimRequest(f"w{i}", 4, 4))
        assert model.abort(f"w{i}")
    assert len(model.batch.queue) < 50
    assert model.waiting == 0


def test_the_demo_profile_has_the_speed_it_says():
    profile = load_profile("demo-small")

    def tpot_ms(running: int) -> float:
        return 1000 * profile.step_duration_s(prefill_tokens=0, prefill_pairs=0, decode_seqs=running, decode_kv_tokens=running * 1000)

    assert tpot_ms(1) == pytest.approx(18, abs=0.5)
    assert tpot_ms(32) == pytest.approx(32, abs=0.5)
    model = EngineModel(profile)
    model.add(SimRequest("p", 2048, 1))
    (step,) = run(model)
    assert 2048 / step.end_s == pytest.approx(6000, rel=0.05)
    assert profile.kv_capacity_tokens == 60_000


def test_a_step_of_256_sequences_is_cheap():
    """In proportion to the running ones: what waits costs nothing."""
    model = EngineModel(msgspec.structs.replace(load_profile("demo-small"), kv_blocks=1 << 20))
    for i in range(5000):
        model.add(SimRequest(f"r{i}", 8, 1000))
    now_s = 0.0
    for _ in range(20):
        result = model.step(now_s)
        assert result is not None
        now_s = result.end_s
    assert model.running == 256
    assert model.waiting == 5000 - 256
