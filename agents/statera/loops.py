"""The outer regulator of one instance: its window. Pure. docs/statera.md has the law and its stability; `budgets` has the inner loop.

It acts on the band error of Algorithm 2 (C), e = u - clip(u, [u_low, u_high]), and on log n, where a step is a factor. For an affine plant
tpot = a + b n with a, b >= 0 the elasticity of u with respect to n, b n / (a + b n), lies between 0 and 1: multiplying n by less than
u_low / u never carries u past u_low. A gain that is safe on the steepest such plant is therefore safe on all of them.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from hmas.agents.statera.gains import VIEWS, Gains
from hmas.agents.statera.target import Target

OPEN_FACTOR_PER_S = 1.25
"""Factor by which a full window opens per second while requests wait, some targets are missed and utilization is below the band. Pressure
shows with a delay of about two seconds, so it exceeds the band by at most half before it is measured."""
RISE_FACTOR_PER_S = 2.0
"""Largest factor by which a window grows per second, for any cause. `FALL_FACTOR_PER_S`: likewise by which it shrinks."""
FALL_FACTOR_PER_S = 4.0
TRIM_LOW = math.log(0.5)
"""Bounds of the trim that corrects the model's window (log scale), and its leak time constant."""
TRIM_HIGH = math.log(64.0)
TRIM_LEAK_S = 15.0
BAND_ROOM = 1.35
"""Ratio of measured pressure to that of ended requests: measured pressure also counts requests that have just begun, and stalled ones."""
BAND_RAISE_MAX = 2.0
"""Largest factor by which the band's upper edge may move up for the model's optimum."""


@dataclass(frozen=True, slots=True)
class Band:
    """The wanted range of utilization, u_low to u_high."""

    low: float
    high: float

    def error(self, u: float) -> float:
        """Algorithm 2, lines 9 and 10: e = u - u*, where u* is the nearest point of the band; 0 inside."""
        return u - min(self.high, max(self.low, u))

    def log_error(self, u: float) -> float:
        """The same error as log(u / u*), at most 1 either way: a step of at most a factor e per unit of gain."""
        held = max(1e-3, u)
        return max(-1.0, min(1.0, math.log(held / min(self.high, max(self.low, held)))))

    def room(self, u: float) -> float:
        """How far `u` lies below the upper edge, on a log scale over the band's width: 1 up to the lower edge, 0 from the upper on."""
        return max(0.0, min(1.0, math.log(self.high / max(1e-3, u)) / max(1e-6, math.log(self.high / max(1e-3, self.low)))))

    def raised(self, pressure: float) -> "Band":
        """The band with its upper edge moved up, within bounds, to contain an expected `pressure`; it never moves down."""
        return Band(self.low, self.high * min(BAND_RAISE_MAX, max(1.0, BAND_ROOM * pressure / self.high)))


@dataclass(frozen=True, slots=True)
class Load:
    """The input of the loops for one cycle.

    Attributes:
        in_flight: Sequences on the instance.
        waits: Whether requests wait that may go to the instance.
        ceiling: Largest useful window.
        step: Sequences of a usual request in flight: the window may be full with so many places left.
        safe: Window up to which no target is at risk (`headroom`); 0 if not known.
        room: How far utilization is below the band's upper edge (`Band.room`).
        spare: While requests miss their TTFT target, the unused part of the allowed TPOT misses of requests that begin in time: 1 for all
            of it, 0 for none; also 0 while TTFT is met.
        guard_enabled: Whether something else (the gateway's guard) protects TPOT when the window is too wide.
        missed: Whether targets are measurably missed at the present window; only then may the window shrink.
    """

    in_flight: int
    waits: bool
    ceiling: int
    step: int = 1
    safe: int = 0
    room: float = 0.0
    spare: float = 0.0
    guard_enabled: bool = True
    missed: bool = True


@dataclass(slots=True)
class WindowLoop:
    """The outer, integrating loop on n_run.

    Without a target it integrates the band error on log n. With a target it follows the target, and integrates the error into a bounded,
    leaking trim around it. It integrates only what the window causes: upwards only while the window is full and requests wait, downwards
    no further than the requests in flight.

    Attributes:
        low: Smallest window.
        base: Window before the trim. `trim`: log of the factor on it.
        cold_low: Smallest window before there is a target. During a first burst, while all its prompts are read, TPOT says little about the
            window, and a window that is too small costs the burst.
        gains: The loop's gains.
    """

    low: int
    base: float
    cold_low: float
    gains: Gains = field(default_factory=Gains)
    trim: float = 0.0
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=VIEWS))

    def sample(self, log_error: float) -> None:
        """Adds one cycle's error to the average."""
        self.errors.append(log_error)

    @property
    def mean_error(self) -> float:
        """Average error over the last W cycles."""
        return sum(self.errors) / len(self.errors) if self.errors else 0.0

    def n_run(self, ceiling: int) -> int:
        """The window."""
        return max(min(self.low, ceiling), min(ceiling, round(self.base * math.exp(self.trim))))

    def track(self, n_run: int) -> None:
        """Follows a window that another source sets, so that its release causes no jump and no windup."""
        self.base = float(n_run)
        self.trim = 0.0
        self.pause()

    def pause(self) -> None:
        """Clears the averaged errors, because past views do not predict what comes next; the window stays."""
        self.errors.clear()

    def update(self, load: Load, target: Target | None, elapsed_s: float) -> None:
        """Runs one step over at most a second."""
        dt = min(1.0, max(0.0, elapsed_s))
        now = self.n_run(load.ceiling)
        error = self.mean_error
        full = load.in_flight >= now - max(load.step, now // 16)
        if error < 0 and not (full and load.waits):
            error = 0.0
        if target is None:
            self._integrate(error, load, now, dt)
        else:
            self._follow(target, error, load, dt)
        limited = self._rate_limited(now, dt)
        limited = max(limited, min(float(load.safe), self._highest(now, dt)))
        if not load.missed:
            # The model and the band are forecasts: they do not lower the window while targets are met.
            limited = max(limited, float(now))
        if load.guard_enabled and full and load.waits:
            limited = max(limited, self._opened(error, load, now, dt))
        # Back-calculation: the state is the actual output, so there is no windup beyond the limits.
        self.base = max(float(min(self.low, load.ceiling)), min(float(load.ceiling), limited)) * math.exp(-self.trim)

    def _opened(self, error: float, load: Load, now: int, dt: float) -> float:
        """Returns how far a full window opens in a step while requests wait and the TPOT guard protects TPOT; 0 for no further.

        While targets are met the window doubles in a second at the band's lower edge and below. It slows down towards the upper edge, where
        it stops. The guard protects TPOT meanwhile: without it a steep plant overshoots by the speed times the delay. If targets are missed
        the window opens at `OPEN_FACTOR_PER_S`, as far as TTFT rather than TPOT is missed.
        """
        if not load.missed:
            # At least one whole request per step, because a small window could not leave its integer value otherwise.
            return max(now * math.pow(RISE_FACTOR_PER_S, dt * load.room), now + min(1.0, 4.0 * load.room))
        room = 1.0 if error < 0 else load.spare if error == 0 else 0.0
        return now * math.pow(OPEN_FACTOR_PER_S, dt * room) if room > 0.0 else 0.0

    def _integrate(self, error: float, load: Load, now: int, dt: float) -> None:
        """Without a target: the band error alone moves the window."""
        self.trim = 0.0
        gain = self.gains.fall_per_s if error > 0 else self.gains.rise_per_s
        moved = self.base * math.exp(-gain * error * dt)
        # A window wider than the requests in flight limits nothing; lowering it would throttle the next burst for another cause's error.
        if error > 0 and load.in_flight < 0.8 * now:
            moved = max(moved, min(float(now), float(load.in_flight)))
        self.base = max(moved, self.cold_low)

    def _follow(self, target: Target, error: float, load: Load, dt: float) -> None:
        """With a target: the window follows the model's, with a trim for the model's error."""
        self.base *= math.exp(-math.log(self.base / target.n_run) * min(1.0, dt / self.gains.lead_s))
        counts = error < 0 or load.in_flight >= 0.8 * self.n_run(load.ceiling)
        fade = math.exp(-dt / TRIM_LEAK_S) if error == 0 else 1.0
        step = self.gains.trim_per_s * error * dt if counts else 0.0
        self.trim = max(TRIM_LOW, min(TRIM_HIGH, self.trim * fade - step))

    def _rate_limited(self, now: int, dt: float) -> float:
        wanted = self.base * math.exp(self.trim)
        lowest = min(now * math.pow(FALL_FACTOR_PER_S, -dt), now - 1.0)
        return max(lowest, min(self._highest(now, dt), wanted))

    @staticmethod
    def _highest(now: int, dt: float) -> float:
        """Largest window after the step; at least one more request, because a small window could not leave its integer value otherwise."""
        return max(now * math.pow(RISE_FACTOR_PER_S, dt), now + 1.0)
