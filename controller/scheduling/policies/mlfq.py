"""Multi-level feedback queues over sessions."""

from bisect import bisect_right
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import (
    ARRIVAL,
    OUTPUT_LENGTH,
    PRIORITY,
    PROMPT_LENGTH,
    SERVED_TOKENS,
    SESSION,
    TENANT,
    WEIGHT,
    Signal,
    mypyc_attr,
)
from hmas.controller.scheduling.policy_base.flow import Flow, by_session, tokens_of
from hmas.controller.scheduling.policy_base.flow_policy import FlowPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.recall import Charge

LEVELS = 5


@mypyc_attr(allow_interpreted_subclasses=True)
class Mlfq(FlowPolicy):
    """Sessions sink through levels by the service they have had, and a periodic boost lifts all of them again (Corbato et al., 1962).

    A session starts on the top level and sinks when its tokens (prompt and output, over its weight) fill the level's quantum, which doubles
    from level to level; one long request can take it down several levels. The highest level with waiting requests goes first; within a
    level, sessions take turns. As a gateway cannot take a request back, the service counts for the session over all its requests, not for a
    single request. A dispatch is charged its predicted length and corrected by the true one at the end, so a level reflects what was really
    used.

    Every `boost_s` seconds all accounts are cleared: the sessions that wait then move to the top level in their current order, before all
    that come later.

    Parameters: `quantum_tokens`: quantum of the top level; `boost_s`: seconds between boosts; `by`: 1 for sessions (within their tenant; a
    request without a session counts for its tenant), 0 for tenants.
    """

    name: ClassVar[str] = "mlfq"
    summary: ClassVar[str] = (
        "sessions sink by the tokens they have used, boosted at intervals; new and light ones first, with lengths unknown"
    )
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({"quantum_tokens": 2048.0, "boost_s": 30.0, "by": 1.0})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType(
        {"quantum_tokens": (16.0, 1_000_000.0), "boost_s": (0.1, 3600.0), "by": (0.0, 1.0)}
    )
    signals: ClassVar[tuple[Signal, ...]] = (SESSION, TENANT, WEIGHT, PROMPT_LENGTH, OUTPUT_LENGTH, SERVED_TOKENS, PRIORITY, ARRIVAL)
    starvation: ClassVar[str] = "none: a flow waits for the next boost, boost_s at most, and for one turn of each flow then waiting"
    complexity: ClassVar[str] = "push, pop O(log n + log f), re-key, removal and boost O(1)"
    source: ClassVar[str] = "Corbato et al. 1962; boost as in Arpaci-Dusseau, Three Easy Pieces, chapter 8; H-MAS 3.5 and C.2"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters, sessions=by_session(parameters))
        self._boost_s = parameters["boost_s"]
        self._ends = [parameters["quantum_tokens"] * (2 ** (level + 1) - 1) for level in range(LEVELS - 1)]
        self._turn = 0

    def level(self, used: float) -> int:
        """The level of a flow that has used `used` tokens since the last boost; 0 is the top."""
        return bisect_right(self._ends, used)

    def _cost(self, entry: QueueEntry, output_tokens: float) -> float:
        return tokens_of(entry, output_tokens)

    def _wake(self, flow: Flow, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the base's arguments
        self._line_up(flow, 0.0, now_s)

    def _take(self, flow: Flow, amount: float, now_s: float) -> None:
        self._line_up(flow, amount, now_s)

    def _served(self, charge: Charge, now_s: float) -> None:
        self._take(charge.flow, charge.amount, now_s)

    def _correct(self, flow: Flow, charge: Charge, more: float, now_s: float) -> None:
        boosts = self._boosts(now_s)
        if flow.tag // LEVELS == boosts == charge.after[0] // LEVELS:  # charges from before the last boost are dropped
            flow.used += more
            flow.tag = boosts * LEVELS + self.level(flow.used)

    def _stand(self, flow: Flow, first: QueueEntry, seq: int) -> None:  # noqa: ARG002  the base's arguments
        self._turns.stand(flow, flow.turn)

    def _line_up(self, flow: Flow, more: float, now_s: float) -> None:
        """Adds to what the flow has used and puts it at the end of its level.

        The higher part of a tag is the number of boosts so far. So flows placed before the last boost come before all flows placed since,
        in the order they had: this is what lifts them to the top level.
        """
        boosts = self._boosts(now_s)
        flow.used = more + (flow.used if boosts == flow.tag // LEVELS else 0.0)
        flow.tag = boosts * LEVELS + self.level(flow.used)
        self._turn += 1
        flow.turn = self._turn

    def _boosts(self, now_s: float) -> float:
        """Number of boosts up to now; it never falls."""
        self._clock = max(self._clock, now_s // self._boost_s)
        return self._clock
