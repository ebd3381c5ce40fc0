"""LLM-Pilot's logs: read and refused, state that looks back only, formula and curve, and R² on held-out rows, loads and hardware."""

import gzip
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hmas_lab.cli import main
from hmas_lab.llm_pilot import evaluation
from hmas_lab.llm_pilot.files import FORMULA, SHIPPED, load_profile_model, save_profile_model
from hmas_lab.llm_pilot.model import COLUMNS, TARGETS, ProfileModel, bases, cells_of, fit, fit_formula, setups_of
from hmas_lab.llm_pilot.rows import read_rows, with_state
from hmas_lab.llm_pilot.state import STATE
from hypothesis import given
from hypothesis import strategies as st
from typing_kit import known

from hmas.agents.model_store.card import ModelCard, file_sha256, verified
from hmas.agents.model_store.ranges import RangeCounter
from hmas.agents.prediction.hardware import setup_of
from hmas.agents.prediction.prior import SHIPPED_FORMULA
from hmas.controller.core.errors import ModelError, TraceError

HEAD = "model,gpu_type,n_gpus,num_users,start_offset_ms,n_input_tokens,n_output_tokens,open_ms,ttft_ms,itl_mean_ms,latency_ms"


def written(path: Path, lines: list[str]) -> Path:
    text = "\n".join([HEAD, *lines]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def logs(path: Path, *, gpus=("A100", "H100", "T4"), loads=(1, 4, 16, 64), each: int = 60, seed: int = 1, slow: float = 1.0) -> Path:
    """Closed-loop users before engines whose steps take what their memory bandwidth says, and more with each user."""
    rng = np.random.default_rng(seed)
    lines = []
    for gpu in gpus:
        for model in ("llama-7b", "llama-13b"):
            setup = setup_of(gpu, 4, model)
            for users in loads:
                at_ms = 0.0
                for _ in range(each):
                    prompt, output = int(rng.integers(5, 800)), int(rng.integers(1, 60))
                    itl_ms = slow * (1.4 * setup.read_ms + users * 0.6) * rng.lognormal(0, 0.05)
                    ttft_ms = (10 + 2 * setup.read_ms + users * (2 + 60 * setup.token_ms) + 2.0 * prompt * setup.token_ms) * rng.lognormal(
                        0, 0.1
                    )
                    latency_ms = 8 + ttft_ms + itl_ms * (output - 1)
                    itl = f"{itl_ms:.2f}" if output > 1 else ""
                    lines.append(f"{model},{gpu},4,{users},{at_ms:.0f},{prompt},{output},8,{ttft_ms:.2f},{itl},{latency_ms:.2f}")
                    at_ms += latency_ms / users
    return written(path, lines)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return read_rows([logs(tmp_path_factory.mktemp("logs") / "a.csv.gz")])


@pytest.fixture(scope="module")
def model(rows):
    return fit(rows)


def test_logs_are_read_plain_and_packed(tmp_path):
    line = "llama-7b,A100,1,2,5,100,1,8,50,,58"
    plain, packed = written(tmp_path / "a.csv", [line]), written(tmp_path / "b.csv.gz", [line, line])
    found = read_rows([plain, packed])
    assert len(found) == 3
    assert found.source.tolist() == [0, 1, 1]
    assert math.isnan(found.itl_ms[0])
    assert found.tokens_per_s[0] == pytest.approx(1000 / 58)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("llama-7b,A100,1,2,5,100,many,8,50,20,58", r"line 2: n_output_tokens is 'many'; allowed: numbers from 1"),
        ("llama-7b,A100,0,2,5,100,10,8,50,20,58", "n_gpus is '0'"),
        ("llama-7b,,1,2,5,100,10,8,50,20,58", "gpu_type is ''"),
        ("llama-7b,A100,1,2,5,100,10,8,nan,20,58", "ttft_ms is 'nan'"),
        ("llama-7b,A100,1,2,5,100,10,8,inf,20,58", "ttft_ms is 'inf'"),
        ("llama-7b,A100,1", "num_users is ''"),
    ],
)
def test_a_bad_row_is_named(tmp_path, line, said):
    with pytest.raises(TraceError, match=said):
        read_rows([written(tmp_path / "a.csv", [line])])


def test_other_files_are_refused(tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match="no column 'model'"):
        read_rows([other])
    with pytest.raises(TraceError, match="no rows"):
        read_rows([written(tmp_path / "empty.csv", [])])
    (tmp_path / "broken.csv.gz").write_bytes(gzip.compress(b"x" * 1000)[:30])
    with pytest.raises(TraceError, match=r"broken\.csv\.gz"):
        read_rows([tmp_path / "broken.csv.gz"])


def test_the_state_of_a_row_is_what_had_been_told_and_nothing_later(rows):
    cell = rows.cells() == "llama-7b/4xA100@16"
    part = rows.take(np.flatnonzero(cell))
    now_ms = float(np.median(part.start_ms))
    past = part.start_ms + part.open_ms + part.ttft_ms <= now_ms
    changed = part.take(np.arange(len(part)))
    later = part.start_ms > now_ms
    changed.ttft_ms[later] *= 100.0
    changed.latency_ms[later] *= 100.0
    again = with_state(changed)
    before = part.start_ms <= now_ms
    assert np.array_equal(again.state[before], part.state[before], equal_nan=True)
    probe = int(np.flatnonzero(before)[np.argmax(part.start_ms[before])])
    told = (part.start_ms + part.open_ms + part.ttft_ms)[part.start_ms + part.open_ms + part.ttft_ms <= part.start_ms[probe]]
    assert past.any()
    assert part.state[probe, STATE.index("told")] == pytest.approx(math.log1p(len(told)))
    assert np.isnan(part.state[np.argmin(part.start_ms), 0])


def test_starved_cells_are_those_in_which_only_the_first_requests_ended(tmp_path):
    steady = [f"llama-7b,A100,1,4,{at * 100},50,5,8,50,20,138" for at in range(1000)]
    cut = [f"llama-7b,T4,1,128,{at},50,5,8,9000,20,9088" for at in range(30)]
    found = read_rows([written(tmp_path / "a.csv", steady + cut)])
    assert set(found.cells()[found.starved()]) == {"llama-7b/1xT4@128"}
    sample = found.take(np.arange(0, len(found), 7))
    assert set(sample.cells()[sample.starved()]) == {"llama-7b/1xT4@128"}, "a sample of the rows tells the same"


def test_formula_and_curve_say_what_was_measured(rows):
    cells = cells_of(rows)
    formula = fit_formula(cells)
    assert all(value >= 0 for values in formula.coefficients.values() for value in values)
    said = bases(formula, rows, setups_of(rows))
    for number, name in enumerate(np.unique(rows.cells())):
        chosen = rows.cells() == name
        assert said["itl"][chosen][0] == pytest.approx(cells.measured["itl"][number], rel=1e-3)
    assert np.isfinite(said["per_token"]).all()


def test_a_trained_model_says_the_same_after_its_folder_was_read(tmp_path, rows, model):
    save_profile_model(model, tmp_path / "m", ModelCard(kind="prediction", command="x"))
    read, card = load_profile_model(tmp_path / "m")
    assert card.format == "catboost-profile-1"
    for live in (True, False):
        for target, values in model.predict(rows, live=live).items():
            assert read.predict(rows, live=live)[target] == pytest.approx(values, rel=1e-4)
    (tmp_path / "m" / "formula.json").write_text("{}")
    with pytest.raises(ModelError, match=r"formula\.json"):
        load_profile_model(tmp_path / "m")


def test_inputs_outside_of_the_training_are_cut_and_counted(rows, model):
    last_ms = float(np.log1p(rows.start_ms).max())
    narrow = ProfileModel(model.formula, model.trees, RangeCounter(known(model.ranges).bounds | {"log_start": (last_ms, last_ms)}))
    outside = int((np.log1p(rows.start_ms).astype(np.float32) < np.float32(last_ms)).sum())
    told = narrow.predict(rows, live=False)["ttft"]
    assert known(narrow.ranges).out_of_range == {"log_start": outside}
    at_bound = model.predict(replace(rows, start_ms=np.full(len(rows), rows.start_ms.max())), live=False)["ttft"]
    assert told == pytest.approx(at_bound)
    assert told != pytest.approx(model.predict(rows, live=False)["ttft"])


def test_what_is_held_out_is_predicted_better_than_by_means(tmp_path, rows, model):
    unseen = read_rows([logs(tmp_path / "b.csv", loads=(2, 8, 32), seed=2)])
    ours = evaluation.evaluate(unseen, lambda asked: evaluation.quantities(model.predict(asked)))
    means = evaluation.evaluate(unseen, evaluation.engine_means(rows))
    for quantity in evaluation.QUANTITIES:
        assert ours[quantity]["r2"] > means[quantity]["r2"]
        assert ours[quantity]["r2_cells"] > 0.9
    # A GPU that was never measured and is not what its data sheet says: telemetry, once there is some, tells how fast it is.
    new = read_rows([logs(tmp_path / "c.csv", gpus=("A10",), seed=3, slow=2.5)])
    live, static = (evaluation.scores(new, evaluation.quantities(model.predict(new, live=one))) for one in (True, False))
    assert live["decode_ms_per_token"]["r2_log"] > 0.6
    assert live["decode_ms_per_token"]["median_error"] < 0.5 * static["decode_ms_per_token"]["median_error"]


def test_beyond_all_measured_loads_telemetry_says_where_the_formula_went_wrong(tmp_path, model):
    # At four times the highest load that was measured steps take half as long again as they should.
    high = read_rows([logs(tmp_path / "d.csv", loads=(256,), each=600, seed=5, slow=1.5)])
    assert (model.known(high) == 0.5).all()
    live, static = (evaluation.scores(high, evaluation.quantities(model.predict(high, live=one))) for one in (True, False))
    assert live["decode_ms_per_token"]["median_error"] < 0.5 * static["decode_ms_per_token"]["median_error"]
    assert live["decode_ms_per_token"]["r2_cells"] > static["decode_ms_per_token"]["r2_cells"]


@pytest.mark.slow
@pytest.mark.long
def test_splits_predict_each_row_once_and_beside_baselines(rows):
    found = evaluation.cross_validate(rows, per_cell=20)
    assert set(evaluation.SPLITS) <= set(found)
    assert (found["requests"], found["cells"]) == (len(rows), 24)
    for split in evaluation.SPLITS:
        assert {"catboost", "catboost, with telemetry", *evaluation.BASELINES} == set(found[split])
        assert found[split]["catboost"]["prefill_ms"]["requests"] == len(rows)
    assert found["rows"]["catboost"]["throughput_tokens_per_s"]["r2"] > found["rows"]["engine means"]["throughput_tokens_per_s"]["r2"]
    assert set(found["load between"]["catboost"]) == set(evaluation.QUANTITIES)


@given(st.lists(st.floats(0.1, 1e4), min_size=2, max_size=50, unique=True))
def test_r2_is_one_for_the_truth_and_nought_for_its_mean(values):
    true = np.array(values)
    assert evaluation.r2(true, true) == pytest.approx(1.0)
    assert evaluation.r2(true, np.full(len(true), true.mean())) == pytest.approx(0.0, abs=1e-6)


def test_the_shipped_model_is_small_and_names_its_data_and_licence():
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 1_500_000
    model, card = load_profile_model()
    assert card.licence.startswith("CDLA-Permissive-2.0")
    assert len(card.data_sha256["llm_pilot_requests.csv.gz"]) == 64
    assert set(model.formula.coefficients) == {"ttft", "itl"}
    assert {target for _, target in model.trees} == set(TARGETS)
    assert (SHIPPED / FORMULA).read_bytes() == SHIPPED_FORMULA.read_bytes(), "the product's priors come from this formula"


DATA = Path(os.environ.get("HMAS_DATA_DIR", "")) / "profiles" / "llm_pilot_requests.csv.gz"


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("HMAS_DATA_DIR") or not DATA.exists(), reason="needs HMAS_DATA_DIR")
def test_the_shipped_model_knows_what_it_was_trained_on():
    model, card = load_profile_model()
    assert {DATA.name: file_sha256(DATA)} == card.data_sha256
    found = evaluation.evaluate_files([DATA], model)["telemetry"]
    for quantity, least in (("throughput_tokens_per_s", 0.96), ("latency_ms_per_token", 0.93), ("prefill_ms", 0.9)):
        assert found[quantity]["r2"] > least
    assert found["decode_ms_per_token"]["r2_cells_not_starved"] > 0.95


def test_the_profile_model_carries_ranges_too():
    model, card = load_profile_model()
    assert tuple(known(model.ranges).bounds) == COLUMNS
    assert list(card.details["ranges"]) == list(COLUMNS)


@pytest.mark.slow
def test_logs_of_own_hardware_make_a_model_and_a_formula(tmp_path, capsys):
    path = logs(tmp_path / "a.csv", gpus=("A100",), each=20)
    out, formula = tmp_path / "mine", tmp_path / "formula"
    assert main(["llm-pilot", "--data", str(path), "--out", str(out), "--formula", str(formula)]) == 0
    assert verified(formula).format == "formula"
    assert (formula / FORMULA).read_bytes() == (out / FORMULA).read_bytes()
    capsys.readouterr()
    assert main(["llm-pilot", "--data", str(path), "--model", str(out)]) == 0
    text = capsys.readouterr().out
    assert "NaN" not in text
    assert json.loads(text)["telemetry"]["prefill_ms"]["r2"] > 0.8
    path.write_text(path.read_text().replace("A100", "Abacus"))
    assert main(["llm-pilot", "--data", str(path)]) == 1
    assert "gpu 'Abacus' is not known; allowed: T4" in capsys.readouterr().err
