"""What an answer of prediction changes in the estimates of a request, and which answers are refused."""

import math

import msgspec
import pytest
from message_kit import request_features

from hmas.controller.bus.codec import decode, encode
from hmas.controller.control.estimates import MAX_MS, Declared, fault_of_cost, with_cost, with_features
from hmas.controller.core.messages import RequestCost
from hmas.controller.core.types import Estimates, Slo

NOW = Estimates(slo=Slo(ttft_ms=900.0, tpot_ms=40.0), output_tokens=70.0)
COST = RequestCost(
    request_id="r", sent_s=1.0, ttft_ms={"a": 100.0, "b": 300.0}, tpot_ms={"a": 20.0, "b": 40.0}, output_tokens=64.0,
    alone_ttft_ms={"a": 80.0, "b": 90.0}, alone_tpot_ms={"a": 12.0, "b": 15.0},
)  # fmt: skip


def changed(**changes: dict[str, float]) -> RequestCost:
    return msgspec.structs.replace(COST, **changes)


def test_times_under_load_are_a_mean_and_those_without_stay_by_instance():
    after = with_cost(NOW, COST)
    assert (after.ttft_ms, after.tpot_ms, after.source, after.output_tokens) == (200.0, 30.0, "prediction", 70.0)
    assert after.alone == {"a": (80.0, 12.0), "b": (90.0, 15.0)}
    assert with_cost(NOW, changed(alone_tpot_ms={"b": 15.0, "a": 12.0})).alone == after.alone
    assert with_cost(NOW, changed(alone_tpot_ms={"a": 12.0})).alone == {"a": (80.0, 12.0)}, "of half a prediction nothing follows"
    assert with_cost(after, changed(alone_ttft_ms={}, alone_tpot_ms={})).alone == {}, "the newest answer counts"


def test_an_answer_of_perception_keeps_them():
    after = with_features(with_cost(NOW, COST), request_features(), Declared(), 100.0, 200.0, proven=True)
    assert after.alone == {"a": (80.0, 12.0), "b": (90.0, 15.0)}
    assert NOW.alone == {}


@pytest.mark.parametrize("field", ["alone_ttft_ms", "alone_tpot_ms"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-9, 2.0 * MAX_MS])
def test_times_without_load_that_are_out_of_range_are_refused(field: str, value: float):
    fault = fault_of_cost(changed(**{field: {"a": value}}))
    assert fault == f"{field}[a] is {value}; allowed: 0.001 to 8.64e+07"


@pytest.mark.parametrize("field", ["alone_ttft_ms", "alone_tpot_ms"])
def test_times_without_load_of_an_instance_that_is_not_answered_for_are_refused(field: str):
    assert fault_of_cost(changed(**{field: {"a": 1.0, "c": 1.0}})) == f"{field} names 'c'; allowed: instances that ttft_ms names"
    assert fault_of_cost(changed(**{field: {"a": 1.0}})) == ""


@pytest.mark.parametrize("field", ["ttft_ms", "tpot_ms"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 2.0 * MAX_MS])
def test_times_under_load_that_are_out_of_range_are_refused(field: str, value: float):
    assert fault_of_cost(changed(**{field: {"a": 1.0, "b": value}, "alone_ttft_ms": {}})).startswith(
        f"{field}[b] is {value}; allowed: 0 to"
    )


def test_a_message_of_an_agent_that_does_not_know_them_is_read():
    old = msgspec.structs.replace(COST, alone_ttft_ms={}, alone_tpot_ms={})
    raw = encode(old)
    assert b"alone" not in raw
    assert decode(raw) == old
    assert fault_of_cost(old) == ""
    assert with_cost(NOW, old).alone == {}
    assert decode(encode(COST)) == COST
