"""Structures that are no longer used, taken apart a few entries at a time."""

from itertools import islice

from hmas.controller.scheduling.policy_base.queue_entry import QueuePolicy


class DeferredCleanup:
    """Unused structures. Dropping 100,000 entries at once blocks the event loop for as long as copying them does."""

    __slots__ = ("_structures",)

    def __init__(self) -> None:
        self._structures: list[QueuePolicy] = []

    def __bool__(self) -> bool:
        return bool(self._structures)

    def add(self, structure: QueuePolicy | None) -> None:
        """Adds a structure; None is ignored."""
        if structure is not None:
            self._structures.append(structure)

    def take_apart(self, limit: int) -> None:
        """Removes at most `limit` entries."""
        if self._structures:
            structure = self._structures[-1]
            # Not by `pop`: a fair policy would keep an account of each.
            gone = [entry.request.id for entry in islice(structure.entries(), limit)]
            for request_id in gone:
                structure.discard(request_id)
            if len(gone) < limit:
                self._structures.pop()
