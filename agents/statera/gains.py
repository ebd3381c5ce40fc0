"""Gains of statera's outer loop, derived from what is known of the plant. Pure. The argument is written out in docs/statera.md.

Around its operating point log u follows log n with the elasticity k = b n / (a + b n) of the affine plant, after a delay: under integral
control the open loop is K k exp(-s delay) / s, with the phase margin pi / 2 - K k delay and the gain margin pi / (2 K k delay). A closed
loop whose time constant is the delay (Skogestad's SIMC rule, 2003, an IMC tuning) has K = 1 / (2 k delay): 61 degrees and a factor of 3.14,
whatever the plant.
"""

import math

import msgspec

VIEWS = 8
"""W of Algorithm 2: views over which the outer loop averages its error."""
MEMORY_REQUESTS = 50.0
"""Mean age, in requests, of what the fitted law stands on (its weights fade by 0.99 with each)."""
K_MIN = 0.1
"""Least elasticity that is believed: a nearly flat plant is not a licence for any gain."""

FASTEST_PER_S = 10.0
"""Largest gain; the limits of how fast a window may move are far below."""


class Gains(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the loops are run with. The defaults are those of `derive` for the steepest plant, k = 1, a delay of 2.5 s and a memory of 16 s.

    Attributes:
        fall_per_s: Integral gain downwards on log n, cold. `rise_per_s`: upwards, half of it: what one too many costs is a target,
            what one too few costs is half a second.
        trim_per_s: Gain of the trim around the model's window, half of the bound, as the model moves the same window.
        lead_s: Time constant with which the window moves to the model's.
    """

    rise_per_s: float = 0.1
    fall_per_s: float = 0.2
    trim_per_s: float = 0.1
    lead_s: float = 16.0

    def held_to(self, delay_s: float) -> "Gains":
        """The same where they are safe on the steepest plant with this delay (k = 1), else those that are."""
        fall = 1.0 / (2.0 * max(1e-3, delay_s))
        return Gains(
            rise_per_s=min(self.rise_per_s, fall / 2.0),
            fall_per_s=min(self.fall_per_s, fall),
            trim_per_s=min(self.trim_per_s, fall / 2.0),
            lead_s=self.lead_s,
        )

    def problem(self) -> str:
        """What is wrong with the values, in words; empty where nothing is."""
        ranges = {
            "rise_per_s": (1e-3, FASTEST_PER_S),
            "fall_per_s": (1e-3, FASTEST_PER_S),
            "trim_per_s": (0.0, FASTEST_PER_S),
            "lead_s": (0.1, 3600.0),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                return f"{name} is {value:g}; allowed: {low:g} to {high:g}"
        return ""


VIEW_S, TRANSPORT_S, PERIOD_S = 0.2, 0.05, 0.5
"""From one view to the next, how old a view is when it arrives, and the least time between two actions, as configured by default."""


def delay_s(decode_s: float, view_s: float = VIEW_S, transport_s: float = TRANSPORT_S, period_s: float = PERIOD_S) -> float:
    """Dead time of the measured pressure where an answer decodes for `decode_s`.

    Averaging over W views is late by half of them, holding an action by half a period, and the TPOT so far of requests in flight, which
    are half through on the average, tells of half of that time ago.
    """
    return VIEWS * view_s / 2.0 + view_s / 2.0 + transport_s + period_s / 2.0 + decode_s / 2.0


class PlantFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An identified plant: tpot(n) = base_ms + slope_ms n, and how late one sees what it does.

    Attributes:
        n_run: Concurrency at which the gains are to hold: where TPOT meets its target, or the highest that was measured.
        view_s: From one view to the next. `transport_s`: how old a view is when it arrives. `period_s`: least time between two actions.
        decode_s: How long an answer decodes at that concurrency.
        service_s: How long it takes in all. `rps`: requests per second that the engine completes there.
    """

    base_ms: float
    slope_ms: float
    n_run: float
    decode_s: float
    service_s: float
    rps: float
    view_s: float = VIEW_S
    transport_s: float = TRANSPORT_S
    period_s: float = PERIOD_S

    @property
    def elasticity(self) -> float:
        """The elasticity k = d log tpot / d log n at `n_run`, 0 to 1."""
        rise = self.slope_ms * self.n_run
        return rise / (self.base_ms + rise) if rise > 0.0 else 0.0

    @property
    def delay_s(self) -> float:
        """Dead time of the measured pressure."""
        return delay_s(self.decode_s, self.view_s, self.transport_s, self.period_s)

    @property
    def memory_s(self) -> float:
        """How old what the fitted law knows is: one answer, and the requests that it stands on."""
        return self.service_s + MEMORY_REQUESTS / max(1e-3, self.rps)


def derive(plant: PlantFit) -> Gains:
    """Gains with a phase margin of 61 degrees and a gain margin of 3.14 on this plant, or more where it is very fast."""
    fall = min(FASTEST_PER_S, 1.0 / (2.0 * max(K_MIN, plant.elasticity) * plant.delay_s))
    return Gains(rise_per_s=fall / 2.0, fall_per_s=fall, trim_per_s=fall / 2.0, lead_s=min(3600.0, max(0.1, plant.memory_s)))


class Margins(msgspec.Struct, frozen=True):
    """How far a loop is from the edge of stability.

    Attributes:
        phase_deg: Phase margin of the loop with the larger gain, degrees; instability at 0.
        gain: Factor by which gain, slope or delay may grow before it oscillates.
    """

    phase_deg: float
    gain: float


def margins(gains: Gains, plant: PlantFit) -> Margins:
    """Margins of these gains on a plant. The delay is that of the plant, its elasticity the one at `n_run`."""
    lag = max(gains.rise_per_s, gains.fall_per_s, gains.trim_per_s) * plant.elasticity * plant.delay_s
    return Margins(phase_deg=90.0 - math.degrees(lag), gain=math.pi / (2.0 * lag) if lag > 0.0 else math.inf)
