"""Says what follows from a comparison: a better model in shadow mode is reported or activated, one that is no better leaves."""

from collections.abc import Callable
from functools import partial
from math import inf

from hmas.agents.model_store.comparison import Verdict
from hmas.agents.model_store.store import ModelStore


class Promotion:
    """What becomes of the model in shadow mode of one kind.

    Args:
        store: Where its choice is written. `kind`: its kind there.
        loss: What the comparison is about, in words.
        is_auto: Whether a better model is activated without an operator.
        pairs_most: Compared requests after which a model that is no better leaves the shadow.

    Attributes:
        chosen: The active model by the store's choice, as the agent has last read it. A choice that has changed since stays.
    """

    def __init__(self, store: ModelStore, kind: str, loss: str, *, is_auto: bool, pairs_most: float = inf) -> None:
        self._store, self._kind, self._loss = store, kind, loss
        self._is_auto, self._pairs_most = is_auto, pairs_most
        self.chosen = ""
        self.restart()

    def restart(self) -> None:
        """Drops what was found before: another comparison begins."""
        self._told: set[str] = set()
        self._due: Callable[[], None] | None = None

    def judge(self, active: str, shadow: str, verdict: Verdict) -> tuple[str, str, str, str] | None:
        """Takes a verdict; returns the event to post: its kind, the models before and after, and the reason. Each is posted once."""
        is_better = verdict.better or "model_promoted" in self._told
        if not is_better and verdict.pairs < self._pairs_most:
            return None
        if self._is_auto or not is_better:
            # This is repeated for as long as it is the shadow, because the store may have failed to write the choice.
            self._due = partial(self._store.settle_shadow, self._kind, shadow, self.chosen, use=is_better)
        kind = "model_shadow_ended" if not is_better else "model_promoted" if self._is_auto else "model_better"
        if kind in self._told:
            return None
        self._told.add(kind)
        if not is_better:
            return kind, shadow, "", f"no better than {active} on {verdict.pairs} requests"
        figures = f"its {self._loss} is {verdict.gain:.1%} lower on {verdict.pairs} requests (evidence {verdict.evidence:.1f})"
        how = "" if self._is_auto else f"; `hmas models use {self._kind} {shadow}` takes it"
        return kind, active, shadow, figures + how

    def due(self) -> Callable[[], None] | None:
        """Returns what is to be written to the store, once; it raises `ModelError` if that fails. None for nothing."""
        due, self._due = self._due, None
        return due
