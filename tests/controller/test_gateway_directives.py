"""Who is right: configured < an agent's fresh word < an operator."""

from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.control.changes import changes
from hmas.controller.control.resolve import Ceiling, Configured, Directives, Received, resolve
from hmas.controller.core.messages import ControlAction, LengthBound, MetaDecision, OverrideNotice
from hmas.controller.scheduling.admission.quotas import TenantLimits

CEILINGS = {"a": Ceiling(32, 2048), "b": Ceiling(8)}
CONFIGURED = Configured(policy="edf", n_run=0)
NOTHING = OverrideNotice(sent_s=0.0)
BOUND = LengthBound(prompt_tokens_below=0, add_tokens=40, samples=10)


def decide(policy: str = "sjf", *, said_s: float = 100.0, **fields) -> Received[MetaDecision]:
    return Received(said_s, MetaDecision(sent_s=said_s, decision_id="d1", policy=policy, previous="edf", reason="tails", **fields))


def act(n_run: int = 4, *, instance: str = "a", said_s: float = 100.0, **fields) -> dict[str, Received[ControlAction]]:
    action = ControlAction(sent_s=said_s, instance=instance, n_run=n_run, reason="hot", **fields)
    return {instance: Received(said_s, action)}


def hold(**fields) -> OverrideNotice:
    return OverrideNotice(sent_s=0, author="ana", reason="night", **fields)


def at(now_s: float = 101.0, *, meta=None, statera=None, override=None, configured=CONFIGURED) -> Directives:
    return resolve(configured, CEILINGS, meta, statera or {}, override or hold(), now_s=now_s, stale_after_s=15)


def test_nobody_has_spoken():
    found = at()
    assert (found.policy.value, found.policy.source) == ("edf", "configured")
    assert {name: item.controls.n_run for name, item in found.instances.items()} == {"a": 32, "b": 8}
    assert found.instances["a"].controls.token_budget is None
    assert found.forced == ()


def test_a_configured_window_never_passes_the_ceiling():
    found = at(configured=Configured(policy="edf", n_run=16))
    assert {name: item.controls.n_run for name, item in found.instances.items()} == {"a": 16, "b": 8}


def test_agents_win_over_the_configuration():
    found = at(meta=decide(parameters={"slow_share": 0.2}), statera=act(4, token_budget=512, length_bounds=[BOUND]))
    assert (found.policy.value, found.policy.source, found.policy.decision_id) == ("sjf", "meta", "d1")
    assert found.parameters == {"slow_share": 0.2}
    assert found.instances["a"].controls == found.instances["a"].controls.__class__(n_run=4, token_budget=512, advised=True)
    assert found.instances["a"].n_run.source == "statera"
    assert found.instances["b"].n_run.source == "configured"
    assert found.bounds == (BOUND,)


WORDS = st.tuples(st.sampled_from("ab"), st.integers(1, 40), st.integers(0, 3000), st.booleans(), st.floats(0.0, 3.0))


@given(
    rounds=st.lists(st.lists(WORDS, max_size=3), max_size=6),
    meta=st.sampled_from(
        [None, decide(said_s=101.0), decide(said_s=101.0, bypass=True), decide(said_s=101.0, n_run=3), decide(said_s=50.0)]
    ),
    override=st.sampled_from([NOTHING, hold(knobs={"a": {"n_run": 2}}), hold(policy="wfq", draining=["b"], tenant_weights={"t": 2.0})]),
)
def test_what_is_resolved_of_those_that_were_heard_is_what_all_would_come_to(rounds, meta, override):
    statera: dict[str, Received[ControlAction]] = {}
    now_s = 101.0
    known = at(now_s, meta=meta, override=override)
    for words in rounds:
        now_s += 0.5
        for name, n_run, budget, bounded, ago_s in words:
            said = {"token_budget": budget, "length_bounds": [BOUND] if bounded else []}
            statera |= act(n_run, instance=name, said_s=now_s - ago_s, **said)
        whole = at(now_s, meta=meta, statera=statera, override=override)
        ceilings = {name: CEILINGS[name] for name, *_ in words}
        part = resolve(CONFIGURED, ceilings, meta, statera, override, now_s=now_s, stale_after_s=15, before=known)
        assert part == whole
        assert list(changes(known, part, sorted(name for name, *_ in words))) == [
            change for change in changes(known, whole) if change.subject in {"fence", *(name for name, *_ in words)}
        ] or len(words) != len({name for name, *_ in words})
        known = part


def test_silence_falls_back_by_name():
    found = at(116.0, meta=decide(), statera=act(4, length_bounds=[BOUND]))
    assert (found.policy.value, found.policy.source) == ("edf", "fallback")
    assert "meta" in found.policy.reason
    assert found.instances["a"].controls.n_run == 32
    assert found.instances["a"].n_run.source == "fallback"
    assert "statera" in found.instances["a"].n_run.reason
    assert (found.bounds, found.bounds_source) == ((), "fallback")


def test_meta_of_another_configuration_does_not_undo_an_operators_reload():
    old, configured = "robust-edf(weight=0.2)", Configured(policy="fcfs", n_run=0, routers={"*": "default"})
    found = at(meta=decide(configured=old, n_run=3, router="round-robin"), configured=configured)
    assert (found.policy.value, found.policy.source) == ("fcfs", "fallback")
    assert found.policy.reason == f"meta goes by {old}, which was configured when it started; SIGHUP to it starts it again"
    assert found.instances["a"].controls.n_run == 32
    assert (found.routers["*"].value, found.routers["*"].source) == ("default", "fallback")
    assert at(meta=decide(configured=old, bypass=True), configured=configured).policy.source == "bypass"
    same = Configured(policy="robust-edf", n_run=0, parameters={"weight": 0.2})
    assert at(meta=decide(configured=old), configured=same).policy.source == "meta"


def test_bypass_is_fcfs_with_open_knobs():
    found = at(meta=decide(bypass=True, parameters={"x": 1.0}), statera=act(4, token_budget=64))
    assert (found.policy.value, found.policy.source, found.parameters) == ("fcfs", "bypass", {})
    assert found.instances["a"].controls.n_run == 32
    assert found.instances["a"].controls.token_budget is None
    assert found.instances["a"].n_run.decision_id == "d1"


def test_how_strict_the_guard_is_follows_statera():
    spoken = at(statera=act(4, guard=0.4)).instances["a"]
    assert (spoken.controls.guard, spoken.guard.value, spoken.guard.source) == (0.4, "0.4", "statera")
    bypass = at(meta=decide(bypass=True), statera=act(4, guard=0.4)).instances["a"]
    assert (bypass.controls.guard, bypass.guard.source) == (1.0, "bypass")
    assert at(statera=act(4, guard=0.4), override=hold(policy="wfq")).instances["a"].controls.guard == 0.4
    assert at(116.0, statera=act(4, guard=0.4)).instances["a"].controls.guard == 1.0
    told = [change for change in changes(at(), at(statera=act(32, guard=0.4))) if change.kind == "knobs.guard"]
    assert [(one.subject, one.before, one.after) for one in told] == [("a", "1 (configured)", "0.4 (statera)")]


def test_meta_that_holds_the_windows_leaves_the_rest_to_statera():
    found = at(meta=decide(n_run=6), statera=act(4, token_budget=512, guard=0.4)).instances["a"]
    assert (found.controls.n_run, found.controls.token_budget, found.controls.guard) == (6, 512, 0.4)
    assert (found.n_run.source, found.n_run.decision_id) == ("meta", "d1")
    assert (found.token_budget.source, found.guard.source) == ("statera", "statera")


def test_operators_win_over_everybody():
    override = hold(policy="wfq", knobs={"*": {"n_run": 2}, "a": {"token_budget": 99}}, tenant_weights={"t": 5.0}, draining=["b", "zz"])
    for meta in (None, decide(), decide(bypass=True)):
        found = at(meta=meta, statera=act(4, token_budget=512), override=override)
        assert (found.policy.value, found.policy.source) == ("wfq", "operator")
        assert found.policy.reason == "ana: night"
        assert found.instances["a"].controls == found.instances["a"].controls.__class__(n_run=2, token_budget=99)
        assert found.instances["b"].controls.n_run == 2
        assert found.weights == {"t": 5.0}
        assert found.draining == {"b"}
        assert found.forced == ("policy", "knobs", "budget:a", "tenants", "engines")


def test_where_an_operator_holds_the_policy_metas_window_and_router_do_not_apply():
    override = hold(policy="wfq")
    found = at(meta=decide(n_run=6), statera=act(4), override=override).instances["a"]
    assert (found.controls.n_run, found.n_run.source) == (4, "statera")
    alone = at(meta=decide(n_run=6), override=override).instances["a"]
    assert (alone.controls.n_run, alone.n_run.source) == (32, "configured")
    broken = at(meta=decide(bypass=True), statera=act(4, token_budget=512), override=override).instances["a"]
    assert (broken.controls.n_run, broken.token_budget.source) == (4, "statera")
    led, held = (at(configured=ROUTED, meta=decide(router="default"), override=one) for one in (NOTHING, override))
    assert [(one.routers["*"].value, one.routers["*"].source) for one in (led, held)] == [
        ("default", "meta"),
        ("round-robin", "configured"),
    ]
    (told,) = [one for one in changes(led, held) if one.kind == "router"]
    assert "an operator holds the policy" in told.reason


def test_a_hold_names_the_instances_and_knobs_that_agents_are_to_leave_alone():
    def forced(**knobs):
        return at(override=hold(knobs=knobs)).forced

    assert forced(a={"n_run": 4}) == ("knobs:a",)
    assert forced(b={"token_budget": 64}, a={"n_run": 4, "token_budget": 64}) == ("knobs:a", "budget:a", "budget:b")
    assert forced(**{"*": {"n_run": 4}, "a": {"n_run": 8}}) == ("knobs",)


def test_a_forced_budget_leaves_the_window_to_the_agents():
    found = at(statera=act(4, token_budget=512), override=hold(knobs={"a": {"token_budget": 64}}))
    assert (found.instances["a"].n_run.source, found.instances["a"].token_budget.source) == ("statera", "operator")


@given(
    n_run=st.integers(-5, 10_000),
    budget=st.integers(0, 100_000),
    forced=st.none() | st.integers(1, 10_000),
    bypass=st.booleans(),
    age_s=st.floats(0, 100),
)
def test_controls_stay_in_bounds_whoever_speaks(n_run: int, budget: int, forced: int | None, bypass: bool, age_s: float):
    override = hold(knobs={"*": {"n_run": forced}}) if forced else hold()
    found = at(100 + age_s, meta=decide(bypass=bypass), statera=act(n_run, token_budget=budget), override=override)
    for name, item in found.instances.items():
        assert 1 <= item.controls.n_run <= CEILINGS[name].n_run
        assert item.controls.token_budget is None or item.controls.token_budget >= 1
    controls = found.instances["a"].controls
    assert controls.token_budget is None or controls.token_budget <= 2048


def test_changes_name_source_reason_and_decision():
    found = {(change.kind, change.subject): change for change in changes(at(), at(meta=decide(), statera=act(4)))}
    policy, window = found["policy", "policy"], found["knobs.n_run", "a"]
    assert (policy.before, policy.after, policy.source, policy.reason, policy.decision_id) == (
        "edf (configured)",
        "sjf (meta)",
        "meta",
        "tails",
        "d1",
    )
    assert (window.before, window.after, window.source, window.reason) == ("32 (configured)", "4 (statera)", "statera", "hot")
    assert ("knobs.n_run", "b") not in found


def test_the_same_value_from_another_source_is_no_change_of_the_value():
    """An agent that takes over at the configured values is told once, not as a change of each value to itself."""
    found = list(changes(at(), at(meta=decide("edf"), statera=act(32))))
    assert [(one.kind, one.subject, one.before, one.after, one.source) for one in found] == [
        ("policy.source", "edf", "configured", "meta", "meta"),
        ("knobs.source", "a", "configured", "statera", "statera"),
    ]
    assert [one.reason for one in found] == ["tails", "hot"]


def test_the_end_of_an_operators_hold_is_the_reason_of_what_it_changes():
    """An agent's own reason is then still that it follows the operator."""
    for n_run, kind in ((2, "knobs.n_run"), (4, "knobs.source")):
        held = at(meta=decide(), statera=act(4), override=hold(policy="wfq", knobs={"a": {"n_run": n_run}}))
        found = {one.kind: one.reason for one in changes(held, at(meta=decide(), statera=act(4)))}
        assert found["policy"] == found[kind] == "an operator's hold has ended"


def test_statera_that_has_no_bounds_yet_is_no_fallback():
    found = at(statera=act(4))
    assert (found.bounds, found.bounds_source) == ((), "configured")
    assert [one.kind for one in changes(at(), found) if one.source == "fallback"] == []
    (lost,) = [one for one in changes(at(statera=act(4, length_bounds=[BOUND])), at(116.0, statera=act(4))) if one.kind == "length_bounds"]
    assert (lost.before, lost.after, lost.reason) == ("statera", "fallback", "statera is silent; the upper length of each estimate counts")


def test_each_knob_of_statera_has_its_own_reason():
    found = at(statera=act(4, token_budget=512, guard=0.5, budget_reason="TPOT is high", guard_reason="9 of 9 missed")).instances["a"]
    assert (found.n_run.reason, found.token_budget.reason, found.guard.reason) == ("hot", "TPOT is high", "9 of 9 missed")


def test_the_same_word_again_changes_nothing():
    assert list(changes(at(meta=decide()), at(102.0, meta=decide(said_s=101.5)))) == []


def test_weights_and_draining_are_changes_too():
    kinds = [
        (change.kind, change.subject, change.after)
        for change in changes(at(), at(override=hold(tenant_weights={"t": 2.0}, draining=["a"])))
    ]
    assert kinds == [("tenant.weight", "t", "2"), ("engine.drain", "a", "true")]


def test_operators_hold_single_limits_of_a_tenant_and_the_others_stay_configured():
    configured = Configured(policy="edf", n_run=0, limits={"t": TenantLimits(tokens_per_minute=600, max_running=8)})
    before = at(configured=configured)
    after = at(configured=configured, override=hold(tenant_limits={"t": {"max_running": 2}, "u": {"concurrency_share": 0.25}}))
    assert after.limits == {"t": TenantLimits(tokens_per_minute=600, max_running=2), "u": TenantLimits(concurrency_share=0.25)}
    assert after.forced == ("tenants",)
    told = [(change.kind, change.subject, change.before, change.after, change.source, change.reason) for change in changes(before, after)]
    assert told == [
        ("tenant.max_running", "t", "8", "2", "operator", "ana: night"),
        ("tenant.concurrency_share", "u", "1", "0.25", "operator", "ana: night"),
    ]
    assert [(change.kind, change.after, change.reason) for change in changes(after, at(configured=configured, override=NOTHING))] == [
        ("tenant.max_running", "8", "released"),
        ("tenant.concurrency_share", "1", "released"),
    ]


ROUTED = Configured(policy="edf", n_run=0, routers={"*": "round-robin", "big": "prefix-aware"})


def routers_at(**spoken) -> dict[str, tuple[str, str]]:
    return {model: (one.value, one.source) for model, one in at(configured=ROUTED, **spoken).routers.items()}


def test_metas_router_is_for_the_models_without_one_of_their_own_and_an_operator_wins():
    own = {"big": ("prefix-aware", "configured")}
    assert routers_at(meta=decide()) == {"*": ("round-robin", "configured"), **own}
    assert routers_at(meta=decide(router="default:prefix=0.6")) == {"*": ("default:prefix=0.6", "meta"), **own}
    held = hold(routers={"big": "least-loaded"})
    assert routers_at(meta=decide(router="default"), override=held) == {"*": ("default", "meta"), "big": ("least-loaded", "operator")}
    assert routers_at(meta=decide(router="default"), override=hold(routers={"*": "least-loaded"})) == {"*": ("least-loaded", "operator")}
    told = at(configured=ROUTED, meta=decide(router="default")).routers["*"]
    assert (told.reason, told.decision_id) == ("tails", "d1")


def test_the_configured_router_returns_under_a_bypass_and_when_meta_is_silent():
    assert routers_at(meta=decide(router="default", bypass=True))["*"] == ("round-robin", "configured")
    silent = at(116.0, configured=ROUTED, meta=decide(router="default")).routers["*"]
    assert (silent.value, silent.source) == ("round-robin", "fallback")
    assert "no word from meta" in silent.reason
    assert routers_at(now_s=116.0, meta=decide())["*"] == ("round-robin", "configured"), "it never chose one"


def test_a_change_of_the_router_is_told_once_with_its_source_and_reason():
    def told(before: Directives, after: Directives) -> list[tuple[str, ...]]:
        found = [one for one in changes(before, after) if one.kind.startswith("router")]
        return [(one.kind, one.subject, one.before, one.after, one.source, one.reason, one.decision_id) for one in found]

    configured, led = at(configured=ROUTED), at(configured=ROUTED, meta=decide(router="default"))
    assert told(configured, led) == [("router", "*", "round-robin", "default", "meta", "tails", "d1")]
    again = Received(105.0, MetaDecision(sent_s=105.0, decision_id="d2", policy="sjf", previous="sjf", reason="still", router="default"))
    assert told(led, at(configured=ROUTED, meta=again)) == []
    back = [("router", "*", "default", "round-robin", "configured", "meta leaves the router as configured", "")]
    assert told(led, at(configured=ROUTED, meta=decide(bypass=True))) == back
