"""The pace of an instance, learned from its tokens."""

import random

import pytest
from typing_kit import known

from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.running import Running
from hmas.controller.scheduling.instances.speed import InstanceSpeed
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.settings import InstanceSpec


def test_pace_learns_floor_mean_and_prefill():
    pace = InstanceSpeed()
    assert pace.prefill_ms(1000, 77.0) == 77.0
    for i in range(2000):
        pace.decoded(10.0 if i % 10 == 0 else 30.0)
        pace.prefilled(200.0 if i % 2 else 20.0, 1000 if i % 2 else 20)
    assert pace.token_ms(1.0) == pytest.approx(28.0, rel=0.2)
    assert 8.0 < known(pace.floor_ms) < 29.0
    # The long prompts decide: about 220 ms for 1020 tokens.
    assert pace.prefill_ms(5000, 0.0) == pytest.approx(5000 * 220 / 1020, rel=0.05)


def test_the_time_of_computed_tokens_is_followed_once_nothing_predicts_what_is_cached():
    pace = InstanceSpeed()
    for _ in range(100):
        pace.prefilled(100.0, 1000, 500)
    assert pace.computed_ms(1, 0, 0.0) == pytest.approx(0.2)
    for number in range(200):
        pace.prefilled(400.0, 1000)
        if number == 20:
            # Some requests have no prediction while others have: theirs counts.
            assert pace.computed_ms(1, 0, 0.0) == pytest.approx(0.2)
    assert pace.computed_ms(1, 0, 0.0) == pytest.approx(0.4, rel=0.05)
    pace.prefilled(400.0, 1000, 500)
    assert pace.computed_ms(1, 0, 0.0) == pytest.approx(0.8)


def test_the_pace_follows_the_batch_at_once_and_noise_slowly():
    pace = InstanceSpeed()
    noise = random.Random(1)
    for _ in range(400):
        sequences = noise.uniform(1.0, 40.0)
        pace.decoded((10.0 + 0.5 * sequences) * noise.uniform(0.8, 1.2), sequences)
    for sequences in (1.0, 20.0, 60.0):
        assert pace.token_ms(sequences) == pytest.approx(10.0 + 0.5 * sequences, abs=5.0)
    # A slower engine shows within a second, at any batch.
    for _ in range(10):
        pace.decoded(40.0, 20.0)
    assert known(pace.token_ms(20.0)) > 36.0
    assert known(pace.token_ms(40.0)) > 44.0


def test_a_single_step_of_a_slow_engine_is_no_faster_pace():
    pace = InstanceSpeed()
    for _ in range(100):
        pace.decoded(200.0, 10.0, steps=1.0)
    pace.decoded(50.0, 10.0, steps=1.0)
    assert known(pace.token_ms(10.0)) > 190.0, "requests that wait would take each such step for room"
    pace.decoded(50.0, 10.0, steps=32.0)
    assert known(pace.token_ms(10.0)) < 140.0


def test_a_batch_that_hardly_changes_says_little_of_another():
    pace = InstanceSpeed()
    noise = random.Random(1)
    for _ in range(400):
        pace.decoded(20.0 * noise.uniform(0.8, 1.2), noise.choice([10.0, 10.1]))
    assert pace.token_ms(30.0) == pytest.approx(20.0, rel=0.2)


def test_a_lasting_load_does_not_raise_the_pace_of_a_request_alone():
    pace = InstanceSpeed()
    pace.decoded(10.0)
    for _ in range(6000):
        pace.decoded(30.0)
    assert pace.floor_ms == pytest.approx(30.0, rel=0.1)
    assert pace.alone_ms == pytest.approx(10.0, rel=0.15)


def test_tokens_that_are_read_late_in_one_lot_do_not_pass_for_the_pace_of_a_request_alone():
    pace = InstanceSpeed()
    for _ in range(40):
        # Eight steps of 50 ms each: the gateway reads two tokens in time, and the rest together with the next ones.
        pace.decoded(200.0, steps=2.0)
        pace.decoded(12.5, steps=8.0)
    assert pace.alone_ms == pytest.approx(50.0, rel=0.2)
    # A request alone that really is faster counts after some of its tokens.
    for _ in range(4):
        pace.decoded(20.0, steps=8.0)
    assert known(pace.alone_ms) < 40.0
    for _ in range(4):
        pace.decoded(20.0, steps=8.0)
    assert pace.alone_ms == pytest.approx(20.0, rel=0.1)


def test_the_best_pace_is_learned_where_no_prompt_is_read_meanwhile():
    pace = InstanceSpeed()
    for _ in range(100):
        pace.decoded(120.0, quiet=False)
    assert (pace.token_ms(1.0), pace.floor_ms) == (120.0, None)
    pace.decoded(60.0)
    assert pace.floor_ms == 60.0
    # A better pace counts whoever else was there.
    for _ in range(100):
        pace.decoded(12.0, quiet=False)
    assert pace.floor_ms == pytest.approx(12.0, rel=0.1)


def noisy_pace(*batches: int) -> InstanceSpeed:
    """Of an engine that other processes hold up: two samples of ten are as quick as without them, the others take three times as long."""
    pace = InstanceSpeed()
    for number in range(400):
        pace.decoded((8.0 if number % 5 == 0 else 24.0) + batches[number // 5 % len(batches)], batches[number // 5 % len(batches)], 4.0)
    return pace


def test_a_few_quick_samples_are_no_pace_to_wait_for():
    pace = noisy_pace(1, 2, 3)
    assert known(pace.floor_ms) < 15.0
    assert 17.0 < known(pace.best_ms()) < 27.0


def test_a_busy_engine_that_was_not_seen_with_a_small_batch_may_be_quick_with_one():
    pace = noisy_pace(20, 22, 24)
    assert 4.0 < known(pace.best_ms()) <= known(pace.floor_ms)


def test_an_engine_that_was_always_full_is_expected_to_be_quick_alone_if_each_sequence_slows_it():
    steep, flat = InstanceSpeed(), InstanceSpeed()
    for number in range(400):
        batch = 55.0 + number % 11
        steep.decoded(20.0 + 3.0 * batch, batch, 32.0)
        flat.decoded(170.0 + 0.5 * batch, batch, 32.0)
    assert known(steep.floor_ms) > 180.0
    assert 15.0 < known(steep.best_ms()) < 60.0
    assert known(flat.best_ms()) > 160.0


def test_an_answer_that_is_read_in_one_lot_says_nothing_of_the_pace():
    one = Instance(InstanceSpec(name="a", capacity_n_run=4), fenced=False, margin=0.0)
    asked = Request(id="r", tenant="t", model="m", arrival_s=0.0, prompt_tokens=10)
    run = one.start(QueueEntry(asked, Estimates(slo=Slo(ttft_ms=1000.0, tpot_ms=100.0)), seq=0), 100, "fcfs", 0.0)
    one.progress(run, 33, 1.0)
    one.sample(1.001)
    assert one.pace.alone_ms is None
    one.progress(run, 43, 1.5)
    one.sample(1.5)
    assert known(one.pace.alone_ms) == pytest.approx(50.0)
    assert one.produced(1.5) == (10, 43)


def started(one: Instance, number: int, now_s: float, *, stream: bool) -> Running:
    asked = Request(id=f"{number}", tenant="t", model="m", arrival_s=now_s, prompt_tokens=10, stream=stream)
    return one.start(QueueEntry(asked, Estimates(slo=Slo(ttft_ms=1000.0, tpot_ms=100.0)), seq=number), 100, "fcfs", now_s)


def test_requests_that_do_not_stream_count_where_the_pace_is_learned_and_where_it_is_read():
    one = Instance(InstanceSpec(name="a", capacity_n_run=64), fenced=False, margin=0.0)
    for number in range(16):
        started(one, number, 0.0, stream=False)
    number, now_s = 16, 0.0
    for streams in (*range(2, 11), *range(9, 1, -1)) * 3:
        runs = [started(one, number + more, now_s, stream=True) for more in range(streams)]
        number += streams
        for token in range(40):
            now_s += 0.001 * (20 + one.sequences)
            for run in runs:
                one.progress(run, token + 1, now_s)
            if token % 4 == 3:
                one.sample(now_s)
        assert one.token_ms == pytest.approx(20 + one.sequences, rel=0.1)
        for run in runs:
            one.finish(run, now_s)
    assert one.pace.token_ms(30.0) == pytest.approx(50.0, rel=0.1)
    assert one.pace.token_ms(20.0) == pytest.approx(40.0, rel=0.1)


def test_one_slow_first_token_does_not_multiply_the_time_of_a_prompt():
    pace = InstanceSpeed()
    for _ in range(50):
        pace.prefilled(100.0, 1000, 0)
    pace.prefilled(30_000.0, 1000, 0)
    assert pace.prefill_ms(1000, 0.0) < 120.0
    assert pace.computed_ms(1000, 0, 0.0) < 120.0
    # An engine that has become slower is followed all the same.
    for _ in range(150):
        pace.prefilled(1000.0, 1000, 0)
    assert pace.prefill_ms(1000, 0.0) > 800.0


def test_the_first_prompts_count_in_full():
    pace = InstanceSpeed()
    for _ in range(5):
        pace.prefilled(1.0, 1000)
    pace.prefilled(1000.0, 1000)
    assert pace.prefill_ms(1000, 0.0) > 150.0


def test_ratios_hold_what_the_batch_does_not_explain():
    speed = InstanceSpeed()
    for _ in range(40):
        speed.decoded(10.0, sequences=4.0, steps=8.0)
        speed.decoded(20.0, sequences=14.0, steps=8.0)
    for _ in range(64):
        expected = known(speed.expectation(14.0))
        # The batch shrinks from 14 to 4 while the request runs, and the pace with it.
        speed.decoded(10.0, sequences=4.0, steps=8.0)
        speed.foresight.ended(expected, 10.0, 32)
    assert speed.foresight.chance(0.9) == pytest.approx(0.0, abs=0.1)
    assert speed.foresight.chance(1.1) == pytest.approx(1.0, abs=0.1)


def test_chances_are_those_of_the_requests_that_ended_last():
    speed = InstanceSpeed()
    speed.decoded(10.0, sequences=2.0)
    for number in range(200):
        expected = known(speed.expectation(2.0))
        speed.decoded(10.0, sequences=2.0)
        speed.foresight.ended(expected, 5.0 if number % 4 == 0 else 15.0, 32)
    assert [speed.foresight.chance(ratio) for ratio in (0.4, 1.0, 2.0)] == [0.0, 0.25, 1.0]


def test_an_answer_of_few_tokens_or_none_between_two_samples_says_nothing_of_chances():
    speed = InstanceSpeed()
    speed.decoded(10.0, sequences=2.0)
    expected = known(speed.expectation(2.0))
    before = list(speed.foresight.ratios.ordered)
    speed.foresight.ended(expected, 90.0, 32)
    speed.decoded(10.0, sequences=2.0)
    speed.foresight.ended(expected, 90.0, 7)
    assert speed.foresight.ratios.ordered == before


def test_the_pace_says_what_part_of_it_are_stops():
    speed = InstanceSpeed()
    for _ in range(400):
        speed.stops.stopped(50.0)
        speed.decoded(25.0, 4.0, 10.0)  # 250 ms in all
    assert speed.stops.ms == pytest.approx(50.0)
    assert speed.stops.share == pytest.approx(0.2, abs=0.01)
    for _ in range(64):
        speed.decoded(20.0, 4.0, 10.0)
    assert speed.stops.share < 0.01, "prompts have ceased to come"


def test_stops_take_no_more_than_the_time_that_has_passed():
    speed = InstanceSpeed()
    speed.stops.stopped(1000.0)
    speed.decoded(25.0, 4.0, 10.0)
    assert speed.stops.share <= 1.0
    for _ in range(3):
        speed.decoded(25.0, 4.0, 10.0)
    before = speed.stops.share
    speed.decoded(25.0, 4.0, 10.0)
    assert speed.stops.share < before, "the stop was counted once"
