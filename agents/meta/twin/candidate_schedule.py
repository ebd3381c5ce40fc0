"""Chooses the candidates of each replay: few, so that a replay can cover a long window, and each candidate in turn. Pure.

Replays overlap and their results are kept, so not every candidate is needed in each one. The time is better spent on a longer window,
because work that a policy defers shows late. Each replay contains what runs, as the reference, and the leading candidate. Every other
candidate has a period, long if it is hopeless, and the most overdue ones are replayed. The plain baseline (first come first served with the
best static window) is replayed together with a neighbouring window, and moves there if that is better. Candidates one parameter step away
from what runs are replayed too, so that successive changes climb as long as a step is worth a change.
"""

from collections.abc import Callable, Collection
from math import inf

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.twin.evidence import Gain
from hmas.controller.core.messages import OPEN_WINDOW
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY

OFTEN = ("fcfs", "robust-edf", "sjf", "slack", "two-lane", "wfq")
"""Policies that are replayed often: one of each kind, and the paper's own order over the whole answer (Eq. 5)."""
STRICT = 0.25
"""Share of the TPOT guard that is replayed as often as the configured one: it admits fewer prompts that delay other requests."""
SHARES = (0.1, 1.0)
"""Shares that are replayed less often."""
HOPELESS = 3.0
"""A candidate this many standard errors below what runs is replayed seldom."""
CAPS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Static windows that are tried."""
MOST = 7
"""Candidates of one replay, including what runs; one more when the plain baseline comes with its neighbour."""
FEW = 3
"""Up to so many candidates, time is short."""
REGULAR, SELDOM = 2, 8
"""Period in replays: of a regular candidate or one that is ahead, and of any other."""

GainOf = Callable[[Candidate, Candidate], Gain | None]


class CandidateSchedule:
    """Chooses the candidates of the next replay.

    Attributes:
        cap: Index in `CAPS` of the best static window so far.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._looked_at: dict[str, int] = {}
        self._up = True
        self.cap = CAPS.index(32)

    @property
    def plain(self) -> Candidate:
        """The plain baseline, with the best static window so far."""
        return Candidate(policy="fcfs", n_run=CAPS[self.cap])

    def choose(
        self,
        current: Candidate,
        pool: Collection[str],
        gain: GainOf,
        proposed: Candidate | None = None,
        *,
        places: int = MOST,
        guarded: bool = True,
        start: Candidate | None = None,
        routers: Collection[str] = (),
    ) -> tuple[Candidate, ...]:
        """Returns the candidates of one replay.

        Args:
            current: What runs; it is the first of them.
            pool: Policies that may be replayed.
            gain: Returns the known gain of one candidate over another.
            proposed: The last proposal, which is replayed again.
            places: Number of candidates, including what runs; one more when the plain baseline comes with its neighbour.
            guarded: Whether there is a TPOT guard; one that is switched off stays off.
            start: The configured candidate, which may return.
            routers: Routers that may be replayed; an empty text is the configured one.
        """
        shipped = shipped_beside(current)
        regular = [current.under(name) for name in OFTEN if name in pool]
        regular += [shipped] if DEFAULT_POLICY in pool else []
        regular += [current.routed(router) for router in routers]
        regular += [current.window(n_run) for n_run in (0, OPEN_WINDOW)]
        regular += [current.guarded(share) for share in (None, STRICT) if guarded]
        regular += [start] if start is not None and start.policy in pool else []
        others = [current.under(name) for name in sorted(pool) if name not in OFTEN]
        others += [current.guarded(share) for share in SHARES if guarded]
        others += current.neighbours()
        # Each label once, with the shortest of its periods.
        periods = {one.label: (one, SELDOM) for one in others} | {one.label: (one, REGULAR) for one in (*regular, self.plain)}
        periods.pop(current.label, None)
        self._turn += 1
        gains = {label: gain(one, current) for label, (one, _) in periods.items()}
        # A candidate that was never replayed counts as overdue since before the first replay.
        waited = {label: self._turn - self._looked_at.get(label, 1 - SELDOM) for label in periods}
        overdue = {label: waited[label] / _period(gains[label], usual) for label, (_, usual) in periods.items()}
        ahead = {label: found.share for label, found in gains.items() if found is not None and found.share > 0.0}
        if ahead:
            overdue[max(ahead, key=lambda label: ahead[label])] = inf
        if proposed is not None and proposed.label in periods:
            overdue[proposed.label] = inf
        # It alone may be chosen on little evidence, so its evidence is collected first, and where time is short without others: fewer
        # candidates leave time for a longer window.
        wanting = shipped.label in periods and ((known := gains[shipped.label]) is None or known.brief)
        if wanting:
            overdue[shipped.label] = inf
        alone = wanting and places <= FEW
        # Among equals the first one goes first.
        chosen = sorted(overdue, key=lambda label: -overdue[label])[: 1 if alone else places - 1]
        if self.plain.label in (current.label, *chosen) and not alone:
            # Two windows can only be compared on the same traffic.
            periods[self._neighbour.label] = (self._neighbour, SELDOM)
            chosen = list(dict.fromkeys((*chosen[: max(1, places - 2)], self.plain.label, self._neighbour.label)))
        self._looked_at = {label: self._looked_at[label] for label in periods if label in self._looked_at}
        self._looked_at |= dict.fromkeys(chosen, self._turn)
        return (current, *(periods[label][0] for label in chosen if label != current.label))

    def learn(self, looked_at: Collection[Candidate], gain: GainOf) -> None:
        """Moves to the neighbouring window if the replay shows that it is better; else tries the other direction next time."""
        tried = self._neighbour
        if tried not in looked_at:
            return
        found = gain(tried, self.plain)
        if found is not None and found.share > 0.0:
            self.cap = CAPS.index(tried.n_run)
        else:
            self._up = not self._up

    @property
    def _neighbour(self) -> Candidate:
        step = 1 if self._up else -1
        place = self.cap + step
        return Candidate(policy="fcfs", n_run=CAPS[place if 0 <= place < len(CAPS) else self.cap - step])


def shipped_beside(current: Candidate) -> Candidate:
    """Returns what an installation without any setting starts with: the default policy and parameters, under the windows that statera sets.

    The share of the TPOT guard and the router are those of `current`: a change of either is never part of it.
    """
    return current.under(DEFAULT_POLICY).window(0)


def is_shipped(candidate: Candidate, current: Candidate) -> bool:
    """Whether a candidate is what is shipped, see `shipped_beside`."""
    return candidate == shipped_beside(current)


def _period(found: Gain | None, usual: int) -> int:
    """Returns the replays until a candidate is due again, depending on its known gain."""
    if found is None:
        return usual
    if found.share > 0.0:
        return REGULAR
    return SELDOM if found.error < 1.0 and found.share < -HOPELESS * found.error else usual
