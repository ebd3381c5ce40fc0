"""Statera's actions in a run, condensed to the active window and guard factor, second by second."""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from hmas.controller.core.messages import ControlAction
from hmas.controller.core.statistics.quantiles import percentile

LOW, MIDDLE, HIGH = 10, 50, 90


class InForce(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles over the seconds of a span."""

    p10: float
    p50: float
    p90: float


class Controls(msgspec.Struct, frozen=True, kw_only=True):
    """Controls over all instances together.

    Attributes:
        n_run: Window of an instance. `guard`: guard factor.
    """

    n_run: InForce
    guard: InForce


def controls_of(actions: Sequence[ControlAction], *, from_s: float, to_s: float) -> Controls | None:
    """Condenses actions by the times of their `sent_s`. None if none was sent before the span's end."""
    by_instance: dict[str, list[ControlAction]] = {}
    for action in sorted(actions, key=lambda a: a.sent_s):
        by_instance.setdefault(action.instance, []).append(action)
    held: list[ControlAction] = []
    for of_one in by_instance.values():
        times = [action.sent_s for action in of_one]
        places = [bisect_right(times, from_s + second) - 1 for second in range(int(to_s - from_s) + 1)]
        held += [of_one[place] for place in places if place >= 0]
    if not held:
        return None
    return Controls(n_run=_in_force([float(a.n_run) for a in held]), guard=_in_force([a.guard for a in held]))


def _in_force(values: Sequence[float]) -> InForce:
    ordered = sorted(values)
    return InForce(p10=percentile(ordered, LOW), p50=percentile(ordered, MIDDLE), p90=percentile(ordered, HIGH))
