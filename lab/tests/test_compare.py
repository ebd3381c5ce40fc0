import math

import pytest
from hmas_lab.compare import judged, mean_half, paired, plain, spread, twin_noise


def test_an_interval_is_students():
    mean, half = mean_half([1.0, 2.0, 3.0, 4.0])
    # t(0.975, 3) = 3.1824, s = 1.29099, n = 4
    assert mean == 2.5
    assert half == pytest.approx(3.1824463 * 1.2909944 / 2.0)


@pytest.mark.parametrize("values", [[], [5.0]])
def test_without_repetition_nothing_is_sure(values):
    assert mean_half(values)[1] == math.inf
    assert paired(values, values, 1).verdict == "within noise"


def test_many_comparisons_need_a_clearer_difference():
    values, base = [1.05, 1.08, 1.02, 1.06], [1.0, 1.0, 1.0, 1.0]
    assert paired(values, base, 1).verdict == "better"
    assert paired(values, base, 200).verdict == "within noise"
    assert paired(base, values, 1).verdict == "worse"


def test_differences_are_paired():
    # Workloads differ far more than policies do: unpaired, nothing could be told.
    base = [10.0, 20.0, 30.0, 40.0]
    assert paired([value + 1.0 + 0.01 * value for value in base], base, 14).verdict == "better"


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.2, 1.3, 1.15], "better"),
        ([1.2, 1.3, 0.99], "within noise"),
        ([1.04, 1.05, 1.03], "within noise"),
        ([0.7, 0.8, 0.0], "worse"),
        ([1.3, 1.3], "too few runs"),
        ([], "too few runs"),
    ],
)
def test_a_policy_has_to_lie_on_one_side_in_every_block_and_beyond_the_noise(ratios, verdict):
    assert judged(ratios, twin_noise([(10.0, 10.6), (10.0, 9.8)])) == verdict


def test_noise_is_the_greatest_of_the_twins_and_endless_where_it_cannot_be_told():
    assert twin_noise([(10.0, 11.0), (10.0, 9.5)]) == pytest.approx(math.log(1.1))
    assert twin_noise([]) == math.inf
    assert twin_noise([(10.0, 10.0), (0.0, 3.0)]) == math.inf
    assert judged([9.0, 9.0, 9.0], math.inf) == "within noise"


def test_results_are_plain():
    assert plain({"a": spread([3.0, 1.0, 2.0]), "b": [math.inf, 1.23456]}) == {
        "a": {"median": 2.0, "min": 1.0, "max": 3.0},
        "b": [None, 1.2346],
    }
    assert spread([]).median == 0.0
