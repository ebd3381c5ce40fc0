"""What the live comparison does, in numbers: its arms, its bursts, its pace."""

import msgspec

from hmas.controller.core.errors import ConfigError
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY, POLICIES
from hmas.demo.calibration import Variant
from hmas_lab.demo_vllm.settings import FieldSettings
from hmas_lab.onvllm.comparison import Windows
from hmas_lab.onvllm.settings import field_settings

DEFAULT, CAP, STRONG, OURS = "engine-default", "fcfs-cap", "fcfs-cap-shed", "h-mas"
TWIN = f"{STRONG}-again"
"""The strong baseline once more in every block: how far two runs of one configuration lie apart is the noise that others are judged by."""
FIXED = ("fcfs", "edf", "robust-edf", "sjf", "two-lane", "wfq")
HIGH, LOW = 1.8, 0.2
PACE = {
    "meta_period_s": 4.0,
    "meta_dwell_s": 10.0,
    "meta_rollback_window_s": 6.0,
    "meta_twin_window_s": 24.0,
    "meta_twin_budget_s": 0.4,
    "qos_long_window_s": 20.0,
    "qos_short_window_s": 3.0,
}
"""The agents' clocks, faster by about what the runs are shorter than a service's day."""


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison.

    Attributes:
        fixed: Policies that run by themselves all the while, under H-MAS's own admission and with the engine's own window.
        field: Load, bursts, lengths, blocks and windows.
    """

    fixed: tuple[str, ...]
    field: FieldSettings

    @property
    def names(self) -> tuple[str, ...]:
        """The runs of a block."""
        return (DEFAULT, CAP, STRONG, TWIN, *(f"fixed-{name}" for name in self.fixed), OURS)


def live_settings(fixed: tuple[str, ...], *, seconds: float, blocks: int, load: float, seed: int) -> LiveSettings:
    """Settings for runs that score so many seconds each."""
    return LiveSettings(fixed=fixed, field=field_settings(seconds=seconds, blocks=blocks, load=load, seed=seed, high=HIGH, low=LOW))


def variant_of(name: str, windows: Windows, prefix: str) -> Variant:
    """The static configuration of an arm; `windows` are the best ones by treatment of late requests."""
    run = f"{prefix}-{name}"
    if name == DEFAULT:
        return Variant(name=run)
    if name == CAP:
        return Variant(name=run, n_run=windows["keep"])
    if name in {STRONG, TWIN}:
        return Variant(name=run, n_run=windows["shed"], overdue="shed")
    if name == OURS:
        return Variant(name=run, policy=DEFAULT_POLICY, overdue="demote")
    return Variant(name=run, policy=name.removeprefix("fixed-"), overdue="demote", foresight=True)


def read_fixed(text: str) -> tuple[str, ...]:
    """Policies by names with commas between, empty for one of each kind, `all` for the pool.

    Raises:
        ConfigError: A name is not in the pool.
    """
    if text.strip() == "all":
        return tuple(POLICIES)
    wanted = {name.strip() for name in text.split(",") if name.strip()} or set(FIXED)
    unknown = sorted(wanted - set(POLICIES))
    if unknown:
        raise ConfigError(f"fixed policies: {', '.join(unknown)}; allowed: all, {', '.join(POLICIES)}")
    return tuple(name for name in POLICIES if name in wanted)
