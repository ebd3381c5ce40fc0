"""The instances that serve the same requests: which have a free slot, and how soon the best of them gives a first token."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hmas.controller.scheduling.instances.kv_fence import least_sequence_tokens
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

if TYPE_CHECKING:
    from hmas.controller.scheduling.instances.instance import Instance

_FEW = 8


class Least(NamedTuple):
    """What an instance has to hold to get a request: tokens of its KV cache, and tokens of context."""

    kv_tokens: int
    context: int


class InstanceGroup:
    """Some instances, in the order of the configuration. They report when they open or close, so that not all are asked: O(log n) each.

    Attributes:
        all: The instances.
        open: Those with a free slot. Callers may read this list, but not keep it.
    """

    __slots__ = ("_asked", "_fastest", "_numbers", "_places", "all", "open")

    def __init__(self, instances: Sequence["Instance"]) -> None:
        self.all = tuple(instances)
        self._places = {instance.name: place for place, instance in enumerate(self.all)}
        self.open = [instance for instance in self.all if instance.open]
        self._numbers = [self._places[instance.name] for instance in self.open]
        self._fastest: Instance | None = None
        self._asked = 0

    def turned(self, instance: "Instance", *, is_open: bool) -> None:
        """Records that an instance has opened or closed."""
        number = self._places[instance.name]
        place = bisect_left(self._numbers, number)
        known = place < len(self._numbers) and self._numbers[place] == number
        if is_open and not known:
            self._numbers.insert(place, number)
            self.open.insert(place, instance)
        elif known and not is_open:
            del self._numbers[place], self.open[place]

    def least_to_hold(self, entry: QueueEntry) -> Least:
        """What an instance has to hold to get the request: what it needs, or what the largest of those that may take it hold. O(instances).

        Its engine would refuse it for good elsewhere, or cut its answer short.
        """
        request, model = entry.request, entry.request.model
        kv_tokens, needed = least_sequence_tokens(request), request.context_needed
        if any(one.may_take(entry) and one.can_hold(model, kv_tokens, needed) for one in self.all):
            return Least(kv_tokens, needed)
        able = [one for one in self.all if one.may_take(entry)]
        fitting = [one for one in able if one.fence.fits(kv_tokens)]
        context = max((one.context.get(model, needed) for one in fitting or able), default=0)
        return Least(kv_tokens if fitting else 0, context)

    def fastest(self, entry: QueueEntry) -> Sequence["Instance"]:
        """All instances if they are few; if they are many, the one with the fastest prefill of such a prompt.

        Of many, the fastest is determined again only after as many calls as there are instances, so that a call costs O(1).
        """
        if len(self.all) <= _FEW:
            return self.all
        self._asked -= 1
        if self._fastest is None or self._asked <= 0:
            self._asked = len(self.all)
            self._fastest = min(self.all, key=lambda instance: instance.prefill_ms(entry))
        return (self._fastest,)

    def prefill_ms(self, entry: QueueEntry) -> float:
        """The shortest measured prefill time of such a prompt on any of them; the prediction if none has measured any."""
        return min((instance.prefill_ms(entry) for instance in self.fastest(entry)), default=entry.estimates.ttft_ms)

    def first_token_ms(self, entry: QueueEntry) -> float | None:
        """Time within which such a request's first token usually comes on the best of them, None if none has measured it."""
        shown = [took_ms for instance in self.fastest(entry) if (took_ms := instance.first_token_ms(entry)) is not None]
        return min(shown, default=None)
