"""Several overrides at once: what is in force, and what lost."""

from hmas.controller.control.overrides import Conflict, Override, cli_id, conflicts, effective, held_because, knobs_for
from hmas.controller.core.messages import OverrideNotice
from hmas.engines.base import Knobs


def held(name, expires_s=None, **settings):
    return Override(id=name, author=f"author of {name}", reason=f"reason of {name}", expires_s=expires_s, **settings)


def test_nothing_held_is_an_empty_notice():
    assert effective([], 5.0) == OverrideNotice(sent_s=5.0)
    assert effective([held("a", expires_s=5.0, policy="edf")], 5.0) == OverrideNotice(sent_s=5.0)


def test_the_later_id_wins_whatever_the_order_they_come_in():
    first, second = held("10-a", policy="edf", parameters={"x": 1.0}), held("20-b", policy="sjf")
    for order in ([first, second], [second, first]):
        notice = effective(order, 0.0)
        assert (notice.policy, notice.parameters) == ("sjf", {})
        assert conflicts(order, 0.0) == [Conflict("policy", "20-b", ("10-a",))]


def test_what_does_not_collide_adds_up():
    notice = effective(
        [
            held("a", policy="wfq", tenant_weights={"t": 2.0}, tenant_limits={"t": {"max_running": 4, "tokens_per_minute": 600}}),
            held("b", expires_s=100.0, knobs={"*": Knobs(n_run=8), "gpu-0": Knobs(token_budget=256)}),
            held("c", expires_s=50.0, draining=("gpu-1",), knobs={"gpu-0": Knobs(n_run=2)}, tenant_limits={"t": {"max_running": 1}}),
        ],
        10.0,
    )
    assert notice.policy == "wfq"
    assert notice.tenant_weights == {"t": 2.0}
    assert notice.tenant_limits == {"t": {"max_running": 1, "tokens_per_minute": 600}}
    assert notice.knobs == {"*": {"n_run": 8}, "gpu-0": {"n_run": 2, "token_budget": 256}}
    assert notice.draining == ["gpu-1"]
    assert notice.expires_s == 50.0
    assert notice.author == "author of a, author of b, author of c"
    assert "b: reason of b" in notice.reason


def test_an_instance_s_own_knob_wins_over_the_star():
    notice = effective([held("a", knobs={"gpu-0": Knobs(n_run=2)}), held("b", knobs={"*": Knobs(n_run=8, token_budget=64)})], 0.0)
    assert knobs_for(notice, "gpu-0") == Knobs(n_run=2, token_budget=64)
    assert knobs_for(notice, "gpu-1") == Knobs(n_run=8, token_budget=64)
    assert knobs_for(OverrideNotice(sent_s=0.0), "gpu-0") == Knobs()


def test_agreeing_is_no_conflict_and_the_ended_have_no_say():
    same = [held("a", tenant_weights={"t": 2.0}), held("b", tenant_weights={"t": 2.0})]
    assert conflicts(same, 0.0) == []
    three = [held("a", knobs={"*": Knobs(n_run=1)}), held("b", knobs={"*": Knobs(n_run=2)}), held("c", 5.0, knobs={"*": Knobs(n_run=3)})]
    assert conflicts(three, 4.0) == [Conflict("knobs.*.n_run", "c", ("a", "b"))]
    assert conflicts(three, 5.0) == [Conflict("knobs.*.n_run", "b", ("a",))]
    assert effective(three, 5.0).knobs == {"*": {"n_run": 2}}


def test_overrides_disagree_by_limit_not_by_tenant():
    two = [held("a", tenant_limits={"t": {"max_running": 4, "tokens_per_minute": 60}}), held("b", tenant_limits={"t": {"max_running": 1}})]
    assert conflicts(two, 0.0) == [Conflict("tenants.t.max_running", "b", ("a",))]


def test_each_setting_is_said_to_be_held_by_the_override_that_forces_it():
    first = held("a", policy="edf", tenant_weights={"free": 0.5})
    second = held("b", policy="sjf", knobs={"*": Knobs(n_run=2)}, tenant_limits={"free": {"max_running": 2}})
    notice = effective([first, second], 0.0)
    assert held_because(notice, "policy") == "author of b: b: reason of b"
    assert held_because(notice, "tenants.free.weight") == "author of a: a: reason of a"
    assert held_because(notice, "knobs.sim-1.n_run", "knobs.*.n_run") == "author of b: b: reason of b"
    assert held_because(notice, "engines.sim-1.drain") == ""


def test_the_text_of_a_notice_is_bounded():
    notice = effective([held(f"{n:03}" + "x" * 70, draining=("e",)) for n in range(256)], 0.0)
    assert len(notice.author) <= 200
    assert len(notice.reason) <= 1000


def test_ids_of_what_the_cli_forces():
    assert cli_id("policy") == "cli-policy"
    assert cli_id("knobs", "*") == "cli-knobs-_all"
    assert cli_id("knobs", "_all".strip("_")) == "cli-knobs-all"
    assert cli_id("drain", "gpu-0") == "cli-drain-gpu-0"
