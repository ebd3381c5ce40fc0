"""The load of a comparison on one vLLM, in numbers: bursts, blocks, and the windows that are tried."""

from hmas_lab.demo_vllm.settings import FieldSettings

PERIOD_S = 16.0
WINDOWS = (16, 24, 32, 48)
"""Windows that the baselines are tuned over."""


def field_settings(*, seconds: float, blocks: int, load: float, seed: int, high: float, low: float) -> FieldSettings:
    """Settings for runs that score so many seconds each: whole periods of about sixteen seconds."""
    periods = max(1, round(seconds / PERIOD_S))
    return FieldSettings(
        seed=seed,
        load=load,
        period_s=seconds / periods,
        high=high,
        low=low,
        periods=periods,
        # A window is not to be chosen on less than the runs are judged by.
        sweep_periods=periods,
        sweep_caps=WINDOWS,
        blocks=blocks,
    )
