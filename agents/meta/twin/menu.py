"""Which candidates a replay is worth: few enough for its time, and every one of the pool in its turn. Pure.

Always there: what runs, one policy of each kind, the other windows for what runs, the TPOT guard as configured and a stricter one, and the
plain baseline (first come first served with the best static window). What is far behind what runs is only looked at in its turn, and so are
all others of the pool. The best static window is searched for from replay to replay: beside the best so far one neighbour is tried.
"""

from collections.abc import Callable, Collection

from agents.meta.candidate import Candidate
from agents.meta.twin.evidence import Gain
from controller.core.messages import OPEN_WINDOW

FAMILIES = ("fcfs", "edf", "sjf", "two-lane", "wfq")
"""One policy of each kind (H-MAS C.2)."""
STRICT = 0.25
"""Share of the TPOT guard that is always looked at beside the configured one: fewer prompts that hold up others."""
SHARES = (0.1, 1.0)
"""Shares that are looked at in their turn."""
HOPELESS = 3.0
"""Standard errors below what runs at which a candidate is only looked at in its turn."""
CAPS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Static windows that are tried."""
TURNS = 1
"""Candidates beside the regular ones in one replay."""

GainOf = Callable[[Candidate, Candidate], Gain | None]


class Menu:
    """What to look at next.

    Attributes:
        cap: Index of the best static window so far among `CAPS`.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._up = True
        self.cap = CAPS.index(32)

    @property
    def plain(self) -> Candidate:
        """The plain baseline, with the best static window so far."""
        return Candidate(policy="fcfs", n_run=CAPS[self.cap])

    def choose(self, current: Candidate, pool: Collection[str], gain: GainOf, *, guarded: bool = True) -> tuple[Candidate, ...]:
        """Candidates for one replay, what runs first. `guarded`: whether there is a TPOT guard; one that is switched off stays off."""
        regular = [current.window(n_run) for n_run in (0, OPEN_WINDOW) if n_run != current.n_run]
        regular += [one for share in (None, STRICT) if guarded and (one := current.guarded(share)) != current]
        regular += [current.under(name) for name in FAMILIES if name in pool and name != current.policy]
        others = [current.under(name) for name in sorted(pool) if name not in FAMILIES and name != current.policy]
        others += [one for share in SHARES if guarded and (one := current.guarded(share)) != current]
        hopeful = [one for one in regular if not _is_hopeless(gain(one, current))]
        rest = [one for one in regular if one not in hopeful] + others
        turns = [rest[(self._turn + place) % len(rest)] for place in range(min(TURNS, len(rest)))]
        self._turn += TURNS
        plain = [self.plain, Candidate(policy="fcfs", n_run=CAPS[self._neighbour()])]
        # In this order, each once: what a replay has no time for is at the end.
        return tuple({one.label: one for one in (current, *hopeful, *plain, *turns)}.values())

    def learn(self, gain: GainOf) -> None:
        """After a replay: moves to the neighbouring window where that is better, else looks the other way next time."""
        tried = self._neighbour()
        found = gain(Candidate(policy="fcfs", n_run=CAPS[tried]), self.plain)
        if found is not None and found.share > 0.0:
            self.cap = tried
        else:
            self._up = not self._up

    def _neighbour(self) -> int:
        step = 1 if self._up else -1
        place = self.cap + step
        return place if 0 <= place < len(CAPS) else self.cap - step


def _is_hopeless(found: Gain | None) -> bool:
    return found is not None and found.error < 1.0 and found.share < -HOPELESS * found.error
