import csv
import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from hmas.controller.core.errors import TraceError
from hmas.loadgen.streams import stream
from hmas.workloads import build
from hmas.workloads.servegen import bin_quantile
from hmas.workloads.servegen_files import Histogram, read_servegen

DATA = os.environ.get("HMAS_DATA_DIR", "")
needs_data = pytest.mark.skipif(not DATA, reason="HMAS_DATA_DIR names no folder of public data")
ARRIVALS = f"{DATA}/arrivals"

CLIENTS = [
    ("m-large", 0, 0, 2.0, 1.0, "Gamma", 1.0, 0.5),
    ("m-large", 0, 600, 4.0, 1.0, "Gamma", 1.0, 0.25),
    ("m-large", 1, 0, 1.0, 4.0, "Weibull", 0.4, 0.3),
    ("m-large", 1, 600, 1.0, 4.0, "Gamma", 0.0625, 16.0),
    ("m-large", 2, 0, 0.5, 0.3, "Gamma", 11.0, 0.2),
    ("m-small", 7, 0, 9.0, 1.0, "Gamma", 1.0, 1.0),
]
HISTOGRAM = [
    ("m-large", field, t_s, low, high, weight)
    for field, scale in (("input_tokens", 10), ("output_tokens", 1))
    for t_s in (0, 21600)
    for low, high, weight in ((10 * scale, 20 * scale, 50.0), (20 * scale, 40 * scale, 30.0), (100 * scale, 400 * scale, 20.0))
]
SUMMARY = [
    ("m-large", client, field, 1000, mean, mean * 9)
    for client, means in ((0, (200.0, 15.0)), (1, (2500.0, 250.0)))
    for field, mean in zip(("input_tokens", "output_tokens"), means, strict=True)
]
HEADS = {
    "servegen_clients_10min": "model,client,t_s,rate_rps,cv_iat,pattern,p1,p2",
    "servegen_length_hist": "model,field,t_s,bin_lo,bin_hi,est_requests",
    "servegen_client_length_summary": "model,client,field,est_requests,mean_value,max_value",
}


@pytest.fixture
def folder(tmp_path):
    for (name, head), rows in zip(HEADS.items(), (CLIENTS, HISTOGRAM, SUMMARY), strict=True):
        (tmp_path / f"{name}.csv").write_text(head + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return tmp_path


def per_client(workload):
    return {name: workload.at_s[workload.tenant == number] for number, name in enumerate(workload.tenants)}


def test_each_window_has_the_count_that_was_observed(folder):
    workload = build(f"servegen:{folder}?duration=1200")
    found = {name: np.histogram(times, bins=[0, 600, 1200])[0].tolist() for name, times in per_client(workload).items()}
    assert found == {"client-0": [1200, 2400], "client-1": [600, 600], "client-2": [300, 0]}
    assert workload.duration_s == 1200.0


def test_a_rate_scales_all_clients_alike(folder):
    whole, half = build(f"servegen:{folder}?duration=1200"), build(f"servegen:{folder}?duration=1200,rate=2.125")
    assert whole.rate_rps == pytest.approx(4.25)
    assert half.rate_rps == pytest.approx(2.125, rel=0.01)
    for name, times in per_client(half).items():
        assert len(times) == pytest.approx(len(per_client(whole)[name]) / 2, abs=2)


def test_clients_have_their_own_burstiness(folder):
    squares = {"client-0": [], "client-1": [], "client-2": []}
    for seed in range(30):
        for name, times in per_client(build(f"servegen:{folder}?duration=600,seed={seed}")).items():
            gaps = np.diff(np.append(times, times[0] + 600.0))
            squares[name].append((gaps.std() / gaps.mean()) ** 2)
    for name, cv in (("client-0", 1.0), ("client-1", 4.0), ("client-2", 0.3)):
        assert np.sqrt(np.mean(squares[name])) == pytest.approx(cv, rel=0.12)


def test_the_mixture_of_clients_has_the_published_histogram(folder):
    workload = build(f"servegen:{folder}?duration=1200,rate=40")
    for lengths, scale in ((workload.prompt_tokens, 10), (workload.output_tokens, 1)):
        shares = np.histogram(lengths, bins=np.array([10, 20, 40, 100, 400]) * scale)[0] / len(workload)
        # 48,000 rows whose ranks are even by construction.
        assert shares == pytest.approx([0.5, 0.3, 0.0, 0.2], abs=0.01)


def test_clients_with_longer_means_have_the_longer_requests(folder):
    workload = build(f"servegen:{folder}?duration=1200,rate=40")
    mean = {name: workload.prompt_tokens[workload.tenant == number].mean() for number, name in enumerate(workload.tenants)}
    assert mean["client-1"] > 2.5 * mean["client-0"]
    # Client 2's lengths were not published: it stands between.
    assert mean["client-0"] < mean["client-2"] < mean["client-1"]


def test_the_part_and_the_clients_can_be_chosen(folder):
    part = build(f"servegen:{folder}?start=300,duration=600")
    whole = build(f"servegen:{folder}?duration=1200")
    inside = whole.at_s[(whole.at_s >= 300) & (whole.at_s < 900)] - 300
    assert part.at_s == pytest.approx(inside), "a window cut in two has the same arrivals"
    assert build(f"servegen:{folder}?duration=1200,clients=1").tenants == ("client-0",)
    assert build(f"servegen:{folder}?duration=1200,clients=1").at_s == pytest.approx(per_client(whole)["client-0"])


def test_bins_spread_evenly_over_whole_lengths():
    histogram = Histogram(np.array([0.0, 10.0, 20.0]), np.array([1.0, 12.0, 40.0]), np.array([1.0, 2.0, 1.0]))
    drawn = bin_quantile(histogram, stream(1, "u").random(100_000))
    assert set(drawn.tolist()) == {0, 10, 11, *range(20, 40)}
    assert (drawn == 11).mean() == pytest.approx(0.25, abs=0.01)
    assert bin_quantile(histogram, np.array([0.0, 1.0])).tolist() == [0, 39]


@pytest.mark.parametrize(
    ("table", "row", "message"),
    [
        ("servegen_clients_10min", "m-large,0,0,-1,1,Gamma,1,1", r"row 8: rate_rps is '-1'; allowed: a number, 0 or more"),
        ("servegen_clients_10min", "m-large,0,0,1,nan,Gamma,1,1", r"row 8: cv_iat is 'nan'"),
        ("servegen_clients_10min", "m-large,0,0,1,1,Pareto,1,1", r"row 8: pattern is 'Pareto'; allowed: Gamma, Weibull"),
        ("servegen_clients_10min", "m-large,x,0,1,1,Gamma,1,1", r"row 8: client is 'x'; allowed: a whole number"),
        ("servegen_clients_10min", "m-large,1.5,0,1,1,Gamma,1,1", r"row 8: client is 1.5; allowed: a whole number"),
        ("servegen_length_hist", "m-large,input_tokens,0,5,6", r"est_requests is missing"),
        ("servegen_length_hist", "m-large,input_tokens,0,9,6,1", r"bin_hi is 6.0; allowed: above bin_lo"),
        ("servegen_client_length_summary", "m-large,0,input_tokens,5,abc,6", r"mean_value is 'abc'"),
    ],
)
def test_bad_rows(folder, table, row, message):
    with (folder / f"{table}.csv").open("a") as file:
        file.write(row + "\n")
    with pytest.raises(TraceError, match=message):
        build(f"servegen:{folder}")


def test_what_is_not_there(folder):
    with pytest.raises(TraceError, match=r"model is 'm-huge'; allowed: m-large, m-small"):
        build(f"servegen:{folder}?model=m-huge")
    with pytest.raises(TraceError, match=r"nothing is recorded 600 s from start=5000 on; allowed: up to 1200 s"):
        build(f"servegen:{folder}?start=5000")
    with pytest.raises(TraceError, match="no histogram of output_tokens"):
        build(f"servegen:{folder}?model=m-small")
    (folder / "servegen_length_hist.csv").unlink()
    with pytest.raises(TraceError, match=r"holds no servegen_length_hist.csv"):
        build(f"servegen:{folder}")


@needs_data
def test_published_rates_and_lengths():
    with gzip.open(f"{ARRIVALS}/servegen_rate_10min.csv.gz", "rt") as file:
        totals = {float(row["t_s"]): float(row["total_rate_rps"]) for row in csv.DictReader(file) if row["model"] == "m-large"}
    workload = build(f"servegen:{ARRIVALS}?model=m-large,duration=600")
    # Client rates are rounded to four digits.
    assert workload.rate_rps == pytest.approx(totals[0.0], rel=2e-3)
    data = read_servegen(Path(ARRIVALS), "m-large")
    for lengths, field in ((workload.prompt_tokens, "input_tokens"), (workload.output_tokens, "output_tokens")):
        histogram = data.histograms[field][0.0]
        ends = np.cumsum(histogram.weight) / histogram.weight.sum()
        for share in (0.25, 0.5, 0.75, 0.95):
            place = int(np.searchsorted(ends, share))
            low, high = histogram.low[max(0, place - 1)], histogram.high[min(len(ends) - 1, place + 1)]
            assert low <= np.quantile(lengths, share) <= high, (field, share)


@needs_data
def test_clients_keep_their_measured_cv():
    """Over all windows of half an hour with 300 requests or more: the drawn CV against the published one."""
    workload = build(f"servegen:{ARRIVALS}?model=m-large,duration=1800")
    published = {(w.client, w.t_s): w for w in read_servegen(Path(ARRIVALS), "m-large").windows}
    ratios = []
    for number, name in enumerate(workload.tenants):
        times = workload.at_s[workload.tenant == number]
        for t_s in (0.0, 600.0, 1200.0):
            inside = times[(times >= t_s) & (times < t_s + 600.0)]
            window = published.get((int(name.removeprefix("client-")), t_s))
            if window is not None and len(inside) >= 300 and window.cv < 0.3 * np.sqrt(len(inside)):
                gaps = np.diff(inside)
                ratios.append(gaps.std() / gaps.mean() / window.cv)
    assert len(ratios) > 30
    assert np.median(ratios) == pytest.approx(1.0, abs=0.05)
    assert np.quantile(ratios, 0.1) > 0.7
    assert np.quantile(ratios, 0.9) < 1.3
