"""Builds a replay's initial state: running and queued requests, as requests that arrive at its very start. Pure.

Telemetry reports a request's end, and only then its dispatch time. Of the requests that are still open, the gateway counts how many wait
although their first token is due; the others of that age must be running.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from msgspec.structs import replace

from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.controller.core.types import Slo


@dataclass(frozen=True, slots=True)
class Open:
    """The state of the requests that have not ended at a given time.

    Attributes:
        running: Share of them that runs on an engine.
        late_from_s, late_until_s: Of the requests whose first token is due, those that arrived in between run; the others still wait.
    """

    running: float = 0.0
    late_from_s: float = inf
    late_until_s: float = inf

    def runs(self, one: PastRequest) -> bool:
        """Whether a request whose first token is due runs."""
        return self.late_from_s < one.request.arrival_s < self.late_until_s


def open_of(there: Iterable[PastRequest], now_s: float, *, in_flight: int, overdue: int, makes_way: bool) -> Open:
    """Estimates the state of the open requests.

    Args:
        there: Requests that had arrived and not ended at `now_s`, by arrival.
        now_s: Time of the last snapshot.
        in_flight: Number of running requests.
        overdue: Number of requests that wait although their first token is due.
        makes_way: Whether overdue requests let all others go first; then the waiting ones are the oldest whose first token is due, else
            the newest.
    """
    opened = [one for one in there if not one.has_ended]
    running = min(1.0, in_flight / max(1, len(opened)))
    late = [one.request.arrival_s for one in opened if _is_due(one, now_s)]
    waiting = min(overdue, len(late))
    if not waiting:
        return Open(running=running, late_from_s=-inf)
    if makes_way:
        return Open(running=running, late_from_s=late[waiting - 1])
    return Open(running=running, late_from_s=-inf, late_until_s=late[-waiting])


def carried(there: Sequence[PastRequest], start_s: float, most: int, still: Open) -> tuple[list[PastRequest], int]:
    """Returns what is left of the open requests when a replay begins: first those that ran, then those that waited, by arrival.

    A waiting request keeps the time that was left to its target; a running one keeps the tokens that were left to generate.

    Args:
        there: Requests that had arrived and not ended by then, by arrival.
        start_s: Start of the replay.
        most: Most requests returned; running ones have priority, then the newest waiting ones, because old ones are served last.
        still: State of the requests that are still open now.

    Returns:
        The requests, and how many open ones are left out.
    """
    ran: list[PastRequest] = []
    waited: list[PastRequest] = []
    for one in there:
        (ran if _ran(one, start_s, still) else waited).append(one)
    ran = ran[-most:]
    kept = waited[max(0, len(ran) + len(waited) - most) :]
    left_out = sum(not one.has_ended for one in there) - sum(not one.has_ended for one in (*ran, *kept))
    return [*(_running(one, start_s) for one in ran), *(_waiting(one, start_s) for one in kept)], left_out


def _is_due(one: PastRequest, now_s: float) -> bool:
    return one.request.arrival_s + one.believed.slo.ttft_ms / 1000.0 <= now_s


def _ran(one: PastRequest, start_s: float, still: Open) -> bool:
    """Whether it was probably dispatched by then."""
    return one.dispatched_s <= start_s if one.has_ended else _is_due(one, start_s) and still.runs(one)


def _running(one: PastRequest, start_s: float) -> PastRequest:
    span_s = one.ended_s - one.dispatched_s
    left = (one.ended_s - start_s) / span_s if isfinite(span_s) and span_s > 0.0 else 0.5
    tokens = max(1, round(left * one.output_tokens))
    # Its prompt has been computed; the KV blocks that it holds for the prompt are left out.
    request = replace(one.request, prompt_tokens=1, arrival_s=start_s)
    return replace(one, request=request, believed=replace(one.believed, output_tokens=float(tokens)), output_tokens=tokens, good=None)


def _waiting(one: PastRequest, start_s: float) -> PastRequest:
    slo = one.believed.slo
    left_ms = max(1.0, slo.ttft_ms - 1000.0 * (start_s - one.request.arrival_s))
    believed = replace(one.believed, slo=Slo(ttft_ms=left_ms, tpot_ms=slo.tpot_ms))
    return replace(one, request=replace(one.request, arrival_s=start_s), believed=believed, good=None)
