"""How evenly tenants were served recently, from the requests that have ended."""

from collections.abc import Callable, Iterable

from hmas.controller.core.fairness import Fairness, Service, fairness
from hmas.controller.core.messages import Completion

NEWEST = 1000
"""Most completions that are evaluated, which bounds the time to a few milliseconds."""


def recent_fairness(completions: Iterable[Completion], weight_of: Callable[[str], float]) -> Fairness:
    """Fairness over the newest completions; requests that still wait are not included."""
    newest = list(completions)[-NEWEST:]
    weights = {completion.tenant: weight_of(completion.tenant) for completion in newest}
    return fairness(map(_service, newest), weights)


def _service(completion: Completion) -> Service:
    end_s = completion.arrival_s + max(0.0, completion.total_ms) / 1000.0
    if completion.queue_ms < 0.0 or completion.output_tokens < 1:
        return Service(completion.tenant, completion.arrival_s, end_s, end_s, 0.0)
    start_s = completion.arrival_s + completion.queue_ms / 1000.0
    return Service(completion.tenant, completion.arrival_s, start_s, end_s, completion.prompt_tokens + completion.output_tokens)
