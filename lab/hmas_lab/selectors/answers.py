"""What each selector answers at the moments, how long it takes, and how often it is right. Pure but for the model that is asked."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec

from hmas.agents.meta.selectors.base import Pending, Proposal
from hmas.agents.meta.selectors.llm import Ask, LlmSelector
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.controller.core.errors import HmasError
from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas_lab.meta.labels import MARGIN
from hmas_lab.selectors.moments import POOL, Moment

MODEL, RULES, TWIN, STAYS, ALWAYS, RANDOM, BEST = (
    *("language model", "rules", "twin", "what runs, always"),
    *(f"`{DEFAULT_POLICY}`, always", "a random one", "the best in the end"),
)
Shares = Mapping[str, float]
"""By policy, with what probability a selector chooses it."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A language model's answer at one moment.

    Attributes:
        policy: What it chose; empty where the answer could not be used.
        reason: Its reason, or why the answer could not be used.
    """

    policy: str
    reason: str
    took_s: float


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How good a selector's choices are; shares are from 0 to 1.

    Attributes:
        chosen: How often it chose each policy; empty for a random one.
        by_twin: Share of its choices from which the twin expects at least the best it expects there, less `MARGIN`; over `twin_moments`.
        in_the_end: Share of its choices that gave at least what the best gave, less `MARGIN`.
        where_needed: The same at the moments at which what runs was not right.
        good: Mean share of good requests, had its choice run all the time.
    """

    selector: str
    chosen: dict[str, int]
    by_twin: float
    in_the_end: float
    where_needed: float
    good: float


def ask_each(found: Sequence[Moment], ask: Ask, clock: Clock, model: str) -> list[Answered]:
    """Asks the model about each moment, one after the other. Each gets a selector of its own: no failure spares the model a question."""
    answers = []
    for moment in found:
        selector = LlmSelector(ask, RuleSelector(), model=model)
        began_s = clock.now_s()
        said = _said(selector.propose(moment.situation))
        used = said.source == selector.name
        answers.append(Answered(policy=said.candidate.policy if used else "", reason=said.reason, took_s=clock.now_s() - began_s))
    return answers


def _said(said: Proposal | Pending) -> Proposal:
    if isinstance(said, Proposal):
        return said
    try:
        return said.finish(said.compute())
    except HmasError as error:
        return said.failed(str(error))


def scores(found: Sequence[Moment], answers: Sequence[Answered]) -> list[Score]:
    """A row for each selector; an answer that cannot be used counts as the rules' proposal, as it does in service."""
    rules = [moment.rules.candidate.policy for moment in found]
    chosen: dict[str, list[str]] = {
        MODEL: [one.policy or fallback for one, fallback in zip(answers, rules, strict=True)],
        RULES: rules,
        TWIN: [moment.twin.candidate.policy for moment in found],
        STAYS: [moment.situation.current.policy for moment in found],
        ALWAYS: [DEFAULT_POLICY] * len(found),
        BEST: [max(moment.good, key=moment.good.__getitem__) for moment in found],
    }
    rows = [_score(name, found, [{one: 1.0} for one in policies], Counter(policies)) for name, policies in chosen.items()]
    random = _score(RANDOM, found, [dict.fromkeys(POOL, 1.0 / len(POOL))] * len(found), {})
    return [*rows[:-1], random, rows[-1]]


def _score(name: str, found: Sequence[Moment], shares: Sequence[Shares], chosen: Mapping[str, int]) -> Score:
    pairs = list(zip(found, shares, strict=True))
    told = [(moment, share) for moment, share in pairs if tells(moment)]
    needed = [(moment, share) for moment, share in pairs if not right(moment.good, moment.situation.current.policy)]
    return Score(
        selector=name,
        chosen=dict(sorted(chosen.items(), key=lambda item: -item[1])),
        by_twin=_mean([_weighted(share, _right_in(moment.expected)) for moment, share in told]),
        in_the_end=_mean([_weighted(share, _right_in(moment.good)) for moment, share in pairs]),
        where_needed=_mean([_weighted(share, _right_in(moment.good)) for moment, share in needed]),
        good=_mean([_weighted(share, moment.good.__getitem__) for moment, share in pairs]),
    )


def tells(moment: Moment) -> bool:
    """Whether the twin expects something of every policy there."""
    return set(POOL) <= set(moment.expected)


def right(by_policy: Mapping[str, float], policy: str) -> bool:
    """Whether a policy is as good as the best, less `MARGIN`."""
    return by_policy[policy] >= max(by_policy.values()) - MARGIN


def _right_in(by_policy: Mapping[str, float]) -> Callable[[str], float]:
    return lambda policy: float(right(by_policy, policy))


def _weighted(shares: Shares, worth: Callable[[str], float]) -> float:
    return sum(share * worth(policy) for policy, share in shares.items())


def _mean(values: Sequence[float]) -> float:
    return round(fmean(values), 4) if values else 0.0


def document_of(found: Sequence[Moment], answers: Sequence[Answered], model: str) -> dict[str, Any]:
    """The result, ready for JSON."""
    took = sorted(one.took_s for one in answers)
    return {
        "version": 1,
        "model": model,
        "moments": len(found),
        "workloads": len({moment.workload for moment in found}),
        "twin_moments": sum(map(tells, found)),
        "needed": sum(not right(moment.good, moment.situation.current.policy) for moment in found),
        "usable": sum(bool(one.policy) for one in answers),
        "took_s": {"p50": round(percentile(took, 50), 2), "p90": round(percentile(took, 90), 2), "max": round(took[-1], 2)},
        "summary": msgspec.to_builtins(scores(found, answers)),
        "answers": [
            {"workload": moment.workload, "in_force": moment.situation.current.policy, "good": moment.good, **msgspec.to_builtins(one)}
            for moment, one in zip(found, answers, strict=True)
        ],
    }
