"""Structures that have served their time, taken apart a few entries at a time."""

from controller.scheduling.queue_entry import QueuePolicy
from controller.scheduling.tenant_gate import Gate


class Retired:
    """What nobody asks any more. Dropping 100,000 entries at once holds the loop for as long as copying them does."""

    __slots__ = ("_structures",)

    def __init__(self) -> None:
        self._structures: list[QueuePolicy] = []

    def __bool__(self) -> bool:
        return bool(self._structures)

    def add(self, structure: QueuePolicy | None) -> None:
        """Takes one in; None is none."""
        if isinstance(structure, Gate):
            # Behind its gate an entry may not come out for reasons that count no more.
            self._structures += structure.parts()
        elif structure is not None:
            self._structures.append(structure)

    def take_apart(self, limit: int, now_s: float) -> None:
        """Takes `limit` entries out at most."""
        while self._structures and limit > 0:
            structure = self._structures[-1]
            while limit > 0 and structure.pop(now_s) is not None:
                limit -= 1
            if limit > 0:
                self._structures.pop()
