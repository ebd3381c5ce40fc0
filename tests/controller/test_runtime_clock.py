"""The process clock."""

import time

from hmas.controller.runtime.clock import SystemClock


def test_it_starts_at_wall_time():
    before = time.time()
    now_s = SystemClock().now_s()
    assert before - 0.001 <= now_s <= time.time() + 0.001


def test_it_never_goes_back_and_survives_a_step_of_the_wall_clock(monkeypatch):
    clock = SystemClock()
    before = clock.now_s()
    monkeypatch.setattr(time, "time", lambda: before - 3600.0)
    after = clock.now_s()
    assert before <= after < before + 1.0
