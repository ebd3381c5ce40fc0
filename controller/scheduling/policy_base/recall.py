"""Notes of a policy about the entries it handed out, so that a pop can be undone and a charge corrected."""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Recall(Generic[T]):
    """Notes on the last pops, by request id; the oldest are forgotten first.

    Once its pop is forgotten, an entry counts as new when it is put back, and keeps its charge when it ends.
    """

    __slots__ = ("_keep", "_notes")

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._notes: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._notes)

    def note(self, request_id: str, note: T) -> None:
        """Remembers a pop."""
        notes = self._notes
        notes[request_id] = note
        if len(notes) > self._keep:
            notes.popitem(last=False)

    def take(self, request_id: str) -> T | None:
        """Removes the note of a pop and returns it, None if there is none."""
        return self._notes.pop(request_id, None)
