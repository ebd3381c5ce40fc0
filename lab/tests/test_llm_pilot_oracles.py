"""What can be foretold at all: oracles on logs of which it is known what they are made of."""

import math

import numpy as np
import pytest
from hmas_lab.llm_pilot.oracles import ORACLES, foretellable, oracles
from hmas_lab.llm_pilot.rows import Rows
from hmas_lab.llm_pilot.state import STATE

CELLS, KINDS, EACH = 8, 10, 40


def log(*, seed: int = 1) -> tuple[Rows, np.ndarray, np.ndarray, np.ndarray]:
    """Requests of a few kinds, over and over, with numbers of their cell, of their kind, and the time."""
    rng = np.random.default_rng(seed)
    count = CELLS * KINDS * EACH
    cell, kind = np.arange(count) % CELLS, rng.integers(0, KINDS, count)
    start = rng.uniform(0, 120_000, count)
    ones = np.ones(count)
    rows = Rows(
        model=np.full(count, "llama-7b"),
        gpu=np.array(["A100", "H100"])[cell % 2],
        source=np.zeros(count, dtype=np.int64),
        n_gpus=ones,
        users=(2.0 ** (1 + cell // 2)).astype(np.float64),
        start_ms=start,
        prompt=(100.0 + kind).astype(np.float64),
        output=(5.0 + kind).astype(np.float64),
        open_ms=ones,
        ttft_ms=ones,
        itl_ms=ones,
        latency_ms=ones,
        state=np.full((count, len(STATE)), math.nan),
    )
    return rows, cell.astype(float), kind.astype(float), start


def test_oracles_explain_what_they_know_and_nothing_else():
    rows, cell, kind, start = log()
    rng = np.random.default_rng(2)
    whole = cell - cell.mean()
    own = np.sqrt(np.var(cell)) * (kind - kind.mean()) / np.std(kind)
    noise = np.std(cell) * rng.standard_normal(len(cell))
    slow = np.std(cell) * np.sqrt(2) * np.sin(start / 120_000 * 2 * np.pi)
    assert oracles(rows, whole)["cell"] == pytest.approx(1.0)
    assert oracles(rows, own)["cell"] == pytest.approx(0.0, abs=0.02)
    assert oracles(rows, own)["request"] == pytest.approx(1.0)
    made = oracles(rows, whole + own + noise)
    assert (made["cell"], made["request"], made["moment"]) == pytest.approx((1 / 3, 2 / 3, 2 / 3), abs=0.03)
    assert made["twins"] == 1.0
    moving = oracles(rows, whole + own + slow)
    assert moving["request"] == pytest.approx(2 / 3, abs=0.03)
    assert moving["moment"] > 0.95, "twins sent next to each other take the same where the times of day differ"


def test_no_forecast_from_cell_and_request_alone_passes_the_oracle_of_its_request():
    rows, cell, kind, _ = log()
    noise = np.random.default_rng(3).standard_normal(len(cell))
    came = cell + kind + noise
    # The true means are the best forecast there is.
    best = 1.0 - np.sum(noise**2) / np.sum((came - came.mean()) ** 2)
    assert oracles(rows, came)["request"] == pytest.approx(best, abs=0.005)


def test_parts_are_judged_by_their_own_variance_and_odd_ones_break_nothing():
    rows, cell, kind, _ = log()
    came = cell + kind
    came[::7] = math.nan
    found = foretellable(rows, {"x": came})["x"]
    assert set(found["by_gpu"]) == {"A100", "H100"}
    assert set(found["by_users"]) == {"2", "4", "8", "16"}
    assert set(found["by_output_tokens"]) == {"3-5", "6-9", "10-19"}
    assert found["by_gpu"]["A100"]["request"] == pytest.approx(1.0)
    alone = oracles(rows.take(np.array([0, 1, 2])), came[:3])
    assert alone["cell"] == pytest.approx(1.0)
    assert math.isnan(alone["request"]), "nobody has a twin"
    assert all(math.isnan(value) for value in oracles(rows.take(np.array([1])), came[1:2]).values())
    assert set(ORACLES) < set(found)
