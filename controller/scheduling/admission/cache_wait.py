"""Whether a request waits for the instance that has its prompt cached, while the TPOT guard refuses it there. Pure."""

from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.lateness import last_chance_ms
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


def waits_for_cache(entry: QueueEntry, cached_ms: float, other: Instance, cached_tokens: int | None, now_s: float) -> bool:
    """Whether the request waits rather than go to another instance, which would have to compute more of its prompt.

    It waits at most for as long as that would take longer there, so that it loses at most as much again; and no longer than it can while
    the other instance still meets its TTFT target. What is computed twice would delay the decoding requests of the other instance, too.

    Args:
        entry: The request.
        cached_ms: Its prefill where the guard has refused it.
        other: The other instance.
        cached_tokens: As `Choice.cached_tokens`, there.
        now_s: The time.
    """
    other_ms = other.prefill_ms(entry, cached_tokens)
    waited_ms = 1000.0 * (now_s - entry.request.arrival_s)
    spare_ms = 1000.0 * (entry.ttft_deadline_s - now_s) - other_ms
    return waited_ms < other_ms - cached_ms and not 0.0 <= spare_ms <= last_chance_ms(entry.estimates.slo.ttft_ms)
