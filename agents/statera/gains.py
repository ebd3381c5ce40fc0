"""Derives the gains of statera's outer loop from the plant. Pure. docs/statera.md gives the full derivation.

Around its operating point log u follows log n with the elasticity k = b n / (a + b n) of the affine plant, after a delay. Under integral
control the open loop is K k exp(-s delay) / s, with the phase margin pi / 2 - K k delay and the gain margin pi / (2 K k delay). A closed
loop whose time constant is the delay (Skogestad's SIMC rule, 2003, an IMC tuning) has K = 1 / (2 k delay): 61 degrees and a factor of 3.14,
for any plant.
"""

import math

import msgspec

VIEWS = 8
"""W of Algorithm 2: number of views over which the outer loop averages its error."""
MEMORY_REQUESTS = 50.0
"""Mean age, in requests, of the data behind the fitted law (its weights fade by 0.99 with each request)."""
K_MIN = 0.1
"""Smallest elasticity that is used: a nearly flat plant does not justify an arbitrary gain."""

FASTEST_PER_S = 10.0
"""Largest gain; the rate limits of a window are far below it."""


class Gains(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gains of the loops. The defaults are those of `derive` for the steepest plant, k = 1, a delay of 2.5 s and a memory of 16 s.

    Attributes:
        fall_per_s: Integral gain downwards on log n without a target. `rise_per_s`: upwards, half of it: one request too many costs a
            target, one too few costs half a second.
        trim_per_s: Gain of the trim around the model's window: half of the bound, because the model moves the same window.
        lead_s: Time constant with which the window moves to the model's.
    """

    rise_per_s: float = 0.1
    fall_per_s: float = 0.2
    trim_per_s: float = 0.1
    lead_s: float = 16.0

    def held_to(self, delay_s: float) -> "Gains":
        """Returns gains that are safe on the steepest plant (k = 1) with this delay: the same, lowered where necessary."""
        fall = 1.0 / (2.0 * max(1e-3, delay_s))
        return Gains(
            rise_per_s=min(self.rise_per_s, fall / 2.0),
            fall_per_s=min(self.fall_per_s, fall),
            trim_per_s=min(self.trim_per_s, fall / 2.0),
            lead_s=self.lead_s,
        )

    def problem(self) -> str:
        """Describes what is wrong with the values; empty if nothing is."""
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
"""Time between two views, age of a view on arrival, and shortest time between two actions, all as configured by default."""


def delay_s(decode_s: float, view_s: float = VIEW_S, transport_s: float = TRANSPORT_S, period_s: float = PERIOD_S) -> float:
    """Returns the dead time of the measured pressure if an answer decodes for `decode_s`.

    Averaging over W views delays by half of their span, and holding an action by half a period. Requests in flight are on average half
    through, so their TPOT so far lags by half of that time.
    """
    return VIEWS * view_s / 2.0 + view_s / 2.0 + transport_s + period_s / 2.0 + decode_s / 2.0


class PlantFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An identified plant: tpot(n) = base_ms + slope_ms n, and its delays.

    Attributes:
        n_run: Concurrency for which the gains are meant: where TPOT meets its target, or the highest measured.
        view_s: Time between two views. `transport_s`: age of a view on arrival. `period_s`: shortest time between two actions.
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
        """Age of the fitted law's data: one answer, plus the requests behind the law."""
        return self.service_s + MEMORY_REQUESTS / max(1e-3, self.rps)


def derive(plant: PlantFit) -> Gains:
    """Returns gains with a phase margin of 61 degrees and a gain margin of 3.14 on this plant, or more if it is very fast."""
    fall = min(FASTEST_PER_S, 1.0 / (2.0 * max(K_MIN, plant.elasticity) * plant.delay_s))
    return Gains(rise_per_s=fall / 2.0, fall_per_s=fall, trim_per_s=fall / 2.0, lead_s=min(3600.0, max(0.1, plant.memory_s)))


class Margins(msgspec.Struct, frozen=True):
    """A loop's distance from instability.

    Attributes:
        phase_deg: Phase margin of the loop with the larger gain in degrees; the loop is unstable at 0.
        gain: Factor by which gain, slope or delay may grow before the loop oscillates.
    """

    phase_deg: float
    gain: float


def margins(gains: Gains, plant: PlantFit) -> Margins:
    """Returns the margins of these gains on a plant, with the plant's delay and its elasticity at `n_run`."""
    lag = max(gains.rise_per_s, gains.fall_per_s, gains.trim_per_s) * plant.elasticity * plant.delay_s
    return Margins(phase_deg=90.0 - math.degrees(lag), gain=math.pi / (2.0 * lag) if lag > 0.0 else math.inf)
