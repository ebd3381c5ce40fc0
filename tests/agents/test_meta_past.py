"""What outlives a restart of meta, what it does not stumble over again, and what is told of it meanwhile."""

from typing import Any

import pytest
from control_kit import long_view, short_view
from typing_kit import all_of_type

from hmas.agents.meta.agent import MetaAgent
from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.cooldowns import Cooldowns
from hmas.agents.meta.journal import DecisionJournal
from hmas.agents.meta.limits import BAN_DWELLS, Limits
from hmas.agents.meta.make import Meta
from hmas.agents.meta.model import MetaModel
from hmas.agents.meta.restored_state import FRESH_S, past_of
from hmas.agents.meta.selectors.base import Pending, Proposal
from hmas.controller.core.messages import DecisionOutcome, MetaDecision
from hmas.controller.observability.decision_log import DecisionLog
from hmas.controller.scheduling.policies.registry import POLICIES

EDF, SJF = Candidate(policy="edf"), Candidate(policy="sjf")


def decided(sent_s: float, policy: str, previous: str, **more) -> MetaDecision:
    return MetaDecision(sent_s=sent_s, decision_id=f"meta-{sent_s:g}", policy=policy, previous=previous, **more)


def past(*decisions: MetaDecision, now_s: float = 100.0):
    return past_of(decisions, POLICIES, now_s, ban_s=240.0, span_s=3600.0, routers=("round-robin",))


# -- what a restart takes over


def test_the_newest_decision_says_what_is_in_force():
    found = past(
        decided(80.0, "sjf", "edf", changed=True), decided(90.0, "wfq", "sjf", changed=True, n_run=24, parameters={"tpot_guard": 0.1})
    )
    assert found.current == Candidate(policy="wfq", n_run=24, parameters={"tpot_guard": 0.1})
    assert found.bypass_s is None
    assert found.switches == [80.0, 90.0]
    assert past().current is None
    assert past(decided(80.0, "gone-policy", "edf")).current is None
    assert past(decided(80.0, "sjf", "edf"), now_s=80.0 + FRESH_S + 1.0).current is None


def test_a_bypass_that_has_ended_does_not_come_back():
    seen = decided(10.0, "fcfs", "edf", bypass=True, changed=True, source="bypass")
    over = decided(20.0, "edf", "fcfs", changed=True, source="bypass")
    assert past(seen, over).bypass_s is None
    assert past(seen, over).current == EDF
    again = MetaModel(start="edf", pool=POLICIES)
    again.restore([seen, over, decided(300.0, "edf", "edf", repeats="x")], 303.0)
    said = again.on_short(short_view(303.0), 303.0)
    assert [(d.policy, d.bypass) for d in all_of_type(MetaDecision, said)] == [("edf", False)]


def test_a_bypass_in_force_goes_on_from_when_it_was_last_in_force_and_back_to_what_it_put_aside():
    running = decided(5.0, "edf", "fcfs", changed=True, n_run=48)
    again: dict[str, Any] = {"previous_n_run": 48, "previous_router": "round-robin"}
    seen = decided(10.0, "fcfs", "edf", bypass=True, changed=True, source="bypass", **again)
    found = past(running, seen, decided(14.0, "fcfs", "edf", bypass=True, repeats="x", **again))
    assert found.bypass_s == 14.0
    assert found.current == EDF.window(48).routed("round-robin")
    assert found.switches == [5.0], "neither bypasses nor rollbacks are on the budget"
    # It puts back what was proven: neither the switch before it nor a decision that the stream has lost tells that.
    tried = decided(5.0, "edf", "edf", changed=True, n_run=8)
    proven = decided(10.0, "fcfs", "edf", bypass=True, changed=True, previous_parameters={"tpot_guard": 0.2})
    for told in ((proven,), (tried, proven), (decided(5.0, "sjf", "edf", changed=True), proven)):
        assert past(*told).current == Candidate(policy="edf", parameters={"tpot_guard": 0.2})


def test_what_ran_under_another_configuration_is_not_resumed_and_a_bypass_is():
    said = all_of_type(MetaDecision, MetaModel(start="edf", pool=POLICIES).on_long(long_view(100.0), 100.0))
    assert [one.configured for one in said] == ["edf"]
    other = EDF.guarded(0.2)
    for start, resumed in ((EDF, EDF), (other, other), (Candidate(policy="wfq"), Candidate(policy="wfq"))):
        again = MetaModel(start=start, pool=POLICIES)
        again.restore(said, 101.0)
        assert again.current == resumed
    old = MetaModel(start="wfq", pool=POLICIES)
    old.restore([decided(100.0, "edf", "edf")], 101.0)
    assert old.policy == "edf", "a decision of an older version does not tell"
    broken = MetaModel(start="wfq", pool=POLICIES)
    broken.restore([decided(100.0, "fcfs", "edf", bypass=True, changed=True, configured="edf")], 101.0)
    told = all_of_type(MetaDecision, [one for at_s in (101.0, 120.0) for one in broken.on_short(short_view(at_s), at_s)])
    assert [(one.policy, one.bypass) for one in told] == [("fcfs", True), ("wfq", False)]


@pytest.mark.parametrize("kept", [1, 1000], ids=["only-a-sign-of-life", "all-decisions"])
def test_after_a_bypass_the_former_policy_comes_back_with_its_parameters_over_a_restart(kept):
    limits = Limits(period_s=5.0, dwell_s=10.0, rollback_window_s=10.0, settle_s=2.0)
    start = Candidate(policy="edf", parameters={"tpot_guard": 0.2}, n_run=24)
    tried = Candidate(policy="edf", parameters={"tpot_guard": 0.9}, n_run=8)

    def model() -> MetaModel:
        return MetaModel(start=start, pool=POLICIES, limits=limits, selector=Insists(tried))

    def served(meta: MetaModel, from_s: int, until_s: int, **short) -> list[MetaDecision]:
        said = []
        for now_s in range(from_s, until_s):
            said += meta.on_short(short_view(float(now_s), **short), float(now_s))
            said += meta.on_long(long_view(float(now_s)), float(now_s))
        return all_of_type(MetaDecision, said)

    first = model()
    said = served(first, 0, 8)
    assert first.current == tried, "a switch that is still being watched"
    said += served(first, 8, 16, anomalies=["stuck"])
    assert said[-1].bypass
    assert (said[-1].policy, said[-1].parameters, said[-1].n_run) == ("fcfs", {}, 0)
    again = model()
    again.restore(said[-kept:], 16.0)
    back = next(one for one in served(again, 16, 40) if not one.bypass)
    assert (back.policy, back.parameters, back.n_run) == ("edf", {"tpot_guard": 0.2}, 24)


def test_a_rollback_is_remembered_for_as_long_as_it_would_have_been():
    tried = decided(10.0, "sjf", "edf", changed=True)
    undone = decided(16.0, "edf", "sjf", changed=True, source="rollback")
    bans = past(tried, undone, now_s=50.0).bans
    assert (bans.allows("sjf", 50.0), bans.allows("edf", 50.0)) == (False, True)
    assert bans.until_s(SJF) == 256.0
    assert past(tried, undone, now_s=257.0).bans.allows("sjf", 257.0)
    window = decided(10.0, "edf", "edf", changed=True, n_run=8)
    undone = decided(16.0, "edf", "edf", changed=True, source="rollback", n_run=48)
    bans = past(window, undone, now_s=50.0).bans
    assert bans.allows("edf", 50.0)
    assert [bans.until_s(EDF.window(n_run)) > 50.0 for n_run in (0, 8, 48)] == [False, True, False]


class Insists:
    """A selector that always wants the same; `work` instead, where it is given."""

    name, trusted = "insists", True

    def __init__(self, wanted: Candidate = SJF, compute=None, finish=None) -> None:
        self._said = Proposal(candidate=wanted, reason="so it says", source=self.name)
        self._compute, self._finish = compute, finish
        self.rewards: list = []

    def propose(self, situation):
        if self._compute is None:
            return self._said
        return Pending(self._compute, self._finish or (lambda found: found), lambda why: self._failed(situation, why))

    def _failed(self, situation, why):
        return Proposal(candidate=situation.current, reason=f"the work broke: {why}", source=self.name)

    def learn(self, reward) -> None:
        self.rewards.append(reward)


def live(meta: MetaModel, from_s: float, until_s: float) -> list[MetaDecision]:
    """Serves badly whatever policy but `edf` is in force."""
    said, now_s = [], from_s
    while now_s < until_s:
        bad = {} if meta.policy == "edf" else {"violation_rate": 0.9, "ttft_violation_rate": 0.9}
        said += meta.on_short(short_view(now_s, **bad), now_s)
        if now_s % 5.0 == 0.0:
            said += meta.on_long(long_view(now_s), now_s)
        now_s += 0.5
    return [decision for decision in said if isinstance(decision, MetaDecision)]


def insisting() -> MetaModel:
    limits = Limits(period_s=5.0, dwell_s=20.0, rollback_window_s=10.0, settle_s=2.0)
    return MetaModel(start="edf", pool=("edf", "sjf"), limits=limits, selector=Insists())


def test_restarts_do_not_try_what_was_rolled_back_again():
    said = live(insisting(), 0.0, 50.0)
    for begun_s in (50.0, 100.0, 150.0):
        again = insisting()
        again.restore(said, begun_s)
        said += live(again, begun_s, begun_s + 50.0)
    rollbacks = [decision.sent_s for decision in said if decision.source == "rollback"]
    assert len(rollbacks) == 2, "one, and one more when its ban was over"
    assert rollbacks[1] - rollbacks[0] >= BAN_DWELLS * 20.0


# -- bans of policies and of single candidates


def test_a_window_that_failed_bans_neither_its_policy_nor_other_windows():
    bans = Cooldowns()
    bans.add(EDF, EDF.window(48), 100.0)
    assert bans.allows("edf", 50.0)
    assert [bans.until_s(one) > 50.0 for one in (EDF, EDF.window(48), EDF.window(64))] == [True, False, False]
    bans.add(SJF.window(8), EDF, 100.0)
    assert not bans.allows("sjf", 50.0)
    assert bans.until_s(SJF) == 100.0
    bans.forget(101.0)
    assert bans.allows("sjf", 50.0)


# -- work that breaks


def nested(_found):
    raise RecursionError("too deep")


def broken():
    raise KeyError("a policy of a user's")


@pytest.mark.parametrize(("work", "error"), [(broken, "KeyError"), (lambda: nested(None), "RecursionError")])
def test_work_that_raises_anything_is_told_once_and_not_repeated_at_once(work, error):
    model = MetaModel(start="edf", pool=POLICIES, selector=Insists(compute=work))
    agent = MetaAgent(Meta(model, None))
    agent.handle([long_view(100.0)], 100.0)
    asked = agent.beside(100.0)
    assert asked is not None
    (told,) = all_of_type(MetaDecision, asked.finish(asked.compute(), 100.1))
    assert told.policy == "edf"
    assert f"the work broke: {error}: " in told.reason
    assert agent.beside(100.2) is None


def test_a_selector_that_breaks_over_its_own_answer_is_not_asked_again_at_once():
    model = MetaModel(start="edf", pool=POLICIES, selector=Insists(compute=lambda: 1, finish=nested))
    agent = MetaAgent(Meta(model, None))
    agent.handle([long_view(100.0)], 100.0)
    asked = agent.beside(100.0)
    assert asked is not None
    with pytest.raises(RecursionError):
        asked.finish(asked.compute(), 100.1)
    assert agent.beside(100.2) is None
    agent.handle([long_view(110.0)], 110.0)
    assert agent.beside(110.0) is not None, "the next evaluation tries again"


@pytest.mark.parametrize("call", ["propose", "learn"])
def test_a_selector_that_raises_is_told_of_in_the_decision_and_logged_once(call, caplog):
    class Breaks(Insists):
        def propose(self, situation):
            return broken() if call == "propose" else super().propose(situation)

        def learn(self, reward) -> None:
            if call == "learn":
                broken()

    model = MetaModel(start="edf", pool=POLICIES, selector=Breaks(EDF))
    agent = MetaAgent(Meta(model, None))
    for at_s in (100.0, 110.0, 120.0):
        said = all_of_type(MetaDecision, agent.handle([long_view(at_s)], at_s))
    assert [(one.policy, one.source) for one in said] == [("edf", "insists")]
    assert said[0].reason.startswith(f"the selector broke in `{call}`: KeyError: ")
    assert ["the selector broke" in one.getMessage() for one in caplog.records] == [True]


# -- what is told meanwhile


def test_signs_of_life_under_an_operator_leave_the_log_what_was_decided():
    log = DecisionLog()
    for number in range(200):
        log.record(decided(float(number), "edf", "edf"))
    model = MetaModel(start="edf", pool=POLICIES)
    said = [one for n in range(6_000) for one in model.on_short(short_view(1000.0 + n, forced=["policy"]), 1000.0 + n)]
    assert len(said) > 600
    for one in said:
        log.record(one)
    assert len(log.newest(512)) == 201


@pytest.mark.parametrize(("period_s", "window_s"), [(0.8, 60.0), (10.0, 60.0), (10.0, 900.0)])
def test_every_span_that_is_over_has_its_outcome(period_s, window_s):
    model = MetaModel(start="edf", pool=POLICIES, limits=Limits(period_s=period_s), journal=DecisionJournal(window_s, period_s=period_s))
    said = [one for n in range(int(3 * window_s / period_s)) for one in model.on_long(long_view(1.0 + n * period_s), 1.0 + n * period_s)]
    outcomes = sum(isinstance(one, DecisionOutcome) for one in said)
    assert outcomes == pytest.approx(2 * window_s / period_s, abs=3)


def test_nothing_is_learnt_from_a_span_in_which_nothing_ended():
    selector = Insists(EDF)
    model = MetaModel(start="edf", pool=POLICIES, selector=selector)
    for n, ended in enumerate((600, 0, 0, 600)):
        model.on_long(long_view(10.0 * n, ended=ended, goodput_rate=0.98 if ended else 0.0), 10.0 * n)
    assert [reward.requests for reward in selector.rewards] == [600]
