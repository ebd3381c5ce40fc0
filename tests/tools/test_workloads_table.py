from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller.core.errors import TraceError
from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import Estimates, Slo
from hmas.workloads import TASKS, Workload, build


def table(**columns):
    count = len(columns.get("at_s", [0.0, 1.0, 2.0]))
    defaults = {
        "name": "mine",
        "at_s": [0.0, 1.0, 2.0],
        "prompt_tokens": [100] * count,
        "output_tokens": [10] * count,
        "max_tokens": [20] * count,
        "task": [0] * count,
        "importance": [0.75] * count,
        "slo_ttft_ms": [1000.0] * count,
        "slo_tpot_ms": [50.0] * count,
        "tenant": [0] * count,
        "session": [-1] * count,
        "tenants": ("a", "b"),
    }
    return Workload(**(defaults | columns))


def test_a_row_takes_tens_of_bytes_and_cannot_be_changed():
    workload = table()
    columns = [getattr(workload, f) for f in workload.__dataclass_fields__ if isinstance(getattr(workload, f), np.ndarray)]
    assert sum(c.itemsize for c in columns) < 50
    for column in columns:
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt_tokens": [5, -1, 5]}, r"mine, row 2: prompt_tokens is -1; allowed: 1 to 10000000"),
        ({"output_tokens": [5, 5, 0]}, r"row 3: output_tokens is 0; allowed: 1 to"),
        ({"prompt_tokens": [5, float("nan"), 5]}, r"row 2: prompt_tokens is nan; allowed"),
        ({"prompt_tokens": [5, 2.5, 5]}, r"row 2: prompt_tokens is 2.5; allowed: whole numbers"),
        ({"at_s": [0.0, 3.0, 2.0]}, r"row 3: at_s is 2.0; allowed: no earlier than the row before"),
        ({"at_s": [0.0, float("nan"), 2.0]}, r"row 2: at_s is nan; allowed"),
        ({"at_s": [-1.0, 0.0, 2.0]}, r"row 1: at_s is -1.0; allowed: 0 to"),
        ({"at_s": [0.0, 1.0, float("inf")]}, r"row 3: at_s is inf; allowed"),
        ({"task": [0, 14, 0]}, r"row 2: task is 14; allowed: 0 to 13"),
        ({"importance": [0.4, 0.5, 0.6]}, r"row 1: importance is 0.4; allowed: 0.5 to 1"),
        ({"slo_ttft_ms": [1.0, 0.0, 1.0]}, r"row 2: slo_ttft_ms is 0.0"),
        ({"slo_tpot_ms": [1.0, 1.0, float("nan")]}, r"row 3: slo_tpot_ms is nan"),
        ({"tenant": [0, 1, 2]}, r"row 3: tenant is 2; allowed: 0 to 1"),
        ({"session": [0, -2, 0]}, r"row 2: session is -2; allowed: -1 to"),
        ({"output_tokens": [5, 21, 5]}, r"row 2: output_tokens is 21; allowed: no more than the row's max_tokens"),
        ({"prompt_tokens": [5, 5]}, r"prompt_tokens has the shape \(2,\); allowed: \(3,\)"),
        ({"duration_s": 1.5}, r"duration_s is 1.5; allowed: no less than the last arrival, 2.0 s"),
        ({"duration_s": float("nan")}, r"duration_s is nan"),
        ({"tenants": ()}, r"0 tenants; allowed: 1 to"),
        ({"block_hashes": ((1,),)}, r"block_hashes holds 1 rows; allowed: 3"),
    ],
)
def test_a_bad_row_is_named(columns, message):
    with pytest.raises(TraceError, match=message):
        table(**columns)


def test_the_duration_of_recorded_times_is_their_span_and_one_gap():
    assert table().duration_s == 3.0
    assert table().rate_rps == 1.0
    assert table(duration_s=10.0).rate_rps == 0.3
    assert table(at_s=[0.0]).duration_s == 1.0


def test_scaling_sets_the_mean_rate_and_nothing_else():
    workload = build("poisson:rate=5,duration=100")
    fast = workload.scaled(50.0)
    assert fast.rate_rps == pytest.approx(50.0)
    assert fast.at_s == pytest.approx(workload.at_s * workload.rate_rps / 50.0)
    assert (fast.prompt_tokens == workload.prompt_tokens).all()
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(TraceError, match=f"rate is {rate}; allowed"):
            workload.scaled(rate)
    empty = workload.rows(0, 0)
    with pytest.raises(TraceError, match="holds no requests"):
        empty.scaled(1.0)


def test_a_window_counts_its_times_from_its_start():
    workload = table(at_s=[0.0, 1.0, 2.0], duration_s=4.0, block_hashes=((1,), (2, 3), ()))
    part = workload.window(1.0, 2.0)
    assert part.at_s.tolist() == [0.0]
    assert part.duration_s == 1.0
    assert part.block_hashes == ((2, 3),)
    assert workload.window(0.5).at_s.tolist() == [0.5, 1.5]
    assert len(workload.window()) == 3
    for start, end in ((2.0, 1.0), (0.0, 5.0), (-1.0, 1.0), (1.0, 1.0)):
        with pytest.raises(TraceError, match="allowed: 0 <= start < end <= 4 s"):
            workload.window(start, end)


@settings(max_examples=30)
@given(st.lists(st.floats(0.0, 1e6).map(lambda at_s: round(at_s, 6)), max_size=30), st.floats(0.01, 1e4))
def test_scaling_and_windows_never_break_the_order(times, rate):
    workload = table(at_s=sorted(times))
    if times:
        assert len(workload.scaled(rate)) == len(times)
    half = workload.duration_s / 2
    assert len(workload.window(0.0, half)) + len(workload.window(half)) == len(times)


def test_arrivals_carry_every_column_and_come_one_at_a_time():
    workload = replace(build("poisson:rate=20,duration=20"), session=np.arange(len(build("poisson:rate=20,duration=20"))))
    come = list(workload.arrivals(model="m"))
    assert len(come) == len(workload)
    assert len({a.request.id for a in come}) == len(come)
    for row, arrival in enumerate(come):
        request = arrival.request
        assert request.model == "m"
        assert request.arrival_s == workload.at_s[row]
        assert (request.prompt_tokens, arrival.output_tokens) == (workload.prompt_tokens[row], workload.output_tokens[row])
        assert request.max_output_tokens == workload.max_tokens[row]
        assert request.tenant == workload.tenants[workload.tenant[row]]
        assert request.session == str(row)
        assert request.declared_slo == slo_for(TASKS[workload.task[row]], float(workload.importance[row]))
    assert next(workload.arrivals(model="m")).request.id == come[0].request.id


def test_without_an_estimate_the_empty_history_speaks_with_the_declared_slo():
    arrival = next(table().arrivals(model="m"))
    believed = arrival.estimate(arrival.request, 0.0)
    assert believed.slo == Slo(ttft_ms=1000.0, tpot_ms=50.0)
    assert believed.source == "default"
    assert believed.output_tokens <= 20
    mine = Estimates(slo=Slo(ttft_ms=1.0, tpot_ms=1.0))
    assert next(table().arrivals(model="m", estimate=lambda _request, _now_s: mine)).estimate(arrival.request, 0.0) is mine


def test_block_hashes_go_with_their_request():
    come = list(table(block_hashes=((1, 2), (1, 3), ())).arrivals(model="m"))
    assert [a.block_hashes for a in come] == [(1, 2), (1, 3), ()]
    assert {a.hash_tokens for a in come} == {512}
