"""Laws that set an instance's window from the fast view: statera's own, AIMD, and none. Pure."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from hmas.agents.statera.model import StateraModel
from hmas.controller.core.messages import InstanceView, ShortView

TCP_BACK_OFF, CLIPPER_BACK_OFF = 0.5, 0.9
"""What a window is multiplied with on congestion: TCP's half (RFC 5681), Clipper's tenth (Crankshaw et al., NSDI 2017, section 4.3.1)."""
AIMD_PERIOD_S = 0.5
BACK_OFF_REST_S = 2.0
"""After one back-off the next waits so long, as TCP waits a round trip: what the first did has to be seen."""


class Law(Protocol):
    """Sets windows."""

    def observe(self, view: ShortView, now_s: float) -> Mapping[str, int]:
        """The windows that change, by instance."""
        ...


class Fixed:
    """The window that the run began with."""

    def observe(self, view: ShortView, now_s: float) -> Mapping[str, int]:  # noqa: ARG002 - part of the protocol
        """Nothing changes."""
        return {}


class Statera:
    """Statera's model as the product makes it."""

    def __init__(self, model: StateraModel | None = None) -> None:
        self.model = model or StateraModel()

    def observe(self, view: ShortView, now_s: float) -> Mapping[str, int]:
        """The windows of its actions."""
        return {action.instance: action.n_run for action in self.model.observe(view, now_s)}


class Aimd:
    """Additive increase while the window binds, multiplicative decrease while TPOT is beyond its target.

    Args:
        start: Window to begin with.
        back_off: Factor on congestion, below 1.
    """

    def __init__(self, start: int, back_off: float) -> None:
        self._start = start
        self._back_off = back_off
        self._windows: dict[str, float] = {}
        self._moved_s: dict[str, float] = {}
        self._backed_s: dict[str, float] = {}

    def observe(self, view: ShortView, now_s: float) -> Mapping[str, int]:
        """One request more each period while full, the back-off at once."""
        return {one.name: self._window(one, view.queued > 0, now_s) for one in view.instances}

    def _window(self, seen: InstanceView, waits: bool, now_s: float) -> int:
        name = seen.name
        window = self._windows.get(name, float(self._start))
        if seen.tpot_pressure > 1.0 and now_s - self._backed_s.get(name, float("-inf")) >= BACK_OFF_REST_S:
            window *= self._back_off
            self._backed_s[name] = now_s
        elif seen.tpot_pressure <= 1.0 and waits and now_s - self._moved_s.get(name, float("-inf")) >= AIMD_PERIOD_S:
            window += 1.0 if seen.in_flight >= int(window) else 0.0
            self._moved_s[name] = now_s
        self._windows[name] = max(1.0, min(float(seen.capacity_n_run), window))
        return int(self._windows[name])


class Delayed:
    """A law that gets its views later than they were made, as over a slow bus.

    Args:
        law: Who gets them.
        delay_s: How much later.
    """

    def __init__(self, law: Law, delay_s: float) -> None:
        self._law = law
        self._delay_s = delay_s
        self._under_way: deque[ShortView] = deque()

    def observe(self, view: ShortView, now_s: float) -> Mapping[str, int]:
        """Hands on what has been under way for long enough."""
        self._under_way.append(view)
        changed: dict[str, int] = {}
        while self._under_way and now_s - self._under_way[0].sent_s >= self._delay_s - 1e-9:
            changed |= self._law.observe(self._under_way.popleft(), now_s)
        return changed


LAWS: Mapping[str, Callable[[int], Law]] = {
    "statera": lambda _start: Statera(),
    "aimd-clipper": lambda start: Aimd(start, CLIPPER_BACK_OFF),
    "aimd-tcp": lambda start: Aimd(start, TCP_BACK_OFF),
    "fixed": lambda _start: Fixed(),
}
"""The laws by name, each made for the window that it starts from. The fixed one gets the best cap, the others 2 sqrt(ceiling)."""
