"""Detects lasting contradictions in the telemetry: signs of a stuck control loop or broken figures, not of high load. Pure."""

from hmas.controller.core.messages import InstanceView, SystemSnapshot

CONSERVATION = "conservation"
"""The gateway's counters do not add up: arrived is not queued + in flight + ended."""
STUCK = "stuck"
"""Requests wait, every engine that may take them is healthy and idle, and nothing is dispatched. For one that is down they may wait."""
LEAKED = "leaked"
"""An instance's window is full of requests that its engine does not have."""
FIGURES = "figures"
"""A figure is impossible: a negative count, a KV use above 1, a window below 1."""

HOLD_S = {CONSERVATION: 5.0, STUCK: 5.0, LEAKED: 10.0, FIGURES: 3.0}
"""How long each must last without interruption: a snapshot may catch a request between two states."""
CONSERVATION_SLACK = 2
"""Requests by which the counters may differ."""


class AnomalyWatch:
    """Tracks how long each contradiction has lasted."""

    def __init__(self) -> None:
        self._since_s: dict[tuple[str, str], float] = {}
        self._progress: tuple[int, int] = (-1, -1)
        # By instance: the requests that its engine did not have when its window was found to leak.
        self._leaked: dict[str, int] = {}

    def observe(self, snapshot: SystemSnapshot, at_s: float) -> list[str]:
        """Takes one snapshot and returns the contradictions that have lasted long enough, in alphabetical order."""
        progress = (snapshot.dispatched_total, sum(snapshot.ended.values()))
        moved = progress != self._progress
        self._progress = progress
        now = {
            (CONSERVATION, ""): abs(_gap(snapshot)) > CONSERVATION_SLACK,
            (STUCK, ""): not moved and _is_stuck(snapshot),
            (FIGURES, ""): not _is_possible(snapshot),
        }
        # A snapshot may catch a busy instance between two sequences; only the same instance in every snapshot leaks.
        now |= {(LEAKED, view.name): _is_leaking(view, at_s, self._leaked.get(view.name, 0)) for view in snapshot.instances}
        self._since_s = {what: min(at_s, self._since_s.get(what, at_s)) for what, holds in now.items() if holds}
        found = {what for what, since_s in self._since_s.items() if at_s - since_s >= HOLD_S[what[0]]}
        missing = {view.name: self._leaked.get(view.name, view.occupied) for view in snapshot.instances}
        self._leaked = {instance: missing[instance] for name, instance in found if name == LEAKED}
        return sorted({name for name, _ in found})

    def reset(self) -> None:
        """Resets the watch after a restart of the gateway."""
        self._since_s = {}
        self._progress = (-1, -1)
        self._leaked = {}


def _gap(snapshot: SystemSnapshot) -> int:
    in_flight = sum(view.in_flight for view in snapshot.instances)
    return snapshot.arrived_total - snapshot.queued - in_flight - sum(snapshot.ended.values())


def _is_stuck(snapshot: SystemSnapshot) -> bool:
    views = [view for view in snapshot.instances if view.queued_for > 0]
    return bool(views) and all(view.usable and view.in_flight == 0 for view in views)


def _is_leaking(view: InstanceView, at_s: float, leaked: int) -> bool:
    """Whether requests that its engine does not have fill the window, or where `leaked` did, are still there though the window is wider.

    The bypass opens all windows. If that ended the sign, it would end the bypass, and so on.
    """
    engine = view.engine
    # Only an engine that reports KV use also reports its sequences; the zeros of others mean nothing.
    if engine is None or engine.kv_usage is None or not engine.healthy or at_s - engine.taken_s > HOLD_S[LEAKED]:
        return False
    held = engine.running + engine.waiting
    return view.occupied - held >= leaked if leaked else view.queued_for > 0 and view.occupied >= view.n_run and held == 0


def _is_possible(snapshot: SystemSnapshot) -> bool:
    if min(snapshot.queued, snapshot.arrived_total, snapshot.dispatched_total) < 0:
        return False
    for view in snapshot.instances:
        usage = view.engine.kv_usage if view.engine is not None else None
        if view.in_flight < 0 or view.n_run < 1 or not 0.0 <= view.tpot_pressure < float("inf"):
            return False
        if usage is not None and not 0.0 <= usage <= 1.01:
            return False
    return True
