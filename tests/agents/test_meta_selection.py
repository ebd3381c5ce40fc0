"""What becomes of a selector's proposal: whitelist, agreement, dwell, budget, judge; that a hostile selector cannot hurt; outcomes."""

import itertools
from typing import Any

import msgspec
import pytest
from control_kit import long_view, short_view
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.journal import DecisionJournal
from hmas.agents.meta.judge import Ruling
from hmas.agents.meta.limits import Limits
from hmas.agents.meta.make import SELECTORS, Meta, make_meta
from hmas.agents.meta.model import ASKING_MOST_S, MetaModel
from hmas.agents.meta.selectors.base import Pending, Proposal, Reward
from hmas.agents.meta.twin.evidence import Hindsight
from hmas.controller.config.cross_checks import META_SELECTORS
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.core.errors import ConfigError, SchedulingError
from hmas.controller.core.messages import OPEN_WINDOW, CandidateOutlook, DecisionOutcome
from hmas.controller.scheduling.policies.registry import POLICIES

SJF = Candidate(policy="sjf")


class Says:
    """A selector that says what it is told to, at once or later."""

    name = "says"

    def __init__(self, *candidates: Candidate, trusted: bool = True, later: bool = False) -> None:
        self.trusted = trusted
        self.rewards: list[Reward] = []
        self._candidates = candidates
        self._later = later
        self._asked = 0

    def propose(self, situation):
        wanted = self._candidates[self._asked % len(self._candidates)]
        self._asked += 1
        said = Proposal(candidate=wanted, reason="told to", source=self.name, confidence=0.7)
        if not self._later:
            return said
        return Pending(
            compute=lambda: said,
            finish=lambda found: found,
            failed=lambda why: msgspec.structs.replace(said, candidate=situation.current, reason=f"failed: {why}"),
        )

    def learn(self, reward):
        self.rewards.append(reward)


class Rules:
    """A judge whose word is fixed."""

    def __init__(self, passes) -> None:
        self._passes = passes

    def case(self, *_):
        return Ruling(self._passes, "so be it")


def model(selector, **changes) -> MetaModel:
    bounds: dict[str, Any] = {"period_s": 5.0, "dwell_s": 20.0, "rollback_window_s": 10.0, "settle_s": 5.0}
    bounds |= {name: changes.pop(name) for name in list(changes) if name in Limits.__dataclass_fields__}
    return MetaModel(**({"start": "edf", "pool": POLICIES, "limits": Limits(**bounds), "selector": selector} | changes))


def live(meta: MetaModel, until_s: float, *, from_s: float = 0.0, answer: bool = True, long=None) -> list:
    said, now_s = [], from_s
    loop = Meta(meta, None)
    while now_s < until_s:
        said += meta.on_short(short_view(now_s), now_s)
        if now_s % 5 == 0:
            said += meta.on_long(long_view(now_s, **(long or {})), now_s)
            if answer:
                said += loop.think(now_s)
        now_s += 0.5
    return said


def switches(said) -> list[str]:
    return [d.policy for d in said if not isinstance(d, DecisionOutcome) and not d.repeats and d.policy != d.previous]


@pytest.mark.parametrize("later", [False, True])
def test_a_proposal_is_followed_when_it_has_been_made_twice(later):
    said = live(model(Says(SJF, later=later)), 12.0)
    assert switches(said) == ["sjf"]
    assert said[-1].confidence == 0.7


@pytest.mark.parametrize(("trusted", "expected"), [(False, []), (True, ["sjf"])])
def test_what_stands_in_for_an_untrusted_selector_does_not_confirm_it(trusted, expected):
    class InTurns(Says):
        def propose(self, situation):
            return msgspec.structs.replace(super().propose(situation), source="rules" if self._asked % 2 else "says")

    assert switches(live(model(InTurns(SJF, trusted=trusted), judge=Rules(True)), 12.0)) == expected


@pytest.mark.parametrize(
    ("passes", "trusted", "expected"),
    [(True, False, ["sjf"]), (True, True, ["sjf"]), (False, True, []), (None, True, ["sjf"]), (None, False, [])],
)
def test_the_judge_has_the_last_word_and_where_it_has_none_only_the_trusted_are_followed(passes, trusted, expected):
    said = live(model(Says(SJF, trusted=trusted), judge=Rules(passes)), 12.0)
    assert switches(said) == expected
    if not expected:
        assert "so be it" in said[-1].reason


def test_without_a_judge_what_is_not_trusted_is_not_followed():
    said = live(model(Says(SJF, trusted=False)), 30.0)
    assert switches(said) == []
    assert "nobody can judge it" in said[-1].reason


def test_windows_and_hints_are_part_of_what_is_proposed():
    meta = model(Says(Candidate(policy="edf", n_run=OPEN_WINDOW)))
    said = live(meta, 12.0)
    assert said[-1].n_run == OPEN_WINDOW
    assert meta.current.label == "edf, window open"
    lanes = model(Says(Candidate(policy="two-lane", parameters={"slow_quantile": 0.7})))
    assert live(lanes, 12.0)[-1].parameters == {"slow_quantile": 0.7}


def test_a_window_that_an_operator_holds_is_not_changed_and_the_order_may_be():
    meta = model(Says(Candidate(policy="edf", n_run=OPEN_WINDOW)))
    said = live(meta, 60.0, long={"forced": ["knobs"]})
    assert meta.current == Candidate(policy="edf")
    assert "an operator holds the windows" in said[-1].reason
    other = model(Says(SJF.window(OPEN_WINDOW)))
    live(other, 60.0, long={"forced": ["knobs"]})
    assert other.current == SJF


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Candidate(policy="nonsense"), "not in the pool"),
        (Candidate(policy="two-lane", parameters={"slow_quantile": 7.0}), "allowed: a number from"),
        (Candidate(policy="fcfs", parameters={"magic": 1.0}), "parameter 'magic' is unknown"),
    ],
)
def test_what_is_not_allowed_is_refused_in_words(wanted, words):
    said = live(model(Says(wanted)), 30.0)
    assert switches(said) == []
    assert words in said[-1].reason


def test_an_hour_has_only_so_many_switches():
    restless = Says(*[Candidate(policy=name) for name in ("sjf", "sjf", "edf", "edf")])
    meta = model(restless, dwell_s=1.0, rollback_window_s=1.0, switches_per_hour=3)
    said = live(meta, 600.0)
    assert len(switches(said)) == 3
    assert any("the hour's 3 switches are spent" in decision.reason for decision in said)
    assert len(switches(live(meta, 3700.0, from_s=600.0))) >= 1


def test_work_that_breaks_is_told_and_leaves_things_as_they_are():
    class Breaks(Says):
        def propose(self, situation):
            pending = super().propose(situation)

            def compute():
                raise SchedulingError("no such thing")

            return Pending(compute, pending.finish, pending.failed)

    said = live(model(Breaks(SJF, later=True)), 20.0)
    assert switches(said) == []
    assert any(decision.reason == "failed: no such thing" for decision in said)


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever():
    meta = model(Says(SJF, later=True))
    live(meta, 6.0, answer=False)
    asked = meta.asking
    assert asked is not None
    live(meta, 30.0, from_s=6.0, answer=False)
    assert meta.asking is asked, "no second question behind one that is being worked on"
    live(meta, ASKING_MOST_S + 20.0, from_s=30.0, answer=False)
    assert meta.asking is not None
    assert meta.asking is not asked


def test_signs_of_life_name_what_they_repeat():
    said = live(model(Says(Candidate(policy="edf")), keep_alive_s=1.0), 20.0)
    own = [decision for decision in said if not decision.repeats]
    assert 0 < len(own) < len(said) / 2
    assert {decision.repeats for decision in said if decision.repeats} <= {decision.decision_id for decision in own} | {""}


def test_a_selector_is_told_what_came_of_what_was_in_force():
    selector = Says(Candidate(policy="edf"))
    live(model(selector), 30.0, long={"goodput_rate": 0.4, "ended": 77})
    assert {(reward.good, reward.requests, reward.situation.current.policy) for reward in selector.rewards} == {(0.4, 77, "edf")}


# -- outcomes


def test_a_decision_is_joined_with_what_happened_and_with_hindsight():
    journal = DecisionJournal(20.0, lambda chosen, _from, _until: Hindsight(best="sjf", best_good=0.9, chosen_good=0.8))
    said = live(model(Says(Candidate(policy="edf")), journal=journal), 60.0, long={"goodput_rate": 0.75, "ended": 50})
    outcomes = [one for one in said if isinstance(one, DecisionOutcome)]
    decisions = {one.decision_id for one in said if not isinstance(one, DecisionOutcome)}
    assert outcomes
    assert {one.decision_id for one in outcomes} <= decisions
    assert (outcomes[0].good, outcomes[0].requests, outcomes[0].best, outcomes[0].expected) == (0.75, 50, "sjf", -1.0)
    assert outcomes[0].regret == pytest.approx(0.1)


def test_a_replay_that_is_far_from_what_happened_says_nothing_in_hindsight():
    journal = DecisionJournal(20.0, lambda chosen, _from, _until: Hindsight(best="sjf", best_good=1.0, chosen_good=1.0))
    said = live(model(Says(Candidate(policy="edf")), journal=journal), 60.0, long={"goodput_rate": 0.6, "ended": 50})
    assert {(one.good, one.best) for one in said if isinstance(one, DecisionOutcome)} == {(0.6, "")}


def test_what_was_replaced_within_its_span_has_no_outcome():
    class Changes(Says):
        def propose(self, situation):
            said = super().propose(situation)
            return msgspec.structs.replace(said, candidates=(CandidateOutlook(policy=said.candidate.policy, good=0.66),))

    journal = DecisionJournal(30.0)
    said = live(model(Changes(SJF), journal=journal), 60.0)
    outcomes = {one.decision_id: one for one in said if isinstance(one, DecisionOutcome)}
    switch = next(one for one in said if not isinstance(one, DecisionOutcome) and one.policy != one.previous)
    before = [one.decision_id for one in said if not isinstance(one, DecisionOutcome) and one.policy == "edf"]
    assert outcomes[switch.decision_id].expected == 0.66
    assert not outcomes.keys() & set(before)


# -- nothing that a selector says can lead out of what is allowed

ANY = st.builds(
    Candidate,
    policy=st.sampled_from([*sorted(POLICIES), "", "rm -rf", "FCFS"]),
    parameters=st.dictionaries(st.sampled_from(["slow_quantile", "threshold_ms", "x"]), st.floats(allow_nan=True), max_size=2),
    n_run=st.sampled_from([0, 1, 8, OPEN_WINDOW]),
)


@settings(max_examples=60, deadline=None)
@given(words=st.lists(ANY, min_size=1, max_size=12), passes=st.sampled_from([True, None]))
def test_no_word_of_a_selector_leads_out_of_the_pool_or_past_the_guards(words, passes):
    meta = model(Says(*words, trusted=passes is None), judge=Rules(passes), dwell_s=10.0)
    said = live(meta, 120.0)
    assert all(decision.policy in POLICIES and not decision.bypass for decision in said)
    times = [decision.sent_s for decision in said if decision.policy != decision.previous]
    assert all(later - earlier >= 10.0 for earlier, later in itertools.pairwise(times))


def test_the_configuration_knows_every_built_in_selector_and_no_other_name_stands_for_one():
    assert tuple(SELECTORS)[: len(META_SELECTORS)] == META_SELECTORS
    with pytest.raises(ConfigError, match=r"agents\.meta_selector is 'magic'; allowed: one of twin, rules, llm"):
        make_meta(Config(agents=AgentsConfig(meta_selector="magic")))


def test_meta_is_put_together_as_configured():
    assert make_meta(Config()).twin is not None
    bare = make_meta(Config(agents=AgentsConfig(meta_selector="rules", meta_judge=False)))
    assert bare.twin is None
    assert switches(live(bare.model, 30.0)) == []
