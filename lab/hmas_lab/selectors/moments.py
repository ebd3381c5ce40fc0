"""Moments of simulated loads: what meta saw there, what its twin expected of each policy, and what each policy gave in the end.

The policy of a run never changes, so all selectors are asked about the same moments.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from hmas.agents.meta.candidate import candidate
from hmas.agents.meta.selectors.base import Pending, Proposal, Situation
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.agents.meta.selectors.twin import TwinSelector
from hmas.controller.core.messages import LongView, MetaDecision, ShortView
from hmas.planning.case import AGENTS, Case
from hmas.planning.running import run_case
from hmas.planning.steering import AgentSteering
from hmas_lab.meta.draws import Drawn, cases
from hmas_lab.meta.features import SHORT_LIST
from hmas_lab.meta.labels import good_by_request, is_scored

POOL = tuple(sorted(SHORT_LIST))
"""Policies that may be chosen."""


class Moment(NamedTuple):
    """One moment.

    Attributes:
        workload: Number of the drawn workload.
        rules, twin: What these selectors propose there.
        expected: By policy, the share of good requests that the twin expects; empty where it has no evidence.
        good: By policy, the share of the whole load's requests that were good when the policy ran all the time.
    """

    workload: int
    situation: Situation
    rules: Proposal
    twin: Proposal
    expected: dict[str, float]
    good: dict[str, float]


class Seen(NamedTuple):
    """What a run shows at one long view."""

    situation: Situation
    rules: Proposal
    twin: Proposal


class WatchingSteering(AgentSteering):
    """Meta's place in a run: at every long view the rules and the twin are asked, and nothing is changed.

    Attributes:
        seen: One for each long view.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        assert self.twin is not None, "the case has meta among its agents"
        self.seen: list[Seen] = []
        self._rules = RuleSelector()
        self._asked = TwinSelector(self.twin, RuleSelector())
        self._runs = candidate(case.policy, case.parameters)

    def decisions_on(self, views: Sequence[ShortView | LongView], now_s: float) -> list[MetaDecision]:
        """Asks and keeps the answers; decides nothing."""
        for view in views:
            if isinstance(view, LongView):
                situation = Situation(view=view, current=self._runs, start=self._runs, allowed=POOL, since_s=0.0, now_s=now_s)
                self.seen.append(Seen(situation, answer(self._rules.propose(situation)), answer(self._asked.propose(situation))))
        return []


def answer(said: Proposal | Pending) -> Proposal:
    """The proposal itself, where it takes work after that work."""
    return said if isinstance(said, Proposal) else said.finish(said.compute())


def moments(drawn: Iterable[Drawn], starts: Sequence[str], each: int) -> Iterator[Moment]:
    """So many moments of each workload under each policy in force, spread evenly over the run, the last one included.

    Args:
        drawn: Workloads.
        starts: Policies in force.
        each: Moments of a run.
    """
    for one in drawn:
        found = {case.policy: case for case in cases(one, POOL)}
        good: dict[str, float] = {}
        for policy, case in found.items():
            by_request = good_by_request(run_case(case))
            good[policy] = sum(by_request.values()) / max(1, len(by_request))
        for start in starts:
            for seen in _seen(found[start], each):
                yield Moment(one.number, *seen, expected=expected(seen.twin), good=good)


def _seen(case: Case, each: int) -> list[Seen]:
    case = msgspec.structs.replace(case, agents=AGENTS, meta={"meta_selector": "twin", "meta_policies": ",".join(POOL)})
    steering = WatchingSteering(case)
    run = run_case(case, steering=steering)
    scored = [seen for seen in steering.seen if is_scored(seen.situation.view, run)]
    step = max(1, len(scored) // each)
    return scored[::-step][:each]


def expected(said: Proposal) -> dict[str, float]:
    """What the twin expects of each policy with the window that statera sets, as a share of good requests."""
    found: dict[str, float] = {}
    for one in said.candidates:
        if not one.n_run:
            found[one.policy] = max(one.good, found.get(one.policy, 0.0))
    return found
