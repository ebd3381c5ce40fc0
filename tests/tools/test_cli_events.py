"""`hmas events`: what is one change is one line."""

from typing import Any

from hmas.cli.events import STEP_S, event_line, joined


def step(at_s: float, before: str, after: str, **changes: str) -> dict[str, Any]:
    event: dict[str, Any] = {"sent_s": at_s, "source": "statera", "kind": "knobs.n_run", "subject": "a", "before": before, "after": after}
    return event | {"reason": f"at {at_s:g}"} | changes


def test_steps_of_one_knob_are_one_line_beside_other_events():
    refused = step(1.2, "", "", source="gateway", kind="override.refused", subject="bad.json")
    other = step(1.3, "8", "9", subject="b")
    found = joined([step(1.0, "16", "17"), refused, other, step(1.5, "17", "18"), step(2.0, "18", "20")])
    assert [(one["subject"], one["before"], one["after"]) for one in found] == [("bad.json", "", ""), ("b", "8", "9"), ("a", "16", "20")]
    assert event_line(found[-1]).endswith("statera: knobs.n_run a: 16 -> 20 in 3 steps (at 2)")
    assert "steps" not in event_line(found[0])


def test_steps_that_do_not_go_on_from_each_other_stay_apart():
    for second in (
        step(1.5, "30", "31"),
        step(1.0 + 2 * STEP_S, "17", "18"),
        step(1.5, "17", "18", source="operator"),
        step(1.5, "17", "18", kind="knobs.token_budget"),
    ):
        assert len(joined([step(1.0, "16", "17"), second])) == 2
    assert len(joined([step(1.0, "edf", "sjf", kind="policy"), step(1.5, "sjf", "edf", kind="policy")])) == 2
