"""What the comparison on a real vLLM does, in numbers."""

from typing import Annotated

import msgspec
from msgspec import Meta

from hmas.demo.settings import Span


class FieldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operating point of `hmas-lab demo-vllm`.

    Attributes:
        load: Mean arrival rate over the capacity measured in the same run.
        period_s, high, low: Bursts: half of each period at `high` times the mean rate, half at `low` times.
        periods: Whole periods that are scored in each run. `sweep_periods`: likewise for each candidate of the sweep.
        blocks: Repetitions of the four runs, each on arrivals of its own; every second block runs them in reverse order.
        length_scale: Prompt and output lengths over the trace's own, so that a CPU serves enough requests for a share to mean something.
        context_tokens: Prompt and declared cap are cut to fit in this.
        tpot_headroom: Mean TPOT target over the TPOT at the knee of the throughput curve.
        capacity_caps: Windows at which the curve is measured, each `capacity_rounds` times, there and back.
        sweep_caps: Windows that the baselines are tuned over.
        retries: How often a run is repeated that the machine's noise has spoilt.
        control_period_s: Seconds between statera's actions.
    """

    seed: int = 1
    load: Annotated[float, Meta(gt=0, le=2)] = 0.8
    period_s: Annotated[float, Meta(gt=0)] = 16.0
    high: float = 1.8
    low: float = 0.2
    periods: Annotated[int, Meta(ge=1, le=30)] = 2
    sweep_periods: Annotated[int, Meta(ge=1, le=30)] = 1
    blocks: Annotated[int, Meta(ge=1, le=20)] = 3
    length_scale: Annotated[float, Meta(gt=0, le=1)] = 0.25
    context_tokens: int = 2048
    tpot_headroom: float = 2.0
    backlog: int = 240
    capacity_caps: tuple[int, ...] = (16, 24, 32, 48)
    capacity_rounds: Annotated[int, Meta(ge=1, le=5)] = 2
    sweep_caps: tuple[int, ...] = (24, 32, 48)
    retries: int = 2
    drain_s: float = 40.0

    @property
    def run_span(self) -> Span:
        """Of one run of a block: half a period of warm-up, then whole periods."""
        return self._span(self.periods)

    @property
    def sweep_span(self) -> Span:
        """Of one candidate of the sweep."""
        return self._span(self.sweep_periods)

    def _span(self, periods: int) -> Span:
        warmup_s = self.period_s / 2.0
        return Span(warmup_s=warmup_s, duration_s=warmup_s + periods * self.period_s, drain_s=self.drain_s)
