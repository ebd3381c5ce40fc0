"""Windows that statera did not set by itself: its own from before a restart, and those that an operator held."""

import pytest
from control_kit import instance, short_view

from hmas.agents.statera.model import StateraModel
from hmas.controller.core.messages import ControlAction


def test_a_window_is_resumed_once():
    model = StateraModel(period_s=0.25, n_run_start=16)
    model.restored.add(ControlAction(sent_s=0.0, instance="i0", n_run=99))
    found = []
    for now_s, fleet in ((1.0, [instance()]), (2.0, []), (3.0, [instance()])):
        found += [(action.n_run, action.reason) for action in model.observe(short_view(now_s, instances=fleet), now_s)]
    assert found[0] == (99, "start: goes on from the window of before the restart")
    assert found[1][0] == 16
    assert "nothing is measured yet" in found[1][1]


@pytest.mark.parametrize(("met_s", "n_run"), [(119.0, 99), (122.0, 16)])
def test_a_window_is_not_resumed_once_its_load_has_passed(met_s, n_run):
    model = StateraModel(period_s=0.25, n_run_start=16)
    model.restored.add(ControlAction(sent_s=1.0, instance="i0", n_run=99))
    assert model.observe(short_view(1.0, instances=[]), 1.0) == []
    assert [action.n_run for action in model.observe(short_view(met_s), met_s)] == [n_run]


def test_a_window_that_an_operator_held_is_not_said_to_be_a_start():
    model = StateraModel(period_s=0.25)
    model.observe(short_view(0.0), 0.0)
    model.observe(short_view(5.0, instances=[instance(n_run=16)], forced=["knobs"]), 5.0)
    (action,) = model.observe(short_view(10.0, instances=[instance(n_run=16, in_flight=0)]), 10.0)
    assert (action.n_run, action.reason) == (16, "goes on from the window that an operator held")
