"""A stretch of steps planned at once is the same as its steps one by one, and both are what the plain rules say."""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_engine import ReferenceEngine

from hmas.engines.base import Knobs
from hmas.engines.sim.model import EngineModel, SimRequest
from hmas.engines.sim.profile import Profile

SMALL = Profile(
    name="small",
    gpu="none",
    model="none",
    source="made up for the tests",
    step_ms=10.0,
    token_curve=((1, 0.0), (4, 0.5), (24, 6.0)),
    prefill_ms_per_token=0.1,
    prefill_ms_per_ktoken_sq=5.0,
    decode_ms_per_seq=0.5,
    prefill_ms_per_seq=0.7,
    decode_ms_per_kv_ktoken=20.0,
    block_size=4,
    kv_blocks=24,
    kv_bytes_per_token=1024,
    swap_gb_per_s=1.0,
    max_num_seqs=6,
    max_num_batched_tokens=24,
    max_model_len=96,
)


class Act(NamedTuple):
    """Something that happens to an engine at a time: `add` a request, `abort` one, or turn a knob."""

    at_s: float
    kind: str
    value: int
    request: SimRequest | None = None


class Told(NamedTuple):
    """A token that somebody waits for: the first, or the last."""

    at_s: float
    id: str
    tokens: int
    first: bool
    finished: bool


def act(engine: EngineModel | ReferenceEngine, todo: Act) -> None:
    if todo.kind == "add":
        assert todo.request is not None
        engine.add(todo.request)
    elif todo.kind == "abort":
        engine.abort(f"r{todo.value}")
    elif isinstance(engine, ReferenceEngine):
        setattr(engine, "n_run" if todo.kind == "n_run" else "budget", todo.value)
    else:
        report = engine.apply_knobs(Knobs(n_run=todo.value) if todo.kind == "n_run" else Knobs(token_budget=todo.value))
        assert not report.refused


def by_steps(engine: EngineModel | ReferenceEngine, acts: Iterable[Act]) -> list[Told]:
    """Runs it a step at a time."""
    told: list[Told] = []
    pending = sorted(acts)
    gone: set[str] = set()
    now_s = 0.0
    while True:
        result = engine.step(now_s)
        if result is None:
            if not pending:
                return told
            now_s = max(now_s, pending[0].at_s)
        while pending and pending[0].at_s <= (now_s if result is None else result.end_s):
            todo = pending.pop(0)
            act(engine, todo)
            if todo.kind == "abort":
                gone.add(f"r{todo.value}")
        if result is not None:
            now_s = result.end_s
            told += [
                Told(now_s, e.id, e.tokens_so_far, e.first, e.finished)
                for e in result.produced
                if (e.first or e.finished) and e.id not in gone
            ]


def by_stretches(engine: EngineModel, acts: Iterable[Act]) -> list[Told]:
    """Runs it a stretch at a time, as the simulation does."""
    told: list[Told] = []
    pending = sorted(acts)
    gone: set[str] = set()

    def end() -> None:
        now_s = engine.due_s
        assert now_s is not None
        stretch = engine.end()
        events = {(e.id, e.tokens_so_far): e for e in [*stretch.first, *stretch.finished]}.values()
        told.extend(Told(now_s, e.id, e.tokens_so_far, e.first, e.finished) for e in events if (e.first or e.finished) and e.id not in gone)

    for now_s in moments(engine, pending):
        if engine.due_s == now_s:
            end()
        while pending and pending[0].at_s == now_s:
            todo = pending.pop(0)
            engine.sync(now_s)
            if todo.kind == "abort":
                gone.add(f"r{todo.value}")
            act(engine, todo)
        if engine.due_s == now_s:
            end()
        if engine.due_s is None:
            engine.begin(now_s)
    return told


def moments(engine: EngineModel, pending: list[Act], until_s: float = float("inf")) -> Iterator[float]:
    """Times at which a stretch ends or something happens, before `until_s`."""
    while True:
        times = [act.at_s for act in pending[:1]] + ([] if engine.due_s is None else [engine.due_s])
        if not times or min(times) >= until_s:
            return
        yield min(times)


rows = st.lists(st.tuples(st.floats(0, 1.5), st.integers(1, 40), st.integers(1, 40), st.integers(-2, 2)), min_size=1, max_size=20)
turns = st.lists(
    st.tuples(st.floats(0, 2.5), st.one_of(
        st.tuples(st.just("abort"), st.integers(0, 19)),
        st.tuples(st.just("n_run"), st.integers(1, 6)),
        st.tuples(st.just("budget"), st.integers(1, 24)),
    )),
    max_size=8,
)  # fmt: skip


def acts_of(requests: list[tuple[float, int, int, int]], turned: list[tuple[float, tuple[str, int]]]) -> list[Act]:
    adds = [Act(at, "add", i, SimRequest(f"r{i}", prompt, out, priority, at)) for i, (at, prompt, out, priority) in enumerate(requests)]
    return adds + [Act(at, kind, value) for at, (kind, value) in turned]


def rounded(told: list[Told]) -> list[Told]:
    return sorted(row._replace(at_s=round(row.at_s, 9)) for row in told)


@settings(max_examples=300, deadline=None)
@example([(0.0, 30, 38, 0)] * 6, [], "fcfs")
@example([(0.0, 1, 1, 0)] * 6 + [(1.125, 1, 36, 0), (1.125, 32, 32, 0), (1.5, 1, 1, 0)], [(1.5625, ("abort", 7))], "fcfs")
@given(rows, turns, st.sampled_from(["fcfs", "priority"]))
def test_stretches_steps_and_the_plain_rules_agree(requests, turned, order):
    acts = acts_of(requests, turned)
    reference = ReferenceEngine(SMALL, order=order)
    stepping, jumping = EngineModel(SMALL, order=order), EngineModel(SMALL, order=order)
    expected = rounded(by_steps(reference, acts))
    steps, stretches = by_steps(stepping, acts), by_stretches(jumping, acts)
    assert rounded(steps) == expected
    assert sorted(stretches) == sorted(steps), "to the last bit"
    for engine in (stepping, jumping):
        state = engine.snapshot("e", 99.0)
        assert state.preemptions_total == reference.preemptions
        assert (state.running, state.waiting, engine.batch.pool.free) == (0, 0, SMALL.kv_blocks)
    assert stepping.snapshot("e", 0.0) == jumping.snapshot("e", 0.0)


@settings(max_examples=100, deadline=None)
@given(rows, st.floats(0, 3))
def test_tokens_at_any_moment_are_those_that_were_handed_out(requests, at_s):
    acts = acts_of(requests, [])
    jumping, stepping = EngineModel(SMALL), EngineModel(SMALL)
    pending = sorted(acts)
    for now_s in moments(jumping, pending, at_s):
        if jumping.due_s == now_s:
            jumping.end()
        while pending and pending[0].at_s == now_s:
            jumping.sync(now_s)
            act(jumping, pending.pop(0))
        if jumping.due_s == now_s:
            jumping.end()
        if jumping.due_s is None:
            jumping.begin(now_s)
    counted: dict[str, int] = {}
    generated, now_s = 0, 0.0
    pending = [todo for todo in sorted(acts) if todo.at_s < at_s]
    while now_s < at_s:
        result = stepping.step(now_s)
        if result is None:
            if not pending:
                break
            now_s = max(now_s, pending[0].at_s)
        while pending and pending[0].at_s <= (now_s if result is None else result.end_s):
            act(stepping, pending.pop(0))
        if result is not None:
            now_s = result.end_s
            for event in result.produced if now_s <= at_s else []:
                generated += 1
                counted[event.id] = event.tokens_so_far
    seen = {name: tokens for name, tokens in jumping.tokens(at_s) if tokens}
    assert jumping.generated(at_s) == generated
    # A preempted sequence is no longer counted until it decodes again.
    assert all(counted[name] == tokens for name, tokens in seen.items())


def test_cost_grows_with_what_happens_not_with_tokens():
    roomy = msgspec.structs.replace(SMALL, kv_blocks=1 << 20, max_model_len=1 << 20)
    engine = EngineModel(roomy)
    for i in range(4):
        engine.add(SimRequest(f"r{i}", 4, 100_000 + i))
    stretches = 0
    now_s = 0.0
    while (due_s := engine.begin(now_s)) is not None:
        stretches += 1
        engine.end()
        now_s = due_s
    assert stretches <= 8
    assert engine.snapshot("e", now_s).generation_tokens_total == 400_006


def test_a_shared_prefix_is_computed_once():
    engine = EngineModel(SMALL)
    engine.add(SimRequest("a", 21, 2, block_hashes=(1, 2), hash_tokens=8))
    engine.add(SimRequest("b", 21, 2, block_hashes=(1, 9), hash_tokens=8))
    first = engine.step(0.0)
    assert first is not None
    assert first.prefill_tokens == 21 + 3, "b's first 8 tokens are there already; 3 of the rest fit into the step"
    assert engine.batch.pool.free == 24 - 6 - 1
    while (result := engine.step(first.end_s)) is not None:
        first = result
    assert engine.batch.pool.free == 24, "what nobody holds can be taken"
    engine.add(SimRequest("c", 17, 1, block_hashes=(1, 2), hash_tokens=8))
    again = engine.step(9.0)
    assert again is not None
    assert again.prefill_tokens == 1


def test_a_cached_prefix_gives_way_the_oldest_first():
    engine = EngineModel(SMALL)
    for number, name in enumerate(("old", "new")):
        engine.add(SimRequest(name, 33, 1, block_hashes=(10 * number + 1, 10 * number + 2), hash_tokens=16))
        now_s = 0.0
        while (result := engine.step(now_s)) is not None:
            now_s = result.end_s
    engine.add(SimRequest("big", 60, 8))
    while (result := engine.step(now_s)) is not None:
        now_s = result.end_s
    engine.add(SimRequest("again", 33, 1, block_hashes=(11, 12), hash_tokens=16))
    kept = engine.step(now_s)
    assert kept is not None
    assert kept.prefill_tokens < 33, "the newer prompt's head is still there"


def test_a_prompt_that_is_all_cached_still_computes_its_end():
    engine = EngineModel(SMALL)
    for name in ("a", "b"):
        engine.add(SimRequest(name, 16, 1, block_hashes=(1, 2), hash_tokens=8))
        result = engine.step(0.0)
        assert result is not None
        assert result.prefill_tokens == (16 if name == "a" else 8)


def test_swapping_preempts_without_computing_again():
    def run(preemption: Literal["recompute", "swap"]) -> tuple[int, int]:
        engine = EngineModel(SMALL, preemption=preemption)
        for i in range(4):
            engine.add(SimRequest(f"r{i}", 12, 24))
        now_s, prefill = 0.0, 0
        while (result := engine.step(now_s)) is not None:
            now_s, prefill = result.end_s, prefill + result.prefill_tokens
        assert engine.batch.pool.free == SMALL.kv_blocks
        return prefill, engine.snapshot("e", now_s).preemptions_total

    (computed, preempted), (swapped, moved) = run("recompute"), run("swap")
    assert preempted
    assert moved
    assert swapped == 48
    assert computed > 48
