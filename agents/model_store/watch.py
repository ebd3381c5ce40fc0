"""Notices that another model was activated, with at most one disk access every few seconds."""

from hmas.agents.model_store.store import ModelStore

LOOK_EVERY_S = 2.0


class ModelWatch:
    """Looks at a kind's choice in a store; one look is one `stat`.

    Args:
        store: The store.
        kind: The kind.
    """

    def __init__(self, store: ModelStore, kind: str) -> None:
        self._store = store
        self._kind = kind
        self._seen: tuple[int, int, int] | None = None
        self._looked_s = float("-inf")

    def changed(self, now_s: float) -> bool:
        """Whether the choice has changed since it was last recorded here; False between looks."""
        if now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        stamp = self._store.stamp(self._kind)
        changed = stamp != self._seen
        self._seen = stamp
        return changed

    def note(self) -> None:
        """Records the present choice; call it before reading the choice, so that a change in between is noticed."""
        self._seen = self._store.stamp(self._kind)
