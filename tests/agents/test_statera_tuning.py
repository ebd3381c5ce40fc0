"""Gains derived from the plant, the identification run, and the file between them."""

import json
import math

import numpy as np
import pytest
from control_kit import completion, instance, short_view
from hypothesis import given
from hypothesis import strategies as st
from typing_kit import known

from hmas.agents.statera.agent import make_agent
from hmas.agents.statera.gains import Gains, PlantFit, derive, margins
from hmas.agents.statera.model import StateraModel
from hmas.agents.statera.tuning import EVERY, Tuning, read_tuning, write_tuning
from hmas.cli.main import main
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError
from hmas.engines.sim.profile import load_profile
from hmas.planning import StudyError
from hmas.profiling.ladder import Load, Rung, Timing, identify, rung_of, simulated

PLANTS = st.builds(
    PlantFit,
    base_ms=st.floats(0, 50),
    slope_ms=st.floats(1e-3, 5),
    n_run=st.floats(1, 500),
    decode_s=st.floats(0.05, 60),
    service_s=st.floats(0.1, 90),
    rps=st.floats(0.05, 100),
    view_s=st.floats(0.05, 2),
    transport_s=st.floats(0, 5),
    period_s=st.floats(0.1, 5),
)


def swing(gain: float, elasticity: float, delay_s: float, *, step_s: float = 0.01, seconds: float = 200.0) -> float:
    """The largest |log u| in the last tenth of a run of the loop itself: an integrator with dead time, put off by a step."""
    lag = max(1, round(delay_s / step_s))
    log_n = [0.5] * (lag + 1)
    for _ in range(int(seconds / step_s)):
        log_n.append(log_n[-1] - gain * step_s * elasticity * log_n[-1 - lag])
    return max(abs(value) for value in log_n[-int(0.1 * seconds / step_s) :])


@given(PLANTS)
def test_derived_gains_have_the_margins_that_they_claim(plant):
    gains = derive(plant)
    found = margins(gains, plant)
    assert found.phase_deg >= 61.0
    assert found.gain >= math.pi - 1e-9
    assert gains.rise_per_s < gains.fall_per_s
    assert not gains.problem() or gains.fall_per_s < 0.003


@pytest.mark.parametrize(("elasticity", "delay_s"), [(1.0, 1.0), (0.4, 2.5), (0.8, 0.5)])
def test_the_margin_is_where_the_loop_really_begins_to_swing(elasticity, delay_s):
    gain = 1.0 / (2.0 * elasticity * delay_s)
    assert swing(gain, elasticity, delay_s) < 1e-3
    assert swing(gain * math.pi * 0.93, elasticity, delay_s) < 0.3
    assert swing(gain * math.pi * 1.07, elasticity, delay_s) > 1.0


def test_the_defaults_are_derived():
    steepest = PlantFit(base_ms=0.0, slope_ms=1.0, n_run=40.0, decode_s=2.5, service_s=6.0, rps=5.0, view_s=0.2)
    gains = derive(steepest)
    assert steepest.delay_s == pytest.approx(2.5, rel=0.05)
    for name in ("rise_per_s", "fall_per_s", "trim_per_s", "lead_s"):
        assert getattr(gains, name) == pytest.approx(getattr(Gains(), name), rel=0.06)


@given(PLANTS)
def test_gains_held_to_a_delay_have_their_margin_on_every_plant_with_it(plant):
    gains = Gains().held_to(plant.delay_s)
    assert margins(gains, plant).phase_deg >= 61.0
    assert gains.fall_per_s <= Gains().fall_per_s
    assert Gains().held_to(0.1) == Gains()


def test_without_the_guard_gains_follow_the_delay_as_seen_and_tuned_ones_stay():
    tuned = Gains(fall_per_s=0.3)
    model = StateraModel(gains={"tuned": tuned})
    fleet = [instance(name=name, guard_enabled=guarded) for name, guarded in (("alone", False), ("guarded", True), ("tuned", False))]
    for step in range(60):
        now_s = 20.0 + 0.5 * step
        ended = [
            completion(10 * step + place, now_s, instance=one.name, arrival_s=now_s - 10.0, queue_ms=0.0, total_ms=10_000.0)
            for place, one in enumerate(fleet)
        ]
        model.observe(short_view(now_s, instances=fleet, recent=ended), now_s)
    assert model.instances["alone"].loop.gains == Gains().held_to(0.8 + 0.1 + 0.05 + 0.25 + 5.0)
    assert model.instances["alone"].loop.gains.fall_per_s < 0.1
    assert model.instances["guarded"].loop.gains == Gains()
    assert model.instances["tuned"].loop.gains == tuned


def rungs(base_ms, slope_ms, ladder=(1, 4, 16, 64), noise=0.0):
    rng = np.random.default_rng(1)
    return [
        Rung(
            n=n,
            tpot_ms=(base_ms + slope_ms * n) * math.exp(noise * rng.standard_normal()),
            decode_s=2.0,
            service_s=2.5,
            rps=n / 2.5,
            answers=50,
        )
        for n in ladder
    ]


@pytest.mark.parametrize(("base_ms", "slope_ms"), [(15.0, 0.5), (2.0, 1.5), (30.0, 0.05)])
def test_the_plant_is_identified(base_ms, slope_ms):
    found = identify(rungs(base_ms, slope_ms, noise=0.002), tpot_ms=base_ms + 30 * slope_ms, period_s=0.5, tick_s=0.1)
    assert found.plant.slope_ms == pytest.approx(slope_ms, rel=0.15)
    assert found.plant.n_run == pytest.approx(30, rel=0.1)
    assert found.margins.phase_deg >= 60.9


def test_what_cannot_be_identified_is_said():
    with pytest.raises(StudyError, match="3 or more"):
        identify(rungs(15, 0.5)[:2], tpot_ms=0.0, period_s=0.5, tick_s=0.1)
    with pytest.raises(StudyError, match="does not rise"):
        identify(rungs(15, -0.1), tpot_ms=0.0, period_s=0.5, tick_s=0.1)


def test_a_rung_leaves_out_what_was_sent_at_once():
    timings = [Timing(0.0, 5.0, 6.0, 11), Timing(0.0, 5.0, 6.0, 11), Timing(6.0, 6.5, 7.5, 11), Timing(6.0, 6.5, 7.5, 11)]
    rung = known(rung_of(2, timings))
    assert (rung.tpot_ms, rung.answers, rung.service_s) == (100.0, 2, 1.5)
    assert rung_of(2, timings[:2]) is None


def test_the_simulated_ladder_holds_its_concurrency_by_littles_law():
    for rung in simulated(load_profile("a100-qwen3-8b"), (4, 32), Load(rounds=8)):
        assert rung.rps * rung.service_s == pytest.approx(rung.n, rel=0.25)


def test_the_file_goes_round_and_reaches_the_loop(tmp_path):
    path = tmp_path / "statera.json"
    assert main(["tune", "statera", "demo-small", "--ladder", "1,4,8", "--name", "i0", "--out", str(path)]) == 0
    tuned = read_tuning(path)
    config = Config(agents=Config().agents.__class__(statera_tuning=str(path)))
    model = make_agent(config).model
    assert isinstance(model, StateraModel)
    model.observe(short_view(0.0, instances=[instance(), instance(name="other")]), 0.0)
    assert model.instances["i0"].loop.gains == tuned.gains["i0"]
    assert model.instances["other"].loop.gains == Gains()
    assert main(["tune", "statera", "demo-small", "--ladder", "1,4,8", "--out", str(path)]) == 0
    assert set(read_tuning(path).gains) == {"i0", EVERY}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "statera tuning"),
        ('{"version": 2}', "version"),
        ('{"gains": {"*": {"fall_per_s": 99}}}', "fall_per_s is 99; allowed"),
        ('{"gains": {"*": {"speed": 1}}}', "speed"),
    ],
)
def test_a_bad_file_is_refused_in_words(tmp_path, text, complaint):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_tuning(path)
    with pytest.raises(ConfigError, match="hmas tune statera"):
        read_tuning(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="--out"):
        write_tuning(path / "under-a-file.json", Tuning())
    path.write_bytes(b'{"gains":{"\xff":{}}}')
    with pytest.raises(ConfigError, match="statera tuning"):
        read_tuning(path)


def test_nothing_is_measured_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["tune", "statera", "demo-small", "--ladder", "1,4,8", "--out", str(tmp_path / "file" / "a.json")]) == 2
    said = capsys.readouterr()
    assert (said.out, "--out" in said.err) == ("", True)


def test_a_ladder_of_too_few_rungs_costs_no_measurement(tmp_path, capsys):
    out = tmp_path / "a.json"
    assert main(["tune", "statera", "demo-small", "--ladder", "1,4", "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "allowed: 3 or more numbers from 1 to 1024" in said.err


def test_it_prints_json(tmp_path, capsys):
    assert main(["tune", "statera", "demo-small", "--ladder", "1,4,8", "--out", str(tmp_path / "a.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["margins"]["phase_deg"] >= 60
