"""Statera's own last actions from before a restart, at which windows resume. Pure and bounded."""

from hmas.controller.core.messages import ControlAction

ACTION_FRESH_S = 120.0
"""Age above which statera does not resume its own last action: the load it was made for has passed."""
INSTANCES_MOST = 4_096


class RestoredActions:
    """The newest action of each instance, until the instance is met."""

    def __init__(self) -> None:
        self._of: dict[str, ControlAction] = {}

    def add(self, action: ControlAction) -> None:
        """Keeps an action; it replaces an earlier one of its instance."""
        self._of[action.instance] = action
        while len(self._of) > INSTANCES_MOST:
            del self._of[next(iter(self._of))]

    def take(self, instance: str, now_s: float) -> ControlAction | None:
        """Returns an instance's action, once: one that leaves and returns later has another load. None without one, or if it is old."""
        action = self._of.pop(instance, None)
        return action if action is not None and now_s - action.sent_s <= ACTION_FRESH_S else None
