"""A contextual bandit as a selector (H-MAS C.2): LinUCB with a shared and a per-policy part (Li et al., 2010) and forgetting. Pure.

Two ridge regressions on the long view's figures explain the share of good requests: a shared one over all policies (how hard the load is)
and one per policy on the residual (the policy's own effect). A policy that was never tried is thus estimated to be as good as the others
under this load. The bandit proposes the policy with the highest estimate plus `WIDTH` standard deviations of its own part. Before every
sample all matrices decay towards their initial values with a half-life, so that what was learnt under another workload fades. It uses no
random numbers: the same views give the same proposals.

Its proposals pass the twin's judgement as those of every untrusted selector do, so it explores only where the twin expects a gain. The
state is one 9 by 9 matrix per policy, and a shared one.
"""

from collections.abc import Sequence
from math import isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from hmas.agents.meta.make import SelectorSetup
from hmas.agents.meta.selectors.base import Proposal, Reward, Situation
from hmas.agents.meta.selectors.rules import SAMPLES_MIN, figures, long_backlog_share
from hmas.controller.core.messages import LongView
from hmas_lab.meta.features import SHORT_LIST

WIDTH = 0.2
"""Width of the confidence bound in standard deviations: rewards are shares whose spread between windows is about a tenth."""
HALF_LIFE = 120
"""Rewards after which a reward counts half: twenty minutes at the default pace."""
STAY = 0.01
"""Lead that another policy's bound needs: a change has a cost."""
RIDGE = 1.0

CONTEXT = 9
"""Length of `context`."""

Vector = NDArray[np.float64]


def context(view: LongView) -> Vector:
    """Returns the features that explain the rewards: shares, bounded ratios, and a constant."""
    figures_seen = (
        view.violation_rate,
        view.deadline_miss_share,
        view.late_service,
        view.mismatch,
        min(1.0, view.total_cv / 3.0),
        min(1.0, view.arrival_dispersion / 10.0),
        view.long_share,
        long_backlog_share(view),
        1.0,
    )
    return np.array([min(1.0, max(0.0, value)) if isfinite(value) else 0.0 for value in figures_seen])


class _Ridge:
    def __init__(self) -> None:
        self.a = RIDGE * np.eye(CONTEXT)
        self.b = np.zeros(CONTEXT)

    def fade(self, keep: float) -> None:
        self.a = keep * self.a + (1.0 - keep) * RIDGE * np.eye(CONTEXT)
        self.b *= keep

    def learn(self, x: Vector, reward: float) -> None:
        self.a += np.outer(x, x)
        self.b += reward * x

    def bound(self, x: Vector) -> tuple[float, float]:
        """Returns the estimate and its standard deviation."""
        solved = np.linalg.solve(self.a, np.column_stack((self.b, x)))
        return float(x @ solved[:, 0]), sqrt(max(0.0, float(x @ solved[:, 1])))


class BanditSelector:
    """Learns from the outcome of each window which policy suits which figures.

    Args:
        policies: The arms; the configured policy is added if it is not among them.
    """

    name = "bandit"
    trusted = False

    def __init__(self, start: str, policies: Sequence[str] = SHORT_LIST) -> None:
        self._arms = {name: _Ridge() for name in dict.fromkeys((start, *policies))}
        self._shared = _Ridge()
        self._keep = 0.5 ** (1.0 / HALF_LIFE)

    def propose(self, situation: Situation) -> Proposal:
        """Proposes the policy with the highest upper bound; what runs if none is clearly ahead."""
        view, current = situation.view, situation.current
        if view.ended < SAMPLES_MIN:
            reason = f"keep: {view.ended} requests ended within {view.window_s:.0f} s are too few to judge by"
            return Proposal(candidate=current, reason=reason, source=self.name, confidence=0.0)
        x = context(view)
        level, _ = self._shared.bound(x)
        own = {name: arm.bound(x) for name, arm in self._arms.items() if name in situation.allowed}
        bounds = {name: (level + mean, error) for name, (mean, error) in own.items()}
        uppers = {name: min(1.0, mean + WIDTH * error) for name, (mean, error) in bounds.items()}
        best = max(uppers, key=lambda name: (uppers[name], name == current.policy), default=current.policy)
        if current.policy in uppers and uppers[best] - uppers[current.policy] < STAY:
            best = current.policy
        told = ", ".join(f"{name} {mean:.2f} ± {error:.2f}" for name, (mean, error) in sorted(bounds.items(), key=lambda one: -one[1][0]))
        _, error = bounds.get(best, (0.0, 1.0))
        return Proposal(
            candidate=situation.candidate_of(best),
            reason=f"share of good requests as learnt: {told}",
            source=self.name,
            confidence=1.0 / (1.0 + error),
            evidence=figures(view),
        )

    def learn(self, reward: Reward) -> None:
        """Learns from a window that belongs to one policy alone, in the context in which the window began."""
        situation = reward.situation
        arm = self._arms.get(situation.current.policy)
        if arm is None or reward.requests < SAMPLES_MIN or not isfinite(reward.good):
            return
        # The view still contains an earlier window's outcome, which would be credited to the wrong policy.
        if situation.now_s - situation.since_s < situation.view.window_s:
            return
        for one in (self._shared, *self._arms.values()):
            one.fade(self._keep)
        x, good = context(situation.view), min(1.0, max(0.0, reward.good))
        level, _ = self._shared.bound(x)
        self._shared.learn(x, good)
        arm.learn(x, good - level)


def make_bandit(setup: SelectorSetup) -> BanditSelector:
    """Builds the selector with the configured policy among its arms."""
    return BanditSelector(setup.config.scheduler.policy)
