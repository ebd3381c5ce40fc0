"""What the comparison of policies does, in numbers, and how its options are read."""

from typing import Annotated

import msgspec
from msgspec import Meta

from hmas.controller.core.errors import ConfigError
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.demo.calibration import Overdue
from hmas_lab.demo_vllm.settings import FieldSettings
from hmas_lab.onvllm.settings import field_settings
from hmas_lab.simulated_rows import read_names

BASELINE = "fcfs"
TWIN = "fcfs-again"
"""The baseline once more in every block: how far two runs of the same configuration lie apart is the noise that others are judged by."""
LATE: Overdue = "shed"
"""What becomes of a request that has passed its TTFT deadline while it waits, under every policy alike."""
HIGH, LOW = 1.6, 0.4
"""Rates of the two halves of a period over the mean. Other than the demo's 1.8 and 0.2 the low half leaves the steady tenants a load."""
SLICES = ("steady", "burst", "drift", "shift")


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison on a live engine.

    Attributes:
        policies: The baseline first.
        field: Load, bursts, lengths, blocks and windows.
    """

    policies: tuple[str, ...]
    field: FieldSettings


class SimulatedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison in simulation.

    Attributes:
        policies: The baseline first.
        slices: Of `SLICES`.
        fleet: As `hmas simulate` takes it: shipped profiles.
        loads: Mean arrival rates over the slice's own capacity.
        seeds: Workloads per slice and load, seeds 1 and up; the window is tuned on another one, seed 0.
        duration_s: Length of each.
        backlog: Requests per instance on which capacity is measured: many times the widest window, else the engine is filling up or running
            empty all the while.
        tpot_headroom: Mean TPOT target over the TPOT at the knee of the throughput curve.
        caps: Windows that are tried, as far as the fleet's profiles allow them.
    """

    policies: tuple[str, ...]
    slices: tuple[str, ...] = SLICES
    fleet: str = "1xa100-qwen3-8b"
    loads: tuple[Annotated[float, Meta(gt=0, le=10)], ...] = (0.7, 1.0)
    seeds: Annotated[int, Meta(ge=2, le=100)] = 8
    duration_s: Annotated[float, Meta(ge=20, le=86_400)] = 240.0
    backlog: Annotated[int, Meta(ge=20)] = 1200
    tpot_headroom: float = 2.0
    caps: tuple[int, ...] = (8, 16, 24, 32, 48, 64, 96, 128)

    @property
    def warmup_s(self) -> float:
        """What arrives before it is not scored: a tenth."""
        return self.duration_s / 10.0


def live_settings(policies: tuple[str, ...], *, seconds: float, blocks: int, load: float, seed: int) -> LiveSettings:
    """Settings for runs that score so many seconds each."""
    return LiveSettings(policies=policies, field=field_settings(seconds=seconds, blocks=blocks, load=load, seed=seed, high=HIGH, low=LOW))


def read_policies(text: str) -> tuple[str, ...]:
    """Policies by names with commas between, empty for the whole pool: the baseline first, then in the pool's order.

    Raises:
        ConfigError: A name is not in the pool, or none but the baseline is left.
    """
    chosen = tuple(name for name in read_names("policies", text, tuple(POLICIES)) if name != BASELINE)
    if not chosen:
        raise ConfigError(f"policies: {text!r} leaves none to compare with {BASELINE}; allowed: at least one of {', '.join(POLICIES)}")
    return (BASELINE, *chosen)


def read_slices(text: str) -> tuple[str, ...]:
    """Slices by names with commas between, empty for all.

    Raises:
        ConfigError: There is no such slice.
    """
    return read_names("slices", text, SLICES)


def read_loads(text: str) -> tuple[float, ...]:
    """Loads with commas between, each above 0 and up to 10, in ascending order.

    Raises:
        ConfigError: One is no such number.
    """
    loads: set[float] = set()
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            number = 0.0
        if not 0.0 < number <= 10.0:
            raise ConfigError(f"loads: {part.strip()!r} in {text!r}; allowed: numbers above 0 and up to 10 with commas between")
        loads.add(number)
    return tuple(sorted(loads))
