"""Chooses the instances in turn."""

from collections.abc import Sequence
from typing import ClassVar

from hmas.controller.core.placement import Choice, InstanceState, Routable


class RoundRobin:
    """Chooses the next name, in alphabetical order, after the last one; instances that cannot take the request are passed over."""

    name: ClassVar[str] = "round-robin"

    def __init__(self) -> None:
        self._last = ""

    def choose(self, entry: Routable, instances: Sequence[InstanceState]) -> Choice | None:  # noqa: ARG002  the protocol's argument
        """The next of `instances` in turn, None if there are none."""
        if not instances:
            return None
        names = [instance.name for instance in instances]
        chosen = min((name for name in names if name > self._last), default="") or min(names)
        self._last = chosen
        return Choice(chosen, f"next of {len(names)} in turn")
