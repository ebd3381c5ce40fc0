"""What the scheduler makes of prompts that an engine has cached: what it books, what the guard lets pass, and who waits for a cache."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pytest
from routing_kit import State, entry
from typing_kit import of_type

from hmas.controller.core.placement import Choice, InstanceState, Routable
from hmas.controller.core.prompt_texts import BLOCK_TOKENS, BLOCKS_MOST
from hmas.controller.core.types import Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.routing.scorers.prefix import Prefix
from hmas.controller.scheduling.instances.speed import InstanceSpeed
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.model_queue import GUARD
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

LONG, CACHED = 4000, 3900


class Knowing:
    """Prefers the first instance, which has most of long prompts cached; the second has nothing."""

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterable[Choice]:
        for one in sorted(instances, key=lambda one: one.name):
            yield Choice(one.name, "so", (), CACHED if one.name == "i0" and entry.request.prompt_tokens == LONG else 0)


def build_empty() -> Scheduler:
    specs = [InstanceSpec(name=name, capacity_n_run=64) for name in ("i0", "i1")]
    settings = SchedulerSettings(tpot_guard=0.5, overdue="keep")
    return Scheduler(settings=settings, instances=specs, router=Knowing(), policy="fcfs")


def build() -> Scheduler:
    made = build_empty()
    # Each has shown 0.2 ms per token, and has one answer in flight that can bear about 0.4 s more.
    for number, name in enumerate(("i0", "i1")):
        submit(made, f"first-{name}", prompt=1000 + number, at_s=0.0)
        made.instances["i0"].drain(draining=name == "i1")
        assert [one.instance for one in made.dispatch(0.0)] == [name]
        made.progress(f"first-{name}", 1, 0.2)
    made.instances["i0"].drain(draining=False)
    return made


def submit(made: Scheduler, name: str, *, prompt: int = LONG, at_s: float = 0.2, ttft_ms: float = 1e6, output: float = 41.0) -> QueueEntry:
    request = Request(id=name, tenant="t", model="m", arrival_s=at_s, prompt_tokens=prompt, stream=True)
    estimates = Estimates(slo=Slo(ttft_ms=ttft_ms, tpot_ms=40.0), output_tokens=output, ttft_ms=200.0, tpot_ms=20.0)
    return of_type(QueueEntry, made.submit(request, estimates, at_s))


def test_only_what_has_to_be_computed_is_work():
    made = build()
    submit(made, "a")
    assert [one.instance for one in made.dispatch(0.2)] == ["i0"], "4,000 tokens would take 0.8 s, 100 of them take 20 ms"
    assert made.instances["i0"].prefill_tokens == LONG - CACHED
    made.progress("a", 1, 0.3)
    assert made.instances["i0"].prefill_tokens == 0
    submit(made, "b")
    made.dispatch(0.3)
    assert made.instances["i0"].prompts.left_ms(0.3) > 0.0
    made.end("b", OutcomeKind.CANCELLED, 0.4)
    assert (made.instances["i0"].prefill_tokens, made.instances["i0"].prompts.left_ms(0.4)) == (0, 0.0)


def test_a_cached_prompt_counts_as_a_step_and_a_half_at_least():
    """At 36 ms a token the answer in flight can bear 160 ms more; what the prompt has to compute takes 20."""
    made = build()
    waiting = submit(made, "a")
    for one in made.instances.values():
        one.token_ms = 36.0
    made.set_tpot_guard(0.3)
    assert made.dispatch(0.2) == []
    assert waiting.blocked == GUARD
    made.set_tpot_guard(0.35)
    assert [one.instance for one in made.dispatch(0.2)] == ["i0"]


@pytest.mark.parametrize(("cached", "left"), [(10_000, 0), (-5, LONG)])
def test_a_router_that_errs_about_caches_does_not_spoil_the_accounts(cached: int, left: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Knowing, "rank", lambda *_: [Choice("i0", "so", (), cached)])
    made = build_empty()
    submit(made, "a")
    assert [one.instance for one in made.dispatch(0.2)] == ["i0"]
    assert made.instances["i0"].prefill_tokens == left
    made.end("a", OutcomeKind.CANCELLED, 0.3)
    assert made.instances["i0"].prefill_tokens == 0


def without_room(made: Scheduler, tokens: int) -> float:
    """The first instance's answer has used nearly all of its time with so many tokens; the other instance is empty. Returns the time."""
    now_s = 0.2 + (40.0 * tokens - 50.0) / 1000.0
    made.progress("first-i0", tokens, now_s)
    if made.instances["i1"].in_flight:
        made.end("first-i1", OutcomeKind.COMPLETED, now_s)
    return now_s


def test_a_request_waits_for_its_cache_as_long_as_another_instance_would_compute_longer():
    made = build()
    now_s = without_room(made, 40)
    waiting = submit(made, "a", at_s=now_s)
    assert made.dispatch(now_s) == []
    assert waiting.blocked == GUARD
    assert made.dispatch(without_room(made, 58)) == [], "0.72 s later"
    assert [one.instance for one in made.dispatch(without_room(made, 60))] == ["i1"], "0.8 s later"


def test_a_request_at_its_last_moment_does_not_wait_for_a_cache():
    made = build()
    now_s = without_room(made, 40)
    submit(made, "a", at_s=now_s, ttft_ms=850.0)
    submit(made, "b", at_s=now_s)
    assert [(one.entry.request.id, one.instance) for one in made.dispatch(now_s)] == [("a", "i1")]


def test_the_time_of_a_token_is_learned_from_prompts_that_are_computed():
    pace = InstanceSpeed()
    pace.prefilled(100.0, 1000)
    assert pace.computed_ms(1000, 900, 77.0) == pytest.approx(10.0), "nothing is known of caches yet"
    for _ in range(500):
        pace.prefilled(200.0, 1000, 0)
        pace.prefilled(30.0, 4000, 3950)
    assert pace.prefill_ms(1000, 0.0) == pytest.approx(46.0, rel=0.02), "as much cached as usual"
    assert pace.computed_ms(1000, 0, 0.0) == pytest.approx(200.0)
    assert pace.computed_ms(1000, 1000, 0.0) == pytest.approx(0.2), "one token at least"


def test_a_cache_is_known_once_the_engine_has_reported_a_hit():
    scorer, blocks = Prefix(), tuple(range(10))
    first, second, third = (entry(640, blocks=blocks) for _ in range(3))
    assert scorer.cached(entry(640), "a") is None, "no blocks, nothing known"
    scorer.sent(first, "a", 0.0)
    assert scorer.cached(second, "a") is None, "it may keep no cache"
    scorer.sent(second, "a", 0.0)
    scorer.ended(second.request, "a", 610)
    assert 550 < (scorer.cached(third, "a") or 0) < 640
    assert scorer.cached(third, "b") is None
    scorer.left("a")
    assert scorer.cached(third, "a") is None


class Published:
    """What one engine publishes: all of its blocks, and 320 tokens of the prompt among them, or that no token of it is known."""

    def __init__(self, *, known: bool) -> None:
        self.complete = ("a",) if known else ()
        self._found = ({"a": 320}, 640) if known else ({}, 0)

    def look(self) -> tuple[Mapping[str, int], int]:
        return self._found


def test_what_one_engine_publishes_says_nothing_of_another():
    scorer, blocks = Prefix(), tuple(range(10))

    def asked(*, known: bool) -> QueueEntry:
        one = entry(640, blocks=blocks)
        one.request = msgspec.structs.replace(one.request, cached=Published(known=known))
        return one

    for name in "ab":
        scorer.sent(entry(640, blocks=blocks), name, 0.0)
    assert scorer.cached(asked(known=False), "a") is None, "it may publish nothing"
    assert scorer.cached(asked(known=True), "a") == 320
    assert scorer.cached(asked(known=True), "b") is None, "it has never shown a hit"
    assert 550 < (scorer.cached(asked(known=False), "a") or 0) < 640, "what was sent there, as it keeps a cache"


def test_pictures_are_not_taken_for_cached_text():
    """Ten of them count 5,120 tokens, beside three blocks of text."""
    scorer, blocks = Prefix(), (1, 2, 3)
    scorer.sent(entry(5380, blocks=blocks), "a", 0.0)
    assert scorer.score(entry(5380, blocks=blocks), [State("a", caches_prefixes=True), State("b")], 0.0)[0] < 0.15
    assert scorer.cached(entry(5380, blocks=blocks), "a") == 3 * 256


def test_what_lies_behind_the_blocks_of_a_long_prompt_is_not_taken_for_cached():
    scorer, blocks = Prefix(), tuple(range(BLOCKS_MOST))
    first, longer = entry(70_000, blocks=blocks), entry(165_000, blocks=blocks)
    scorer.sent(first, "a", 0.0)
    scorer.ended(first.request, "a", 100)
    assert scorer.cached(longer, "a") == BLOCKS_MOST * BLOCK_TOKENS == 65_536
    assert scorer.score(longer, [State("a"), State("b")], 0.0) == [pytest.approx(65_536 / 165_000), 0.0]


def test_a_router_of_scorers_says_what_is_cached_also_of_the_only_instance():
    router = make_router("default")
    for _ in range(2):
        one = entry(640, blocks=tuple(range(10)))
        router.sent(one, "a", 0.0)  # type: ignore[attr-defined]  # a hook of routers that are made of scorers
        router.ended(one.request, "a", 600)  # type: ignore[attr-defined]  # likewise
    for states in ([State("a")], [State("a"), State("b")]):
        known = {choice.instance: choice.cached_tokens for choice in router.rank(entry(640, blocks=tuple(range(10))), states, 0.0)}
        assert (known["a"] or 0) > 500
        assert known.get("b") is None
    assert next(iter(make_router("least-loaded").rank(entry(640), [State("a")], 0.0))).cached_tokens is None


def test_an_engine_that_is_flooded_from_its_start_shows_how_long_prompts_take():
    made = build_empty()
    made.instances["i1"].drain(draining=True)
    for number in range(3):
        submit(made, f"{number}", prompt=1000 + number, at_s=0.0)
    assert len(made.dispatch(0.0)) == 3
    speed = made.instances["i0"].pace
    assert speed.computed_ms(1000, 0, 7.0) == 7.0
    # None of them has the engine to itself.
    for number in range(3):
        made.progress(f"{number}", 1, 0.2 * (number + 1))
    assert speed.computed_ms(1000, 0, 7.0) == pytest.approx(200.0, rel=0.01)
    assert speed.prefill_ms(1000, 7.0) == 7.0, "what is usual is learned from prompts alone"
