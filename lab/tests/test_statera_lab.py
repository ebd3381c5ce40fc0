"""The studies of statera alone: plants, laws, figures of a response, streams of lengths, and the command."""

import json

import msgspec
import numpy as np
import pytest
from control_kit import instance, short_view
from hmas_lab.cli import main
from hmas_lab.statera import coverage, fence, live
from hmas_lab.statera.laws import BACK_OFF_REST_S, Aimd, Delayed, Fixed, Statera
from hmas_lab.statera.loop import Course, Reading, Trial, drive
from hmas_lab.statera.plants import steeper
from hmas_lab.statera.responses import GUARDS, figures_of
from hmas_lab.statera.streams import WORSE, Pool, draw
from hmas_lab.statera.tables import tables

from hmas.controller.core.types import Slo, TaskType
from hmas.engines.sim.profile import load_profile
from hmas.loadgen.results import Result


def test_a_steeper_plant_costs_as_much_empty_and_more_full():
    profile = load_profile("demo-small")
    steep = steeper(profile, 4.0)
    assert steep.step_ms == profile.step_ms
    assert steep.decode_ms_per_seq == 4.0 * profile.decode_ms_per_seq
    assert steep.curve_ms(1) == profile.curve_ms(1)


def test_aimd_adds_one_while_full_and_backs_off_once_a_round():
    law = Aimd(10, 0.5)
    full = {"in_flight": 10, "n_run": 10, "tpot_pressure": 0.5}
    assert law.observe(short_view(0.0, queued=5, instances=[instance(**full)]), 0.0) == {"i0": 11}
    late = {"in_flight": 11, "n_run": 11, "tpot_pressure": 1.5}
    assert law.observe(short_view(0.6, queued=5, instances=[instance(**late)]), 0.6) == {"i0": 5}
    assert law.observe(short_view(1.0, queued=5, instances=[instance(**late)]), 1.0) == {"i0": 5}
    assert law.observe(short_view(0.7 + BACK_OFF_REST_S, queued=5, instances=[instance(**late)]), 0.7 + BACK_OFF_REST_S) == {"i0": 2}


def test_a_late_view_is_taken_when_it_is_due():
    law = Delayed(Aimd(10, 0.5), 1.0)
    pressed = instance(in_flight=10, n_run=10, tpot_pressure=2.0)
    assert law.observe(short_view(0.0, instances=[pressed]), 0.0) == {}
    assert law.observe(short_view(1.0, instances=[pressed]), 1.0) == {"i0": 5}


def course(windows, *, every_s=0.2):
    readings = [Reading(every_s * number, int(n), int(n), 5, 0.9) for number, n in enumerate(windows)]
    return Course(readings=readings, goodput_rps=1.0, completed_rps=1.0, tpot_ratio_p95=0.9)


def test_figures_of_a_response_that_overshoots_and_settles():
    at = np.arange(0, 180, 0.2)
    figures = figures_of(course(np.round(100 + 60 * np.exp(-at / 10) * np.cos(at / 5))), 0.0, best=80)
    assert figures["final"] == pytest.approx(100, abs=1)
    assert 0.3 <= figures["overshoot"] <= 0.6
    assert 5 <= figures["settling_s"] <= 40
    assert figures["steady_error"] == pytest.approx(0.25, abs=0.02)
    assert figures["amplitude"] < 0.02


def test_figures_of_a_response_that_never_settles():
    at = np.arange(0, 180, 0.2)
    figures = figures_of(course(np.round(100 + 50 * np.sin(at / 5))), 0.0, best=100)
    assert figures["amplitude"] > 0.3
    assert figures["settling_s"] == float("inf")
    assert figures["reversals_per_min"] >= 3


def test_the_window_decides_in_the_simulated_loop_and_statera_finds_it():
    profile = load_profile("a100-qwen3-8b")
    trial = Trial(edges_s=[0, 40], rates=[9.0], seed=7)
    narrow, wide = (drive(profile, trial, Fixed(), start=cap) for cap in (8, 256))
    assert max(reading.in_flight for reading in narrow.readings) <= 8
    assert wide.tpot_ratio_p95 > narrow.tpot_ratio_p95
    found = drive(profile, trial, Statera(), start=32)
    assert found.goodput_rps > max(narrow.goodput_rps, wide.goodput_rps)
    guarded = drive(profile, trial, Statera(), start=32, tpot_guard=0.5)
    assert guarded.goodput_rps > found.goodput_rps
    assert guarded.readings[-1].n_run > found.readings[-1].n_run, "it opens further where the guard holds TPOT"


def test_streams_change_at_their_middle():
    pool = Pool(None, 400, 1)
    assert not pool.real
    shifted = draw(pool, "semantic shift", 400, 1)
    assert {(s.prompt_tokens, s.output_tokens) for s in shifted[:200]} <= set(pool.short)
    assert {(s.prompt_tokens, s.output_tokens) for s in shifted[200:]} <= set(pool.long)
    bad = draw(pool, "predictor goes bad", 400, 1)
    assert {s.factor for s in bad[:200]} == {1.0}
    assert {s.factor for s in bad[200:]} == {WORSE}
    new = draw(pool, "new long tenant", 400, 1)
    assert {s.tenant for s in new[:200]} == {"resident"}
    assert 10 <= sum(s.tenant == "newcomer" for s in new[200:]) <= 80


def test_adaptation_keeps_epsilon_where_the_window_alone_does_not():
    found = {(r["scenario"], r["epsilon"], r["method"]): r for r in coverage.study(None, [1], count=1500)["rows"]}
    for scenario in ("predictor goes bad", "semantic shift"):
        assert found[scenario, 0.1, "adaptive"]["rate"] < found[scenario, 0.1, "window"]["rate"]
        assert found[scenario, 0.1, "adaptive"]["rate"] <= 0.12


def test_the_fence_prevents_preemptions():
    rows = {(r["workload"], r["way"]): r for r in fence.study("1xa100-qwen3-8b", [1], rate=8.0, phase_s=20.0)["rows"]}
    assert rows["semantic shift", "no fence"]["preemptions"] >= 10
    # Not all: a request passes the fence where a longer wait would cost more than a preemption.
    assert rows["semantic shift", "fence, statera's bounds"]["preemptions"] <= 0.2 * rows["semantic shift", "no fence"]["preemptions"]
    assert rows["semantic shift", "fence, statera's bounds"]["goodput_rps"] >= 1.1 * rows["semantic shift", "no fence"]["goodput_rps"]


GRID_ROW = {"slope": 1.0, "amplitude": 0.02, "window": 40.0, "goodput_rps": 3.0, "reversals_per_min": 1.0}


def test_the_command_writes_results_plots_and_the_page(tmp_path, capsys):
    row = {"scenario": "semantic shift", "epsilon": 0.1, "method": "adaptive", "rate": 0.1, "after_change": 0.2, "late": 0.1}
    row |= {"worst_stretch": 0.3, "booked_over_real": 1.5}
    document = {
        "version": 1,
        "summary": {"parts": ["coverage", "grid"]},
        "coverage": {"lengths": "drawn", "count": 10, "seeds": [1], "rows": [row]},
        "grid": [{"guard": guard, "delay_s": 0.2, **GRID_ROW} for guard in GUARDS],
    }
    (tmp_path / "statera.json").write_text(json.dumps(document))
    page = tmp_path / "page.md"
    page.write_text("# x\n\n<!-- statera:begin -->\nold\n<!-- statera:end -->\n")
    assert main(["statera", "--out", str(tmp_path), "--page", str(page)]) == 0
    text = page.read_text()
    assert "40 ± 2.0%" in text
    assert "none oscillates" in text
    assert "old" not in text
    assert (tmp_path / "statera-coverage.svg").is_file()
    swinging = msgspec.json.decode(msgspec.json.encode(document))
    swinging["grid"][1]["amplitude"] = 0.3
    assert "1 of 1 swing more" in tables(swinging)[-1].title
    assert "none oscillates" in tables(swinging)[-2].title
    swinging["grid"][1]["window"] = 3.0
    assert "none oscillates" in tables(swinging)[-1].title, "less than a request"
    capsys.readouterr()


def answered(at_s, ttft_ms, tpot_ms):
    return Result(
        index=0,
        at_s=at_s,
        kind="chat",
        tenant="default",
        task_type=TaskType.UNKNOWN,
        size="short",
        prompt_tokens=10,
        wanted_tokens=16,
        slo=Slo(ttft_ms=1000.0, tpot_ms=30.0),
        outcome="completed",
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        total_ms=ttft_ms + 15 * tpot_ms,
    )


def test_figures_of_a_run_on_a_real_engine_are_of_what_came_after_the_change():
    results = [answered(1.0, 9000.0, 90.0), answered(21.0, 100.0, 10.0), answered(22.0, 100.0, 40.0), answered(23.0, 2000.0, 40.0)]
    moments = [live.Moment(1.0, 256, 200, 9), live.Moment(21.0, 40, 40, 3, 0.6), live.Moment(22.0, 60, 50, 1), live.Moment(99.0, 1, 1, 1)]
    assert live.figures(results, moments, 20.0, 80.0) == {
        "sent": 3,
        "good": 1,
        "ttft_missed": 1,
        "tpot_missed": 1,
        "window_least": 40,
        "window_median": 50,
        "window_most": 60,
        "guard_factor_least": 0.6,
        "guard_factor_median": 0.8,
        "in_flight_most": 50,
        "bound_share": 0.5,
    }
