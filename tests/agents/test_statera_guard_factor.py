"""How strict the TPOT guard is: integral action on the misses of those that begin in time."""

import math
import random

import pytest
from control_kit import completion

from hmas.agents.statera.guard_factor import ALLOWED, KEPT, LEAST, SAMPLES_MIN, STEP, GuardFactorController
from hmas.controller.core.messages import Completion
from hmas.controller.core.types import OutcomeKind


def ended(number, at_s, *, tpot_ms=20.0, tpot_slo_ms=50.0, **changes):
    return completion(number, at_s, arrival_s=at_s - 1.0, total_ms=1000.0, tpot_ms=tpot_ms, tpot_slo_ms=tpot_slo_ms, **changes)


def serve(loop, seconds, miss_of, *, rate=10, from_s=0.0, seed=0, delay_s=0.0):
    """Runs a plant in which a share `miss_of(factor)` misses, told `delay_s` later; the factors, second by second."""
    chance, factors = random.Random(seed), []
    told: list[tuple[float, Completion]] = []
    for step in range(int(seconds * 2)):
        now_s = from_s + step / 2
        for number in range(rate // 2):
            late = chance.random() < miss_of(loop.factor)
            told.append((now_s + delay_s, ended(number, now_s + delay_s, tpot_ms=90.0 if late else 20.0)))
        while told and told[0][0] <= now_s:
            loop.learn(told.pop(0)[1])
        loop.update(now_s)
        factors.append(loop.factor)
    return factors


def test_nothing_is_stricter_than_configured_where_targets_are_kept():
    loop = GuardFactorController()
    assert set(serve(loop, 120.0, lambda _factor: 0.02)) == {1.0}


def test_misses_make_it_strict_and_their_end_lenient_again():
    loop = GuardFactorController()
    # Half as strict as told, and the misses are back at what is allowed: k = 0.12 for each unit of the logarithm.
    factors = serve(loop, 240.0, lambda factor: max(0.0, 0.133 + 0.12 * math.log(factor)), rate=40, delay_s=6.0)
    settled = factors[-120:]
    assert sum(settled) / len(settled) == pytest.approx(0.5, abs=0.1)
    assert max(settled) - min(settled) < 0.35
    calm = serve(loop, 120.0, lambda _factor: 0.0, from_s=240.0, rate=40)
    assert calm[-1] == 1.0


def test_it_stays_within_its_bounds_and_unwinds_at_once():
    loop = GuardFactorController()
    assert serve(loop, 300.0, lambda _factor: 1.0)[-1] == LEAST
    # Ten seconds until the misses are out of the span, then as long as the way from a fifth takes.
    back = serve(loop, 130.0, lambda _factor: 0.0, from_s=300.0)
    assert back[-1] == 1.0
    assert back[40] > LEAST


def test_only_those_that_began_in_time_and_had_a_target_count():
    loop = GuardFactorController()
    for number in range(100):
        loop.learn(ended(number, 1.0, tpot_ms=90.0, ttft_ms=5000.0))
        loop.learn(ended(number, 1.0, tpot_ms=90.0, ttft_ms=-1.0))
        loop.learn(ended(number, 1.0, tpot_ms=90.0, tpot_slo_ms=0.0))
        loop.learn(ended(number, 1.0, tpot_ms=-1.0))
        loop.learn(ended(number, 1.0, tpot_ms=90.0, sequences=8))
        loop.learn(ended(number, 1.0, tpot_ms=90.0, outcome=OutcomeKind.CANCELLED))
    for step in range(4):
        loop.update(1.0 + step)
    assert (loop.factor, loop.account) == (1.0, "as strict as configured")
    for number in range(SAMPLES_MIN):
        loop.learn(ended(number, 2.0, tpot_ms=90.0))
    for step in range(4):
        loop.update(5.0 + step)
    assert loop.factor < 0.95
    assert loop.account == "10 of 10 requests that met TTFT missed TPOT, 5% are allowed"


def test_a_factor_that_is_not_in_force_does_not_wind_up():
    loop = GuardFactorController()
    for second in range(60):
        for number in range(10):
            loop.learn(ended(100 * second + number, float(second), tpot_ms=90.0))
        loop.update(float(second), heeded=False)
    assert loop.factor == 1.0
    loop.update(60.0)
    assert 0.9 < loop.factor < 1.0


def test_a_burst_into_a_cold_engine_is_forgiven_within_the_minute():
    loop = GuardFactorController()
    # Everybody misses for eight seconds, whatever the guard does; then nobody.
    serve(loop, 8.0, lambda _factor: 1.0)
    low = min(serve(loop, 12.0, lambda _factor: 0.0, from_s=8.0))
    assert 0.45 < low < 0.7
    assert serve(loop, 40.0, lambda _factor: 0.0, from_s=20.0)[-1] == 1.0


def test_the_share_missed_is_known_once_there_are_enough():
    loop = GuardFactorController()
    for number in range(SAMPLES_MIN - 1):
        loop.learn(ended(number, 1.0, tpot_ms=90.0 if number < 3 else 20.0))
    loop.update(2.0)
    assert loop.missed_share is None
    loop.learn(ended(100, 1.5))
    loop.update(3.0)
    assert loop.missed_share == pytest.approx(3 / SAMPLES_MIN)


def test_too_few_requests_let_it_fade_and_its_memory_is_bounded():
    loop = GuardFactorController(0.3)
    assert loop.factor == pytest.approx(0.3)
    for second in range(600):
        loop.update(float(second))
    assert loop.factor == 1.0
    for number in range(10 * KEPT):
        loop.learn(ended(number, 1.0))
    assert loop.samples == KEPT


@pytest.mark.parametrize("told", [0.0, -3.0, 0.01, 7.0])
def test_a_start_out_of_bounds_is_taken_at_the_bound(told):
    assert GuardFactorController(told).factor == (1.0 if told > 1 else LEAST)
    assert round(GuardFactorController(0.777).factor / STEP, 6) == 16.0
    assert 0.0 < ALLOWED < 1.0
