"""The cost model: how it is trained and trained on, and that the whole agent gets costs right on an engine it has never seen."""

import json

import numpy as np
import pytest
from hmas_lab.cli import main
from hmas_lab.training import cost_model
from hmas_lab.training.episodes import WARM_UP, Arrival, Episode, random_episode, samples, table

from hmas.agents.prediction import training
from hmas.agents.prediction.experience import Table
from hmas.agents.prediction.features import CATEGORIES, FEATURES
from hmas.agents.prediction.model import PredictionModel
from hmas.agents.prediction.regressor import load_regressor
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile


@pytest.fixture(scope="module")
def shipped():
    return load_regressor()


def test_samples_repeat_from_their_seed_and_each_request_gives_one():
    first, again = (list(random_episode(np.random.default_rng([7, 1]), requests=60).run()) for _ in range(2))
    assert 0 < len(first) <= 60 - WARM_UP
    assert [sample.labels for sample in first] == [sample.labels for sample in again]
    learnt = table(first)
    assert learnt.rows.shape == (len(first), len(FEATURES))
    assert learnt.names.shape == (len(first), len(CATEGORIES))
    assert np.isfinite(learnt.labels[:, 0]).all()


def demo_episode(regressor, seed: int) -> Episode:
    """The demo's engine, which no training episode draws, at about two thirds of its capacity."""
    rng = np.random.default_rng(seed)
    engine = EngineModel(load_profile("demo-small"))
    at_s = np.cumsum(rng.exponential(0.4, 400))
    arrivals = [
        Arrival(float(when), int(rng.integers(50, 2500)), output := int(rng.integers(2, 250)), float(output * rng.lognormal(0, 0.4)))
        for when in at_s
    ]
    return Episode(
        engine=engine,
        window=24,
        arrivals=arrivals,
        rng=rng,
        jitter=0.05,
        tells_load=True,
        fence_tokens=0,
        model=PredictionModel(regressor),
    )


def test_costs_on_the_demo_engine_are_right():
    found = list(demo_episode(load_regressor(), 5).run())
    assert len(found) > 300
    median_error = {}
    for target in ("ttft_ms", "tpot_ms"):
        kept = [sample for sample in found if getattr(sample, target) > 0]
        actual = np.array([getattr(sample, target) for sample in kept])
        for who in ("said", "formula"):
            told = np.array([getattr(getattr(sample, who), target) for sample in kept])
            median_error[target, who] = float(np.median(np.abs(told - actual) / actual))
    assert median_error["ttft_ms", "said"] < 0.42
    assert median_error["ttft_ms", "said"] < 0.8 * median_error["ttft_ms", "formula"]
    assert median_error["tpot_ms", "said"] < 0.25


def test_a_decode_step_of_a_drawn_engine_costs_more_than_its_fixed_part():
    from hmas_lab.training.episodes import drawn_profile, work_s

    for number in range(40):
        profile = drawn_profile(np.random.default_rng([9, number]))
        step_ms = 1e3 * profile.step_duration_s(prefill_tokens=0, prefill_pairs=0, decode_seqs=8, decode_kv_tokens=8 * 300)
        assert step_ms > profile.step_ms
        alone_s = work_s(profile, 1, 200.0, 100.0)
        assert alone_s >= 0.1 * 0.9 * profile.step_duration_s(prefill_tokens=0, prefill_pairs=0, decode_seqs=1, decode_kv_tokens=250)
        assert alone_s >= 100 * profile.step_duration_s(prefill_tokens=0, prefill_pairs=0, decode_seqs=1, decode_kv_tokens=250)


@pytest.mark.slow
def test_training_is_reproducible_and_writes_a_model_that_loads(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        cost_model.train(5, 10).save(folder)
    for name in ("ttft.cbm", "tpot.cbm", "replay.npz"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_the_agent_with_the_trained_model_beats_the_formula_on_engines_it_has_not_seen(shipped):
    metrics = cost_model.measure(shipped, seed=11, episodes=8)
    assert metrics["ttft_ms_agent_median_ape"] < 0.85 * metrics["ttft_ms_formula_median_ape"]
    assert metrics["tpot_ms_agent_median_ape"] < 0.12


def telemetry(regressor, *, offset: float, count: int = 800):
    """Requests of one engine that takes e^offset times what the model says."""
    learnt = table([sample for episode in samples(21, 12) for sample in episode])
    said = regressor.log_ratios(learnt.rows, learnt.names)
    names = learnt.names.copy()
    names[:, 0] = b"8xnew-gpu"
    noise = np.random.default_rng(2).normal(0.0, 0.1, said.shape)
    return Table(learnt.rows, names, said + offset + noise).take(slice(0, count))


@pytest.mark.slow
def test_a_refit_learns_what_is_new_and_does_not_forget(shipped):
    learnt = telemetry(shipped, offset=0.8)
    fresh, errors = training.refit(shipped, learnt)
    assert errors["new"] < 0.6 * errors["old"]
    known = table([sample for episode in samples(31, 12) for sample in episode])
    before = shipped.log_ratios(known.rows, known.names)
    after = fresh.log_ratios(known.rows, known.names)
    assert np.abs(after - before).mean() < 0.08, "engines of which telemetry said nothing are judged as before"
    errors_after, errors_before = (np.nanmean(training.errors_of(said, known.labels)) for said in (after, before))
    assert errors_after < 1.1 * errors_before
    here = learnt.take(slice(0, 200))
    moved = fresh.log_ratios(here.rows, here.names) - shipped.log_ratios(here.rows, here.names)
    assert moved.mean() > 0.5
    assert fresh.card.details["refits"] == 1


def test_too_little_telemetry_is_not_learnt_from(shipped):
    learnt = telemetry(shipped, offset=0.0, count=training.REFIT_LEAST - 1)
    with pytest.raises(ValueError, match=str(training.REFIT_LEAST)):
        training.refit(shipped, learnt)


def test_episodes_are_told_apart_by_their_number_alone():
    both = list(samples(3, 2))
    assert [s.labels for s in both[1]] == [s.labels for s in random_episode(np.random.default_rng([3, 1])).run()]


@pytest.mark.slow
def test_a_model_from_nothing_is_written_where_it_is_asked_for(tmp_path, capsys):
    out = tmp_path / "made"
    assert main(["cost-model", "--episodes", "10", "--held-out", "2", "--out", str(out), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["command"] == "hmas-lab cost-model --episodes 10 --held-out 2 --seed 1"
    assert load_regressor(out).card.metrics["samples"] > 100
