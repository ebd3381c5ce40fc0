"""Compares a replay of what ran with what happened. Pure and bounded."""

from collections import deque
from collections.abc import Sequence

import msgspec

from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.agents.meta.twin.replay import ReplayScenario, is_good
from hmas.controller.simulation import RequestRecord

CHECKED_MIN = 30
"""Fewest requests with a known end, or answers with a known speed, for a statement about either."""
ROUNDS = 8
"""Most replays that are combined: in a short replay few requests have a known end."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of one or several replays of what ran with what happened.

    Attributes:
        requests: Requests whose end is known, or that wait past their first token's deadline. `everyone`: all replayed requests.
        replayed, true: Share of `everyone` that had not missed a target by the end of the window, in the replay and in reality.
        answers: Answers whose time per token is known on both sides; `replayed_ms` and `true_ms` are the sums, in milliseconds.
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
        """Ratio of the true to the replayed mean time per token; 0 if too few answers are known."""
        return self.true_ms / self.replayed_ms if self.answers >= CHECKED_MIN and self.replayed_ms > 0.0 else 0.0


class Checks:
    """The newest checks; as many are combined as a statement needs."""

    def __init__(self) -> None:
        self._rounds: deque[Check] = deque(maxlen=ROUNDS)
        self._uncorrected: list[Check] = []

    def add(self, check: Check) -> float:
        """Adds a round. Returns the factor by which replays were too fast since the last result other than 0; 0 with too few answers."""
        self._rounds.append(check)
        self._uncorrected = [*self._uncorrected, check][-ROUNDS:]
        slower = _together(self._uncorrected).slower
        if slower > 0.0:
            self._uncorrected = []
        return slower

    def together(self) -> Check | None:
        """Combines as many of the newest rounds as needed; None if all kept rounds together are too few."""
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
    """Compares a replay of what ran with the real fate of the same requests, both as of the end of the window.

    A request that waits past its first token's deadline is a known miss. Counting only ended requests would make reality look too good when
    many wait: quick requests end first, and nothing is known of the waiting ones.
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
    """Whether it was not dispatched by `now_s` although its first token was due by then."""
    if record.queue_ms >= 0.0 and record.arrival_s + record.queue_ms / 1000.0 <= now_s:
        return False
    return record.arrival_s + one.believed.slo.ttft_ms / 1000.0 <= now_s
