"""The overload sweep: its figures from made-up numbers, and a small one from end to end."""

import json

import pytest
from hmas_lab.cli import main
from hmas_lab.overload.study import CAP, CAP_SHED, ENGINE, PRODUCT, REGIMES, STATIC, OverloadSettings, Sweep, calibration, flatness

from hmas.controller.core.errors import ConfigError
from hmas.planning.backends import on_cores


def test_flatness_is_measured_from_the_peak_on():
    assert flatness([1.0, 4.0, 3.0, 3.8]) == {"peak": 4.0, "last_share": 0.95, "least_share_after_peak": 0.75}
    assert flatness([1.0, 2.0, 4.0])["least_share_after_peak"] == 1.0
    assert flatness([4.0, 0.0])["last_share"] == 0.0
    assert flatness([]) == flatness([0.0]) == {"peak": 0.0, "last_share": 0.0, "least_share_after_peak": 0.0}


def test_calibration_looks_at_waits_that_matter():
    found = calibration([(1.0, 1.0), (60.0, 60.0), (4.0, 5.0), (12.0, 10.0), (3.0, 6.0)])
    assert (found.requests, found.median_wait_s) == (3, 6.0)
    assert (found.median_error_s, found.median_relative) == (2.0, 0.2)
    assert calibration([(1.0, 1.0)]).requests == 0


SMALL = OverloadSettings(loads=(0.5, 2.5), seeds=1, span_s=40.0, warmup_s=10.0, backlog=200, caps=(32,))


@pytest.mark.slow
def test_past_saturation_the_product_holds_and_the_engine_alone_does_not():
    told: list[str] = []
    document = Sweep(SMALL, on_cores(1), told.append).run()
    by = {(point["load"], point["regime"]): point for point in document["points"]}
    assert len(by) == len(SMALL.loads) * len(REGIMES)
    assert all(by[0.5, regime]["goodput_rate"] > 0.9 for regime in REGIMES)
    for regime in (STATIC, PRODUCT):
        assert by[2.5, regime]["goodput_rps"] > 1.5 * by[2.5, CAP_SHED]["goodput_rps"]
        assert by[2.5, regime]["good_tps"] > by[2.5, CAP_SHED]["good_tps"]
    assert document["flatness"][STATIC]["good_tps"]["least_share_after_peak"] > 0.8
    assert by[2.5, ENGINE]["goodput_rps"] < 0.5 * by[0.5, ENGINE]["goodput_rps"]
    assert by[2.5, CAP]["window"] in SMALL.caps
    assert document["retry_after"][STATIC]["requests"] > 20
    assert told[0].startswith("capacity")


@pytest.mark.slow
def test_the_same_sweep_gives_the_same_document():
    least = OverloadSettings(loads=(1.5,), seeds=1, span_s=12.0, warmup_s=3.0, backlog=100, caps=(24,))
    first, second = (Sweep(least, on_cores(1), lambda _text: None).run() for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_the_command_writes_its_files(tmp_path, capsys):
    options = ["--loads", "0.5", "--seeds", "1", "--span", "20", "--warmup", "5", "--out", str(tmp_path)]
    assert main(["overload", *options]) == 0
    assert "past the peak" in capsys.readouterr().out
    assert json.loads((tmp_path / "overload.json").read_text())["capacity_rps"] > 0
    assert "<svg" in (tmp_path / "overload.svg").read_text()


def test_mistakes_are_told():
    with pytest.raises(ConfigError, match="warm-up is 40 s; allowed: less than the span of 40 s"):
        Sweep(OverloadSettings(span_s=40.0, warmup_s=40.0), on_cores(1), lambda _text: None)


@pytest.mark.parametrize(("loads", "words"), [("a,b", "numbers with commas"), ("2,1", "rising numbers"), ("0.5,99", "loads")])
def test_bad_loads_are_refused(loads, words, capsys):
    assert main(["overload", "--loads", loads]) == 2
    assert words in capsys.readouterr().err
