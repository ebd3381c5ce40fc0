"""Notices that another model was put in force, without asking the disk more often than every few seconds."""

from hmas.agents.model_store.store import ModelStore

LOOK_EVERY_S = 2.0


class ModelWatch:
    """Looks at a kind's choice in a store; one look is one `stat`.

    Args:
        store: Where it lies.
        kind: Which.
    """

    def __init__(self, store: ModelStore, kind: str) -> None:
        self._store = store
        self._kind = kind
        self._seen: tuple[int, int, int] | None = None
        self._looked_s = float("-inf")

    def changed(self, now_s: float) -> bool:
        """Whether the choice is another one than when it was last taken note of here; False in between looks."""
        if now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        stamp = self._store.stamp(self._kind)
        changed = stamp != self._seen
        self._seen = stamp
        return changed

    def note(self) -> None:
        """Takes note of the choice as it stands; called before it is read, so that a change in between is seen."""
        self._seen = self._store.stamp(self._kind)
