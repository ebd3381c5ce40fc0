"""How far a replay of what ran is from what happened. Pure and bounded."""

from collections import deque
from collections.abc import Sequence

import msgspec

from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.agents.meta.twin.replay import ReplayScenario, is_good
from hmas.controller.simulation import RequestRecord

CHECKED_MIN = 30
"""Requests of known end, or answers of known speed, without which nothing is said of either."""
ROUNDS = 8
"""Replays that are taken together, at most: where a replay's time is short, each sees but a few requests whose end is known."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Replays of what ran, one or several, held against what happened.

    Attributes:
        requests: Of which it is known that they have ended in truth, or wait in vain. `everyone`: all that were replayed.
        replayed, true: Share of everyone that had not missed their targets by the end of the window.
        answers: Whose time per token is known on both sides; `replayed_ms` and `true_ms` are its sums, in milliseconds.
    """

    requests: int
    everyone: int
    replayed: float
    true: float
    answers: int = 0
    replayed_ms: float = 0.0
    true_ms: float = 0.0

    @property
    def bias(self) -> float:
        """How much better the replay looks than what happened."""
        return self.replayed - self.true

    @property
    def slower(self) -> float:
        """How much longer a token took in truth, as a factor of means; 0 where too few are known."""
        return self.true_ms / self.replayed_ms if self.answers >= CHECKED_MIN and self.replayed_ms > 0.0 else 0.0


class Checks:
    """The newest checks, taken together until they say enough."""

    def __init__(self) -> None:
        self._rounds: deque[Check] = deque(maxlen=ROUNDS)
        self._uncorrected: list[Check] = []

    def add(self, check: Check) -> float:
        """Takes a round; the factor by which replays since the last answer other than 0 were too fast, 0 where too few are known."""
        self._rounds.append(check)
        self._uncorrected = [*self._uncorrected, check][-ROUNDS:]
        slower = _together(self._uncorrected).slower
        if slower > 0.0:
            self._uncorrected = []
        return slower

    def together(self) -> Check | None:
        """As many of the newest rounds as it takes; None where all that are kept do not say enough."""
        taken: list[Check] = []
        for check in reversed(self._rounds):
            taken.append(check)
            if sum(one.requests for one in taken) >= CHECKED_MIN:
                return _together(taken)
        return None


def _together(checks: Sequence[Check]) -> Check:
    everyone = sum(check.everyone for check in checks)
    most = max(1, everyone)
    return Check(
        requests=sum(check.requests for check in checks),
        everyone=everyone,
        replayed=sum(check.replayed * check.everyone for check in checks) / most,
        true=sum(check.true * check.everyone for check in checks) / most,
        answers=sum(check.answers for check in checks),
        replayed_ms=sum(check.replayed_ms for check in checks),
        true_ms=sum(check.true_ms for check in checks),
    )


def held_against_truth(world: ReplayScenario, records: Sequence[RequestRecord]) -> Check:
    """Compares a replay of what ran with how the same requests fared, both as they stood at the end of the window.

    Who waits in vain is a known miss. To ask only those that have ended would flatter the truth where many wait: the quick ones are known
    first, and who waits is not known at all.
    """
    of = {one.request.id: one for one in world.asked}
    missed, truly_missed, known = 0, world.overdue, world.overdue
    everyone = answers = 0
    replayed_ms = true_ms = 0.0
    for record in records:
        one = of[record.request_id]
        scored = record.arrival_s >= world.from_s
        if record.arrival_s >= world.until_s or (one.has_ended and (one.good is None or not scored)):
            continue
        everyone += 1
        ended = record.total_ms >= 0.0 and record.arrival_s + record.total_ms / 1000.0 <= world.until_s
        missed += not is_good(record) if ended else _waits_in_vain(record, one, world.until_s)
        if one.good is None:
            continue
        known += 1
        truly_missed += not one.good
        if record.tpot_ms > 0.0 and one.served_tpot_ms > 0.0:
            answers += 1
            replayed_ms += record.tpot_ms
            true_ms += one.served_tpot_ms
    most = max(1, everyone)
    return Check(
        requests=round(known),
        everyone=everyone,
        replayed=1.0 - missed / most,
        true=max(0.0, 1.0 - truly_missed / most),
        answers=answers,
        replayed_ms=replayed_ms,
        true_ms=true_ms,
    )


def _waits_in_vain(record: RequestRecord, one: PastRequest, now_s: float) -> bool:
    """Whether it was not sent by a moment at which it should have had its first token."""
    if record.queue_ms >= 0.0 and record.arrival_s + record.queue_ms / 1000.0 <= now_s:
        return False
    return record.arrival_s + one.believed.slo.ttft_ms / 1000.0 <= now_s
