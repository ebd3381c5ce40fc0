"""Which pace the engines of a queue should keep, so that most of what comes can be in time. Pure.

A request joins where the pace suits its own TPOT target. Past capacity, the requests with the loosest targets then fill every engine up to
the pace that suits them, and all with stricter targets are lost: in simulation of the front door's bodies on a steep engine at twice its
capacity, one of eleven requests with declared targets was in time, and clients that declare none were never held back.
"""

from collections.abc import Sequence
from math import exp, floor, inf, log
from typing import NamedTuple

from hmas.controller.core.statistics.rate import Rate
from hmas.controller.scheduling.admission.tpot_guard import OWN_MARGIN, own_target_ms
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

MEMORY_S = 20.0
"""Time constant in seconds over which it is counted which targets come."""
REFUSED_S = 2.0
"""For how long a request that the guard held back keeps requests with looser targets from joining at a pace that does not suit it."""
CHOSEN_EVERY_S, WATCHED_S = 1.0 - 1e-3, 60.0
"""How often the target is chosen anew, less what a tick may come early by, and for how long after a request was last held back."""
IN_TIME = 0.9
"""Part of what the engines produce at a pace that is taken to be in time."""
EASY = 0.8
"""Part of it that the load may ask for where a request with a looser target still has its last moment. If it never had one, 82 instead of
92 % of chats are in time on a steep engine just below its capacity (`lab/benchmarks/door_simulated.py --engine steep`); with all of it,
2 to 5 points fewer beyond it where nobody streams."""
_FORGOTTEN = 1e-3
"""Share of all tokens below which those of a target are forgotten."""
_STEP = log(1.03)
_LEAST_MS, _MOST_MS = 1.0, 60_000.0
"""Targets are counted in steps of 3 % between these, each by its lower end."""
_WHOLE = 1000
"""Added to the steps of whole answers that leave room themselves."""


class _Pace(NamedTuple):
    """The pace of an instance with what it has in flight, what a sequence more adds to it, and its window."""

    token_ms: float
    rise_ms: float
    sequences: float
    n_run: float

    @classmethod
    def of(cls, instance: Instance) -> "_Pace | None":
        """As it is now, None where nothing is known."""
        sequences, pace = float(instance.sequences), instance.pace
        token_ms, best_ms = pace.token_ms(sequences), pace.best_ms()
        if token_ms is None:
            return None
        # A line over batches that are all alike shows no rise.
        rise_ms = max(pace.sequence_ms, (token_ms - (best_ms or token_ms)) / max(1.0, sequences - 1.0))
        return cls(token_ms, rise_ms, sequences, float(instance.n_run))

    def sequences_at(self, pace_ms: float) -> float:
        """With how many sequences in flight it has a pace: as many as its window allows where none makes it slower."""
        if self.rise_ms > 0.0:
            return min(self.n_run, max(0.0, self.sequences + (pace_ms - self.token_ms) / self.rise_ms))
        return self.n_run if pace_ms >= self.token_ms else 0.0


class KeptPace:
    """The TPOT target that requests with looser targets leave room for, in one queue.

    Of the targets that come, it is the one at which most tokens can be in time. These are the fewer of two figures: the tokens that the
    engines produce at the pace that suits the target, by their lines of pace over sequences in flight, and those of the requests that have
    this target or a looser one. What has a stricter target cannot be helped then. A request leaves room only while the guard holds back
    others whose target is stricter than its own and no stricter than the chosen one: where engines have room for all, nobody does.

    Attributes:
        is_easy: Whether the engines produce much more at that pace than is asked for.
    """

    __slots__ = ("_choose_s", "_chosen", "_refused", "_refused_s", "_tokens", "_total", "is_easy")

    def __init__(self) -> None:
        self.is_easy = False
        self._chosen: int | None = None
        self._choose_s = 0.0
        self._tokens: dict[int, Rate] = {}
        self._total = Rate(MEMORY_S, since_first=True)
        self._refused: set[int] = set()
        self._refused_s: dict[int, float] = {}

    def asked(self, entry: QueueEntry, now_s: float) -> None:
        """Records that a request comes."""
        tokens = entry.estimates.output_tokens
        self._tokens.setdefault(_step_of(entry), Rate(MEMORY_S)).add(tokens, now_s)
        self._total.add(tokens, now_s)

    def refused(self, entry: QueueEntry, *, leaves_room: bool) -> None:
        """Records that the guard holds back a request that is in time.

        `leaves_room`: it has to leave room itself. A stream does not count then. A whole answer counts for other whole ones: what their
        targets leave for a token differs with their length, and without them 2 to 6 points fewer are in time past capacity
        (`lab/benchmarks/door_simulated.py --mix not-streamed`).
        """
        if not leaves_room:
            self._refused.add(_step_of(entry))
        elif not entry.request.stream:
            self._refused.add(_step_of(entry) + _WHOLE)

    def target_ms(self, entry: QueueEntry, now_s: float) -> float:
        """The TPOT target that the request has to leave room for, infinite if none. O(targets)."""
        chosen = self._chosen
        if chosen is None:
            return inf
        own, whole = _step_of(entry), _WHOLE if not entry.request.stream else 0
        if own > chosen and any(
            (chosen <= step < own or chosen <= step - whole < own) and (step in self._refused or now_s - at_s < REFUSED_S)
            for step, at_s in self._refused_s.items()
        ):
            return exp(chosen * _STEP)
        return inf

    def look(self, instances: Sequence[Instance], now_s: float) -> None:
        """Chooses the target anew; called once per tick. O(instances x targets) once a second where requests were held back, else O(1)."""
        for step in self._refused:
            self._refused_s[step] = now_s
        self._refused.clear()
        if not self._refused_s or (self._chosen is not None and now_s < self._choose_s):
            return
        self._refused_s = {step: at_s for step, at_s in self._refused_s.items() if now_s - at_s < WATCHED_S}
        paces = [pace for instance in instances if instance.available and (pace := _Pace.of(instance)) is not None]
        self._chosen, self._choose_s = self._best(paces, now_s), now_s + CHOSEN_EVERY_S

    def _best(self, paces: Sequence[_Pace], now_s: float) -> int | None:
        rates = {step: rate.per_s(now_s) for step, rate in self._tokens.items()}
        counted = sum(rates.values())
        rates = {step: rate for step, rate in rates.items() if rate > _FORGOTTEN * counted}
        self._tokens = {step: self._tokens[step] for step in rates}
        best, most, asked, made_at_best = None, 0.0, 0.0, 0.0
        for step in sorted(rates, reverse=True):
            asked += rates[step] / counted * self._total.per_s(now_s)
            pace_ms = exp(step * _STEP) / OWN_MARGIN
            made = sum(pace.sequences_at(pace_ms) for pace in paces) / pace_ms * 1000.0
            in_time = min(IN_TIME * made, asked)
            # Of targets with which as much is in time, the strictest.
            if in_time > 0.0 and in_time >= most:
                best, most, made_at_best = step, in_time, made
        self.is_easy = asked <= EASY * made_at_best
        return best


def _step_of(entry: QueueEntry) -> int:
    return floor(log(min(_MOST_MS, max(_LEAST_MS, own_target_ms(entry)))) / _STEP)
