"""Drift that is noticed and forgiven, and experience that is bounded."""

import math

import numpy as np
import pytest
from prediction_kit import Constant, completion, features, snapshot, view

from hmas.agents.prediction.calibration import HOLD, LEAST_BAND, WARM_UP, WINDOW, DriftWatch, Scoreboard
from hmas.agents.prediction.experience import Experience, Labelled
from hmas.agents.prediction.features import CATEGORIES, FEATURES
from hmas.agents.prediction.model import PredictionModel


def test_the_model_is_left_when_its_error_leaves_the_band_and_taken_back_when_it_holds():
    watch = DriftWatch(accepted=0.1)
    assert watch.limit == LEAST_BAND
    assert not any(watch.learn(0.1, 0.2) for _ in range(500))
    left = [number for number in range(300) if watch.learn(0.9, 0.2) == "formula"]
    assert len(left) == 1
    assert left[0] < 100
    path_then = watch.path
    back = [number for number in range(1000) if watch.learn(0.05, 0.2) == "model"]
    assert len(back) == 1
    assert back[0] > HOLD
    assert (path_then, watch.path) == ("formula", "model")


def test_a_few_bad_requests_are_no_drift():
    watch = DriftWatch(accepted=0.1)
    assert not any(watch.learn(5.0, 0.0) for _ in range(WARM_UP - 1))
    steady = DriftWatch(accepted=0.1)
    for _ in range(500):
        steady.learn(0.1, 0.1)
    assert not any(steady.learn(5.0, 0.1) for _ in range(3))


def test_an_error_that_comes_and_goes_does_not_come_back_early():
    watch = DriftWatch(accepted=0.1)
    for _ in range(200):
        watch.learn(1.0, 0.1)
    assert watch.path == "formula"
    for _ in range(20):
        for _ in range(HOLD - 10):
            watch.learn(0.1, 0.1)
        for _ in range(10):
            watch.learn(1.5, 0.1)
    assert watch.path == "formula"


def serve(model: PredictionModel, count: int, tpot_ms: float, *, prefix: str) -> None:
    for number in range(count):
        at_s = 100.0 + number
        model.observe(snapshot(view("a"), view("b"), at_s=at_s))
        for instance in ("a", "b"):
            name = f"{prefix}{instance}{number}"
            model.predict([features(name)], at_s)
            took_ms = tpot_ms if instance == "a" else 27.5
            model.learn(completion(name, instance=instance, tpot_ms=took_ms, ttft_ms=40.0, arrival_s=at_s - 3.0, sent_s=at_s))


class Swaying(Constant):
    """A regressor that is right until it is told to be wrong."""

    def __init__(self) -> None:
        super().__init__(0.0, 0.0)
        self.wrong = 0.0
        self._rng = np.random.default_rng(1)

    def log_ratios(self, rows, names):
        return super().log_ratios(rows, names) + self.wrong * self._rng.choice([-1.0, 1.0], (len(rows), 2))


def test_a_model_that_has_drifted_makes_way_for_the_formula_and_comes_back():
    regressor = Swaying()
    model = PredictionModel(regressor)
    serve(model, 200, 27.5, prefix="calm")
    assert model.drifted() == []
    regressor.wrong = 1.2
    serve(model, 120, 27.5, prefix="storm")
    assert {drift.path for drift in model.drifts()} == {"formula"}
    assert {("a", "tpot"), ("b", "tpot")} <= set(model.drifted())
    model.observe(snapshot(view("a"), at_s=400.0))
    said = {round(model.predict([features(f"probe{number}")], 400.0)[0].tpot_ms["a"], 6) for number in range(20)}
    assert len(said) == 1, "the formula answers, and nothing of what the model says shows"
    assert said.pop() == pytest.approx(27.5, rel=0.1)
    regressor.wrong = 0.0
    serve(model, 400, 27.5, prefix="after")
    assert {drift.path for drift in model.drifts()} == {"model"}
    assert model.drifted() == []


def test_an_instance_that_has_left_holds_no_fallback_up():
    regressor = Swaying()
    model = PredictionModel(regressor)
    regressor.wrong = 1.2
    serve(model, 150, 27.5, prefix="x")
    model.observe(snapshot(view("b"), at_s=300.0))
    assert {name for name, _ in model.drifted()} == {"b"}


def test_another_model_starts_with_a_clean_slate():
    regressor = Swaying()
    model = PredictionModel(regressor)
    regressor.wrong = 1.2
    serve(model, 150, 27.5, prefix="x")
    assert model.drifted()
    model.adopt(Constant(0.0, 0.0))
    assert model.drifted() == []
    assert not model.board.figures()


def labelled(number: int) -> Labelled:
    row = np.full(len(FEATURES), number, dtype=np.float32)
    return Labelled(row, (b"unknown",) * len(CATEGORIES), (0.0, math.nan))


def test_experience_keeps_the_newest_and_a_fair_sample_of_the_rest():
    experience = Experience(newest=100, sample=200)
    for number in range(10_000):
        experience.add(labelled(number))
    assert len(experience) == 300
    assert experience.total == 10_000
    kept = experience.table().rows[:, 0]
    assert kept[-100:].tolist() == list(range(9_900, 10_000))
    assert 4_200 < kept[:200].mean() < 5_700
    assert len(np.unique(kept)) == 300


def test_the_scoreboard_is_of_the_newest():
    board = Scoreboard()
    for _ in range(WINDOW):
        board.add("ttft", 5.0)
    for _ in range(WINDOW):
        board.add("ttft", 0.1)
    assert board.figures() == {"ttft_ape": 0.1}
