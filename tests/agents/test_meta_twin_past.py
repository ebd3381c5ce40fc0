"""What the digital twin makes of the past: what ran and waited when a replay begins, and how long the open answers will get."""

from collections import Counter
from statistics import fmean

import numpy as np
import pytest
from message_kit import request_features
from msgspec.structs import replace
from twin_kit import PLAIN, asked, completion, plant, world

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.twin.carried import Open, carried, open_of
from hmas.agents.meta.twin.lengths import KINDS_MOST, LIKE, Lengths
from hmas.agents.meta.twin.past_requests import APART_MOST, LOST_S, REFUSED_KEPT, Traffic
from hmas.agents.meta.twin.replay import replay
from hmas.agents.perception.model import PerceptionModel
from hmas.controller.core.notices import notice_of
from hmas.controller.core.request_body import read_call
from hmas.controller.core.types import OutcomeKind

# -- what is there when a replay begins


def test_what_a_span_finds_there_comes_with_it():
    traffic = Traffic()
    waits = completion(1, 100.0, 500, queue_ms=20_000.0, total_ms=40_000.0, ttft_slo_ms=15_000.0)
    runs = completion(2, 100.0, 500, queue_ms=0.0, total_ms=20_000.0)
    gone = completion(3, 100.0, 500, queue_ms=0.0, total_ms=9_000.0)
    later = completion(4, 111.0, 500)
    for one in (waits, runs, gone, later):
        traffic.completion(one)
    kept, left_out = carried(traffic.there(110.0), 110.0, 10, Open())
    found = {one.request.id: one for one in kept}
    assert found.keys() == {"r1", "r2"}
    assert left_out == 0
    assert all(one.request.arrival_s == 110.0 for one in kept)
    assert (found["r1"].request.prompt_tokens, found["r1"].output_tokens, found["r1"].believed.slo.ttft_ms) == (200, 500, 5_000.0)
    assert (found["r2"].request.prompt_tokens, found["r2"].output_tokens) == (1, 250)
    assert traffic.there(100.0 + LOST_S + 1.0) == []


def features_of(number: int, at_s: float):
    return request_features(f"r{number}", sent_s=at_s, ttft_slo_ms=800.0, tpot_slo_ms=60.0, output_tokens=70.0, output_tokens_p90=90.0)


def test_what_came_to_a_gateway_that_is_gone_is_not_open_any_more():
    traffic = Traffic()
    traffic.completion(completion(1, 90.0, 50, total_ms=20_000.0))
    for number, at_s in ((2, 91.0), (3, 99.0), (4, 104.0)):
        traffic.features(features_of(number, at_s))
    for tick in range(100, 104):
        traffic.alive("one", float(tick), 4)
    for tick in range(102, 108):
        # Two that speak in turn are both alive.
        traffic.alive("two", float(tick), 1)
        assert {one.request.id for one in traffic.there(104.5)} == {"r1", "r2", "r3", "r4"}
    traffic.alive("two", 109.0, 1)
    assert {one.request.id for one in traffic.there(104.5)} == {"r1", "r4"}, "those that ended, and what came to the other"
    traffic.alive("two", 50.0, 1)
    assert {one.request.id for one in traffic.there(104.5)} == {"r1", "r4"}


def test_what_came_to_a_gateway_before_it_was_started_again_under_its_name_is_not_open_any_more():
    traffic = Traffic()
    traffic.completion(completion(1, 90.0, 50, total_ms=20_000.0))
    traffic.features(features_of(2, 99.0))
    traffic.alive("one", 100.0, 8)
    # What comes out of order is no restart.
    traffic.alive("one", 99.5, 7)
    traffic.alive("one", 100.5, 9)
    assert {one.request.id for one in traffic.there(101.0)} == {"r1", "r2"}
    traffic.features(features_of(3, 101.5))
    traffic.alive("one", 102.0, 1)
    assert {one.request.id for one in traffic.there(102.0)} == {"r1", "r3"}, "those that ended, and what came since"


def test_a_refused_request_is_not_open_though_its_features_come_later():
    traffic = Traffic()
    for number in range(3):
        traffic.completion(completion(number, 100.0, 0, outcome=OutcomeKind.REJECTED))
        traffic.features(features_of(number, 100.0))
    assert len(traffic) == 0
    for number in range(3, 3 + REFUSED_KEPT):
        traffic.completion(completion(number, 100.0, 0, outcome=OutcomeKind.REJECTED))
    traffic.features(features_of(1, 100.0))
    assert len(traffic) == 1, "ids are remembered for a while only"


def test_an_open_answer_in_one_piece_is_one_before_and_after_its_client_leaves():
    traffic = Traffic()
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    notice = notice_of(read_call("/v1/chat/completions", body), request_id="r1", sent_s=100.0)
    traffic.features(PerceptionModel(min_confidence=0.5).perceive(notice, 100.0))
    traffic.features(features_of(2, 100.0))
    assert [one.request.stream for one in traffic.there(101.0)] == [False, True]
    for number, stream in ((1, False), (2, True)):
        traffic.completion(completion(number, 100.0, 0, outcome=OutcomeKind.CANCELLED, ttft_ms=-1.0, tpot_ms=-1.0, stream=stream))
    assert [one.request.stream for one in traffic.window(99.0, 101.0, 10)] == [False, True]


def test_several_answers_to_one_request_are_decoded_side_by_side_each_in_a_slot_of_its_own():
    traffic = Traffic()
    for number in range(2):
        traffic.completion(completion(number, 100.0 + number / 1e3, 400, sequences=4, predicted_output_tokens=400.0, max_output_tokens=800))
    call = read_call("/v1/completions", {"model": "m", "prompt": "hello", "n": 4})
    notice = notice_of(call, request_id="r2", sent_s=100.0)
    traffic.features(PerceptionModel(min_confidence=0.5).perceive(notice, 100.1))
    *ended, opened = traffic.window(99.0, 101.0, 10)
    assert [one.request.sequences for one in (*ended, opened)] == [4, 4, 4]
    assert opened.output_tokens > 4
    candidate, fleet = Candidate(policy="fcfs"), (plant(n_run=4),)
    outlook, (first, second) = replay(world(ended, plants=fleet), candidate)
    single, (alone, _) = replay(world([replace(one, request=replace(one.request, sequences=1)) for one in ended], plants=fleet), candidate)
    assert outlook.requests == single.requests == 2
    assert first.output_tokens == 100
    assert first.total_ms < 0.4 * alone.total_ms
    assert second.queue_ms > 0.8 * first.total_ms, "the first has all four slots"
    assert len(replace(opened, request=replace(opened.request, sequences=4096)).apart()) == APART_MOST


def test_the_queue_of_a_replay_counts_a_request_with_several_answers_once():
    window = [asked(number, 100.0 + number / 1e3, 400) for number in range(4)]
    window = [replace(one, request=replace(one.request, sequences=4)) for one in window]
    _, records = replay(world(window, plants=(plant(n_run=4),), settings=replace(PLAIN, queue_limit=2)), Candidate(policy="fcfs"))
    assert [record.outcome for record in records] == [OutcomeKind.COMPLETED] * 3 + [OutcomeKind.REJECTED]
    assert 0.0 == records[0].queue_ms < records[1].queue_ms < records[2].queue_ms, "none of their answers was refused"


def opened(number: int):
    """Requests that came one a second, each with 2 s for its first token."""
    return [asked(n, 100.0 + n, 50) for n in range(number)]


@pytest.mark.parametrize(
    ("makes_way", "overdue", "running"),
    [
        (True, 4, ["r4", "r5", "r6", "r7"]),
        (True, 0, [f"r{n}" for n in range(8)]),
        (True, 99, []),
        (False, 4, ["r0", "r1", "r2", "r3"]),
        (False, 0, [f"r{n}" for n in range(8)]),
        (False, 99, []),
    ],
)
def test_who_is_due_and_not_overdue_must_be_running(makes_way, overdue, running):
    there = opened(10)
    still = open_of(there, 109.0, in_flight=5, overdue=overdue, makes_way=makes_way)
    assert still.running == 0.5
    # Seen from the moment itself: the last two came too late to be due.
    kept, _ = carried(there, 109.5, 100, still)
    assert [one.request.id for one in kept if one.request.prompt_tokens == 1] == running
    assert [one.request.id for one in kept if one.request.prompt_tokens > 1] == [f"r{n}" for n in range(10) if f"r{n}" not in running]


def test_what_has_no_room_is_the_oldest_that_waits():
    there = opened(10)
    still = open_of(there, 109.0, in_flight=2, overdue=6, makes_way=True)
    kept, left_out = carried(there, 109.5, 5, still)
    assert [one.request.id for one in kept] == ["r6", "r7", "r5", "r8", "r9"]
    assert left_out == 5
    assert carried(there, 109.5, 1, still)[0][0].request.id == "r7"


# -- lengths


def learned(lengths: Lengths, number: int, tokens, *, seed: int = 0, **more) -> None:
    rng = np.random.default_rng(seed)
    for n in range(number):
        lengths.learn(completion(n, 0.0, tokens(rng), **more))


def drawn(lengths: Lengths, window, running: float = 0.0) -> list[int]:
    return [one.output_tokens for one in lengths.draw(window, running)]


def test_open_requests_get_the_lengths_of_their_kind():
    lengths = Lengths()
    # All are believed to make 70 tokens: those that may wait make 400.
    learned(lengths, 200, lambda rng: int(rng.integers(30, 80)), ttft_slo_ms=4_000.0)
    learned(lengths, 200, lambda rng: int(rng.integers(300, 500)), ttft_slo_ms=16_000.0)
    hurried = drawn(lengths, [asked(n, 0.0, 70, ttft_ms=4_500.0) for n in range(200)])
    patient = drawn(lengths, [asked(n, 0.0, 70, ttft_ms=15_000.0) for n in range(200)])
    assert 30 <= min(hurried) <= max(hurried) < 80
    assert 300 <= min(patient) <= max(patient) < 500
    assert fmean(patient) == pytest.approx(400, rel=0.05)
    other = drawn(lengths, [asked(n, 0.0, 70, ttft_ms=64_000.0) for n in range(200)])
    assert len({value > 200 for value in other}) == 2, "a kind that has not been seen is drawn from all"


def test_beliefs_that_tell_lengths_apart_are_followed():
    lengths = Lengths()
    for n in range(200):
        believed = 50 if n % 2 else 500
        lengths.learn(completion(n, 0.0, believed + n % 7, predicted_output_tokens=float(believed), ttft_slo_ms=2_000.0))
    assert max(drawn(lengths, [asked(n, 0.0, 60) for n in range(50)])) < 60
    # Beliefs have risen since: the nearest are the longest there were.
    assert min(drawn(lengths, [asked(n, 0.0, 900) for n in range(50)])) >= 500


def test_what_runs_is_the_longer_part():
    lengths = Lengths()
    learned(lengths, 250, lambda rng: int(rng.exponential(100.0)) + 1, ttft_slo_ms=2_000.0)
    window = [asked(n, 0.0, 70) for n in range(2_000)]
    waiting, running = fmean(drawn(lengths, window)), fmean(drawn(lengths, window, 1.0))
    # Of exponential lengths those that are met running are twice as long in the mean.
    assert running == pytest.approx(2.0 * waiting, rel=0.25)


def test_lengths_are_kept_where_they_are_known_and_bounded():
    lengths = Lengths()
    window = [asked(n, 0.0, 70) for n in range(20)]
    assert drawn(lengths, window) == [70] * 20, "nothing is known yet"
    learned(lengths, LIKE, lambda _rng: 900, ttft_slo_ms=2_000.0)
    assert drawn(lengths, [replace(window[0], ended_s=3.0)]) == [70]
    limited = replace(window[0], request=replace(window[0].request, max_output_tokens=300))
    assert drawn(lengths, [limited]) == [300]
    assert drawn(lengths, window) == drawn(lengths, window[:10]) + drawn(lengths, window[10:]), "the same for the same request"
    for kind in range(2 * KINDS_MOST):
        lengths.learn(completion(kind, 0.0, 5, ttft_slo_ms=2.0 ** (kind / 4.0), task_type=f"t{kind}"))
    assert Counter(drawn(lengths, window)) == {900: 20}
