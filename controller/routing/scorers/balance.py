"""The scorers of HexGen-Flow's workload-balanced dispatch (Eq. 2 to 4)."""

from collections.abc import Sequence
from typing import ClassVar

from hmas.controller.core.placement import InstanceState, Routable
from hmas.controller.core.types import Request
from hmas.controller.routing.scorers.load import times_alone

NO_WORK = (0, 0.0)
"""Requests in flight and their work, milliseconds."""


def alone_ms(entry: Routable, instances: Sequence[InstanceState]) -> list[float]:
    """Eq. 2: how long the request takes on each instance without any load, milliseconds: its prompt and its predicted output."""
    output = entry.estimates.output_tokens
    return [prompt_ms + output * token_ms for prompt_ms, token_ms in zip(*times_alone(entry, instances), strict=True)]


class Alone:
    """The second term of Eq. 4, -t_comp over the longest t_comp of the instances: how much sooner it ends there without any load."""

    name: ClassVar[str] = "alone"
    summary: ClassVar[str] = "short time for the request without load, as predicted for it or at measured speeds"
    uses_times_alone: ClassVar[bool] = True

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:  # noqa: ARG002  the contract's
        """See `Scorer.score`."""
        times = alone_ms(entry, instances)
        longest = max(times)
        return [1.0 - time / longest for time in times]


class Backlog:
    """The first term of Eq. 4, 1 / (1 + t_queue / T) with the longest t_comp of the instances as T.

    The paper's beta / t_queue is infinite on an idle instance, and its beta has a unit and no value. t_queue (Eq. 3) is the sum of t_comp
    of the requests that were sent to the instance and have not ended, over its window: an engine serves so many at once, and the serial sum
    of the paper overstates the wait. A failed health check changes nothing: streams may go on, and those that fail end.
    """

    name: ClassVar[str] = "backlog"
    summary: ClassVar[str] = "little predicted work in flight, by the times of its requests without load"
    uses_times_alone: ClassVar[bool] = True

    def __init__(self) -> None:
        self._sent: dict[str, tuple[str, float]] = {}
        self._work: dict[str, tuple[int, float]] = {}
        self._for: object = None
        self._times: dict[str, float] = {}

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:  # noqa: ARG002  likewise
        """See `Scorer.score`."""
        times = alone_ms(entry, instances)
        self._for, self._times = entry.request, {one.name: time for one, time in zip(instances, times, strict=True)}
        longest = max(times)
        return [1.0 / (1.0 + self._work.get(one.name, NO_WORK)[1] / one.routing_window / longest) for one in instances]

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:  # noqa: ARG002  likewise
        """Its work is the instance's until it ends; one that was the only candidate has not been scored, and counts as the mean."""
        time = self._times.get(instance) if self._for is entry.request else None
        if time is None:
            time = sum(one for _, one in self._sent.values()) / len(self._sent) if self._sent else 0.0
        self._sent[entry.request.id] = (instance, time)
        count, work_ms = self._work.get(instance, NO_WORK)
        self._work[instance] = (count + 1, work_ms + time)

    def ended(self, request: Request, instance: str, cached_tokens: int | None) -> None:  # noqa: ARG002  likewise
        """Its work is done or gone."""
        was, time = self._sent.pop(request.id, ("", 0.0))
        count, work_ms = self._work.pop(was, NO_WORK)
        if count > 1:
            # An instance without requests in flight has no work left, whatever the sums of floats say.
            self._work[was] = (count - 1, max(0.0, work_ms - time))
