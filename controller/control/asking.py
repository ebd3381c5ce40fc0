"""Which requests perception and prediction are asked about: those whose answers can change an order, and a sample of the others. Pure."""

from hmas.controller.control.estimates import Declared
from hmas.controller.core.types import Estimates
from hmas.controller.scheduling.admission.token_bucket import TokenBucket

KNOWN_RATIO = 1.5
"""The output length of a request counts as known if its upper length is at most this multiple of the expected one."""


class Asking:
    """Chooses the requests whose notices are posted to the agents.

    What the agents answer orders the queue and books room for what waits. A request that is sent at once needs neither (H-MAS E.4 masks
    the agents' latency in the same way). A request whose targets are declared and whose length is known by the history or by the client's
    cap has nothing to be asked about. To read a prompt takes processor time, which an engine on the same machine may need. A sample of
    these requests, at most `sample_rps` a second, still tells the agents what the traffic is like, and lets them learn from its answers.
    """

    def __init__(self, *, all_requests: bool, sample_rps: float, now_s: float) -> None:
        self.all_requests = all_requests
        self._sample = TokenBucket(max(1.0, sample_rps), sample_rps, now_s) if sample_rps > 0.0 else None

    def wants(self, estimates: Estimates, declared: Declared, now_s: float, *, waits: bool) -> bool:
        """Whether the agents are asked about a request that has just arrived, with the history's estimates. `waits`: not sent at once."""
        if self.all_requests or (waits and not _is_known(estimates, declared)):
            return True
        if self._sample is None or self._sample.level(now_s) < 1.0:
            return False
        self._sample.take(1.0, now_s)
        return True


def _is_known(estimates: Estimates, declared: Declared) -> bool:
    both = declared.ttft_ms is not None and declared.tpot_ms is not None
    return both and estimates.output_tokens_upper <= KNOWN_RATIO * estimates.output_tokens
