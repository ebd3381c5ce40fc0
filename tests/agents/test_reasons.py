"""The reasons that meta and statera give: they say what is so, and nothing that is not known."""

import pytest
from control_kit import instance, long_view, short_view
from msgspec import structs
from test_statera_control import settle
from typing_kit import of_type

from hmas.agents.meta.model import MetaModel
from hmas.agents.meta.selectors.rules import choose
from hmas.agents.meta.selectors.twin import points
from hmas.agents.meta.twin.evidence import Gain
from hmas.agents.statera.model import StateraModel
from hmas.controller.core.messages import ControlAction, MetaDecision
from hmas.controller.scheduling.policies.registry import POLICIES


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "keep: 2% miss their SLO, too few to look for another policy"),
        (
            {"violation_rate": 0.77, "mismatch": 1.2},
            (
                "keep: 77% miss their SLO, since the tokens asked for exceed those served by 120%; "
                "no rule knows a better order for that than edf"
            ),
        ),
        ({"violation_rate": 0.2}, "keep: 20% miss their SLO, but no rule knows a better order for that than edf"),
        ({"ended": 1}, "keep: 1 request ended within 60 s, fewer than the 30 that a judgement needs"),
    ],
)
def test_a_policy_is_not_kept_because_all_is_well_where_it_is_not(changes, words):
    assert choose(long_view(0.0, **changes), current="edf", start="edf") == ("edf", words)


def test_an_error_that_is_not_known_is_not_printed():
    gain = Gain(share=0.019, error=0.008, good=0.717, other_good=0.699)
    assert points(gain) == "+1.9 ± 0.8 points"
    assert points(structs.replace(gain, error=1.0)) == "+1.9 points, from too few replays to tell it from chance"


def test_the_first_decision_says_that_nothing_is_measured():
    (said,) = MetaModel(start="edf", pool=POLICIES).on_short(short_view(0.0), 0.0)
    assert of_type(MetaDecision, said).reason == "start: nothing is measured yet"


def regulated(model: StateraModel, from_s: float, until_s: float, **seen) -> list:
    said: list[ControlAction] = []
    step = int(from_s / 0.1)
    while 0.1 * step < until_s:
        now_s = 0.1 * step
        n_run = said[-1].n_run if said else 16
        view = instance(n_run=n_run, in_flight=n_run, max_token_budget=8192, **seen)
        said += model.observe(short_view(now_s, instances=[view], queued=50, utilization={"i0": seen["tpot_pressure"]}), now_s)
        step += 1
    return said


def test_what_stays_keeps_the_reason_of_its_last_change():
    model = StateraModel(period_s=0.25, n_run_start=16, keep_alive_s=1.0)
    said = regulated(model, 0.0, 8.0, tpot_pressure=2.0) + regulated(model, 8.0, 20.0, tpot_pressure=0.85)
    assert not any("as before" in action.reason for action in said)
    before = said[0]
    for action in said[1:]:
        for value, reason in (("n_run", "reason"), ("token_budget", "budget_reason"), ("guard", "guard_reason")):
            if getattr(action, value) == getattr(before, value):
                assert getattr(action, reason) == getattr(before, reason), value
        before = action
    assert {action.guard_reason for action in said} == {"as strict as configured"}
    assert said[0].budget_reason == "the engine's own"
    assert any(
        action.token_budget < 8192 and "above the band's 0.92: fewer prompt tokens a step" in action.budget_reason for action in said
    )


class Kept(StateraModel):
    """Keeps what it has said."""

    said: list[ControlAction]

    def observe(self, view, now_s):
        actions = super().observe(view, now_s)
        self.said = [*getattr(self, "said", []), *actions]
        return actions


def test_the_window_that_is_named_is_the_models_and_not_passed_off_as_the_one_in_force():
    model = Kept(period_s=0.25)
    settle(model, slope_ms=0.3, base_ms=10.0, slo_ms=40.0, seconds=40.0)
    named = [action for action in model.said if action.reason.startswith("at ")]
    assert named
    for action in named:
        target = int(action.reason.split()[1])
        assert f"at {target} the model expects the most good requests" in action.reason
    assert any(action.n_run != int(action.reason.split()[1]) for action in named), "the window moves there in steps, by its own field"
