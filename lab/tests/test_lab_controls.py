"""Statera's actions, condensed to what was in force."""

from hmas_lab.controls import InForce, controls_of

from hmas.controller.core.messages import ControlAction


def action(sent_s, n_run, guard=1.0, instance="a"):
    return ControlAction(sent_s=sent_s, instance=instance, n_run=n_run, guard=guard)


def test_an_action_counts_for_as_long_as_it_was_in_force():
    # 16 holds until 108, 48 for the last three seconds of 100 to 110.
    found = controls_of([action(108.0, 48, 0.5), action(99.0, 16)], from_s=100.0, to_s=110.0)
    assert found is not None
    assert found.n_run == InForce(p10=16.0, p50=16.0, p90=48.0)
    assert found.guard == InForce(p10=0.5, p50=1.0, p90=1.0)


def test_instances_are_told_apart_and_count_alike():
    found = controls_of([action(0.0, 10), action(5.0, 90, instance="b")], from_s=0.0, to_s=9.0)
    assert found is not None
    # Ten seconds of the one, five of the other.
    assert (found.n_run.p50, found.n_run.p90) == (10.0, 90.0)


def test_what_came_too_late_is_nothing():
    assert controls_of([action(11.0, 8)], from_s=0.0, to_s=10.0) is None
    assert controls_of([], from_s=0.0, to_s=10.0) is None
