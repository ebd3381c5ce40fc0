"""The shipped model, what happens without it, and that the whole agent gets costs right on an engine it has never seen."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agents.prediction import train
from agents.prediction.agent import make_agent
from agents.prediction.features import FEATURES
from agents.prediction.generate import WARM_UP, Arrival, Episode, random_episode, samples, table
from agents.prediction.model import PredictionModel
from agents.prediction.regressor import SHIPPED, card_path, load_regressor
from controller.bus.memory_bus import MemoryBus
from controller.config.schema import AgentsConfig, Config
from controller.core.errors import ModelError
from controller.core.messages import Completion, Event, InstanceView, RequestCost, RequestFeatures, SystemSnapshot
from controller.core.types import OutcomeKind, TaskType
from engines.sim.model import EngineModel
from engines.sim.profile import load_profile

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copied(tmp_path):
    path = tmp_path / "cost.cbm"
    shutil.copy(SHIPPED, path)
    shutil.copy(card_path(SHIPPED), card_path(path))
    return path


def edit_card(path: Path, **changes) -> None:
    card = json.loads(card_path(path).read_text())
    card_path(path).write_text(json.dumps(card | changes))


def test_the_shipped_model_is_small_and_answers_finite_numbers():
    assert SHIPPED.stat().st_size < 500_000
    regressor = load_regressor()
    rows = np.zeros((5, len(FEATURES)), dtype=np.float32)
    rows[1] = np.nan
    said = regressor.log_corrections(rows)
    assert said.shape == (5, 2)
    assert np.isfinite(said).all()


def test_the_card_tells_how_the_model_came_about():
    card = load_regressor().card
    assert card.command.startswith("python -m agents.prediction.train")
    assert len(card.data_sha256) == 64
    assert card.metrics["ttft_ms_agent_r2_log"] > 0.9
    assert card.metrics["tpot_ms_agent_r2_log"] > 0.9


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"none\.cbm"):
        load_regressor(tmp_path / "none.cbm")


def test_a_missing_card_is_named(copied):
    card_path(copied).unlink()
    with pytest.raises(ModelError, match=r"cost\.json"):
        load_regressor(copied)


def test_a_model_that_is_not_the_cards_is_refused(copied):
    copied.write_bytes(copied.read_bytes()[:-1])
    with pytest.raises(ModelError, match="not the file that its card describes"):
        load_regressor(copied)


def test_a_file_that_is_no_model_is_refused(copied):
    import hashlib

    copied.write_bytes(b"not a model at all")
    edit_card(copied, model_sha256=hashlib.sha256(b"not a model at all").hexdigest())
    with pytest.raises(ModelError, match="cannot be read"):
        load_regressor(copied)


@pytest.mark.parametrize(
    ("changes", "said"), [({"features": ["colour"]}, "other features"), ({"format": 9}, "format 9"), ({"features": 3}, "features")]
)
def test_a_card_of_another_kind_is_refused(copied, changes, said):
    edit_card(copied, **changes)
    with pytest.raises(ModelError, match=said):
        load_regressor(copied)


def features(request_id: str, prompt_tokens: int = 100) -> RequestFeatures:
    return RequestFeatures(
        request_id=request_id,
        sent_s=100.0,
        tenant="t",
        model="m",
        prompt_tokens=prompt_tokens,
        task_type=TaskType.QA,
        confidence=0.9,
        ttft_slo_ms=1000.0,
        tpot_slo_ms=50.0,
        importance=0.75,
        output_tokens=100.0,
        output_tokens_p90=200.0,
    )


def snapshot(at_s: float) -> SystemSnapshot:
    view = InstanceView(
        name="a", in_flight=2, in_flight_tokens=500, n_run=8, token_budget=0, kv_committed=0.0, tpot_pressure=0.0, capacity_n_run=8
    )
    return SystemSnapshot(
        sent_s=at_s,
        gateway="g",
        policy="edf",
        queued=0,
        queued_tokens=0,
        queued_long=0,
        overdue=0,
        oldest_wait_ms=0.0,
        arrived_total=0,
        dispatched_total=0,
        ended={},
        instances=[view],
    )


def test_without_its_model_the_agent_works_and_says_so_once(tmp_path):
    agent = make_agent(Config(agents=AgentsConfig(prediction_model=str(tmp_path / "gone.cbm"))))
    (cost,) = agent.handle([snapshot(100.0), features("r")], 100.0)
    assert isinstance(cost, RequestCost)
    (event,) = agent.on_tick(101.0)
    assert isinstance(event, Event)
    assert (event.kind, event.severity) == ("model_fallback", "warning")
    assert "gone.cbm" in event.reason
    assert agent.on_tick(102.0) == []


def test_with_its_model_the_agent_answers_every_request_of_a_batch():
    agent = make_agent(Config())
    costs = agent.handle([features("x"), snapshot(100.0), features("y")], 100.0)
    assert [cost.request_id for cost in costs] == ["x", "y"]
    assert agent.on_tick(101.0) == []


async def test_the_agent_learns_an_engines_speed_from_the_stream_when_it_starts():
    bus = MemoryBus()
    bus.post(snapshot(99.0))
    for number in range(100):
        bus.post(
            Completion(
                request_id=str(number),
                sent_s=99.5,
                tenant="t",
                model="m",
                outcome=OutcomeKind.COMPLETED,
                arrival_s=99.0,
                policy="edf",
                instance="a",
                prompt_tokens=100,
                output_tokens=50,
                ttft_ms=10.0,
                service_ttft_ms=10.0,
                tpot_ms=2.0,
                total_ms=108.0,
                running=2,
            )
        )
    agent = make_agent(Config())
    fresh = make_agent(Config())
    await agent.recover(bus, 100.0)
    (learnt,), (default,) = (one.handle([snapshot(100.0), features("r")], 100.0) for one in (agent, fresh))
    assert learnt.tpot_ms["a"] < 5.0 < default.tpot_ms["a"]


def test_samples_repeat_from_their_seed_and_each_request_gives_one():
    first, again = (list(random_episode(np.random.default_rng([7, 1]), requests=60).run()) for _ in range(2))
    assert 0 < len(first) <= 60 - WARM_UP
    assert [sample.labels for sample in first] == [sample.labels for sample in again]
    rows, labels = table(first)
    assert rows.shape == (len(first), len(FEATURES))
    assert np.isfinite(labels[:, 0]).all()


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
    assert median_error["ttft_ms", "said"] < 0.3
    assert median_error["ttft_ms", "said"] < 0.8 * median_error["ttft_ms", "formula"]
    assert median_error["tpot_ms", "said"] < 0.25


@pytest.mark.slow
def test_training_is_reproducible_and_writes_a_model_that_loads(tmp_path, capsys):
    paths = [tmp_path / "one.cbm", tmp_path / "two.cbm"]
    for path in paths:
        assert train.main(["--out", str(path), "--episodes", "12", "--held-out", "4", "--seed", "5"]) == 0
    capsys.readouterr()
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert card_path(paths[0]).read_bytes() == card_path(paths[1]).read_bytes()
    assert load_regressor(paths[0]).card.metrics["samples"] > 100


def test_a_trained_model_beats_the_formula_on_engines_it_has_not_seen():
    metrics = train.measure(load_regressor(), seed=11, episodes=6)
    assert metrics["ttft_ms_agent_median_ape"] < metrics["ttft_ms_formula_median_ape"]


@pytest.mark.parametrize("name", ["perception", "qos", "statera"])
def test_other_agents_do_not_load_the_model_library(name):
    code = f"""
import sys
from agents.shell import make_agent
from controller.config.schema import Config
make_agent({name!r}, Config())
heavy = [m for m in ("catboost", "matplotlib", "pandas", "scipy", "torch") if m in sys.modules]
assert not heavy, heavy
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_episodes_are_told_apart_by_their_number_alone():
    both = list(samples(3, 2))
    assert [s.labels for s in both[1]] == [s.labels for s in random_episode(np.random.default_rng([3, 1])).run()]
