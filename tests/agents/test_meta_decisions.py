"""Meta: rules, dwell, rollback, bypass, operators; and that nothing can lead it out of the pool."""

from typing import Any

import pytest
from control_kit import CALM, long_view, short_view
from hypothesis import given
from hypothesis import strategies as st
from typing_kit import of_type

from hmas.agents.meta.limits import Limits
from hmas.agents.meta.model import MetaModel
from hmas.controller.core.messages import LatencySummary, MetaDecision
from hmas.controller.scheduling.policies.registry import POLICIES

UNEVEN = {"by_tenant": {"a": 0.5, "b": 0.5}, "fairness": 0.4, "violation_rate": 0.5}


def model(**changes) -> MetaModel:
    limits: dict[str, Any] = {"period_s": 5.0, "dwell_s": 20.0, "rollback_window_s": 10.0, "settle_s": 5.0}
    limits |= {name: changes.pop(name) for name in list(changes) if hasattr(Limits, name)}
    values: dict[str, Any] = {"start": "edf", "pool": POLICIES, "limits": Limits(**limits)}
    return MetaModel(**(values | changes))


def live(meta: MetaModel, until_s: float, *, from_s: float = 0.0, long=None, short=None) -> list:
    """Feeds views as qos sends them: short ones twice a second, long ones every five."""
    said = []
    now_s = from_s
    while now_s < until_s:
        said += meta.on_short(short_view(now_s, **(short or {})), now_s)
        if now_s % 5 == 0:
            said += meta.on_long(long_view(now_s, **(long or {})), now_s)
        now_s += 0.5
    return said


def switches(said) -> list[str]:
    return [d.policy for d in said if d.policy != d.previous and not d.bypass]


@pytest.mark.parametrize(
    ("view", "start", "expected"),
    [
        ({}, "edf", []),
        (UNEVEN, "edf", ["wfq"]),
        ({"deadline_miss_share": 0.4, "violation_rate": 0.4}, "fcfs", ["robust-edf"]),
        ({"deadline_miss_share": 0.7, "violation_rate": 0.8, "mismatch": 1.2, "late_service": 0.7}, "edf", ["robust-edf"]),
        ({"deadline_miss_share": 0.7, "violation_rate": 0.8, "mismatch": 1.2, "late_service": 0.7}, "robust-edf", []),
        ({"ttft_violation_rate": 0.5, "total_cv": 1.4, "queued": 50, "long_backlog": 30, "late_service": 0.4}, "edf", ["robust-edf"]),
        ({"ttft_violation_rate": 0.5, "total_cv": 1.4, "queued": 50, "long_backlog": 30, "late_service": 0.4}, "robust-edf", []),
        ({"deadline_miss_share": 0.7, "violation_rate": 0.8, "mismatch": 1.2, "total_cv": 1.4, "late_service": 0.1}, "edf", []),
        (UNEVEN | {"ended": 5}, "edf", []),
    ],
    ids=[
        "calm",
        "unfair",
        "deadlines",
        "drowning",
        "drowning-robust-edf",
        "blocked",
        "blocked-robust-edf",
        "late-ones-set-aside",
        "too-few",
    ],
)
def test_the_rule_map(view, start, expected):
    assert switches(live(model(start=start), 18.0, long=view)) == expected


def test_every_decision_has_a_reason_and_an_id_of_its_own():
    said = live(model(), 60.0, long=UNEVEN)
    assert len({d.decision_id for d in said}) == len(said) > 5
    assert all(d.reason for d in said)
    assert any(d.evidence.get("fairness") == 0.4 for d in said)


def test_it_dwells():
    meta = model()
    first = live(meta, 15.0, long=UNEVEN)
    assert switches(first) == ["wfq"]
    switched_s = next(d.sent_s for d in first if d.policy == "wfq")
    later = live(meta, 100.0, from_s=15.0, long={"by_tenant": {"a": 1.0}})
    back = [d for d in later if d.policy == "edf" and d.previous == "wfq"]
    assert len(back) == 1
    assert back[0].sent_s - switched_s >= 20.0


def test_a_switch_that_hurts_is_rolled_back_and_not_tried_again_at_once():
    meta = model()
    now_s = 0.0
    while meta.policy == "edf":
        live(meta, now_s + 0.5, from_s=now_s, long=UNEVEN)
        now_s += 0.5
        assert now_s < 60.0
    worse = {"ttft_ms": LatencySummary(count=100, p50=900, p95=5000, p99=9000), "violation_rate": 0.9, "ttft_violation_rate": 0.9}
    said = live(meta, now_s + 30.0, from_s=now_s, long=UNEVEN, short=worse)
    rollbacks = [d for d in said if d.source == "rollback"]
    assert [(d.previous, d.policy) for d in rollbacks] == [("wfq", "edf")]
    assert meta.policy == "edf"


def test_a_good_switch_stays():
    meta = model()
    live(meta, 60.0, long=UNEVEN, short={"ttft_ms": CALM})
    assert meta.policy == "wfq"


def test_load_alone_never_bypasses_but_a_broken_loop_does_and_it_clears():
    meta = model()
    crushed = {"queued": 5000, "oldest_wait_ms": 60_000.0, "violation_rate": 1.0, "ttft_violation_rate": 1.0, "queue_slope": 50.0}
    assert not any(d.bypass for d in live(meta, 30.0, short=crushed, long={"violation_rate": 1.0}))
    said = live(meta, 32.0, from_s=30.0, short={"anomalies": ["stuck"]})
    assert [(d.bypass, d.policy) for d in said if d.bypass][:1] == [(True, "fcfs")]
    assert not live(meta, 90.0, from_s=32.0)[-1].bypass


def test_an_operator_is_not_argued_with():
    assert switches(live(model(), 60.0, long=UNEVEN | {"forced": ["policy"]}, short={"forced": ["policy"]})) == []


def test_it_goes_on_after_a_restart():
    first = model()
    last = [d for d in live(first, 15.0, long=UNEVEN) if d.policy == "wfq"][-1]
    second = model()
    second.restore([last], 16.0)
    assert second.policy == "wfq"
    assert all(d.policy == "wfq" for d in live(second, 30.0, from_s=16.0, long=UNEVEN))


@given(
    views=st.lists(
        st.fixed_dictionaries(
            {
                "violation_rate": st.floats(0, 1),
                "deadline_miss_share": st.floats(0, 1),
                "mismatch": st.floats(0, 100),
                "fairness": st.floats(0, 1),
                "total_cv": st.floats(0, 10),
                "queued": st.integers(0, 1000),
                "long_backlog": st.integers(0, 1000),
                "ended": st.integers(0, 1000),
            }
        ),
        max_size=30,
    )
)
def test_no_view_leads_out_of_the_pool(views):
    meta = model(dwell_s=1.0)
    for number, view in enumerate(views):
        for decision in meta.on_long(long_view(5.0 * number, by_tenant={"a": 0.5, "b": 0.5}, **view), 5.0 * number):
            assert of_type(MetaDecision, decision).policy in POLICIES
