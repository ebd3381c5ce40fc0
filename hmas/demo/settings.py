"""The settings of the demo."""

import msgspec

from hmas.engines.sim.profile import Profile, faster, load_profile
from hmas.loadgen.arrivals import ArrivalSpec
from hmas.loadgen.workload import WorkloadSpec


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one live run, seconds from its start.

    Attributes:
        warmup_s: Requests that arrive before this are not scored.
        duration_s: End of the arrivals, including the warm-up.
        drain_s: How long to wait for answers after that.
    """

    warmup_s: float
    duration_s: float
    drain_s: float


class DemoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's operating point. `make demo` uses the defaults.

    Attributes:
        engines, profile, speed: Number, profile and speed factor of the embedded engines. Faster engines serve more requests within the
            demo's time, which makes shares of requests more precise.
        load: Mean arrival rate as a multiple of the measured capacity. It is near 1, with bursts: under steady overload ratios to the
            default would be meaningless.
        period_s: Burst period: half of it at 1.8 times the mean rate, half at 0.2 times.
        warmup_s: Half a period; its requests are not scored. The scored time is whole periods.
        length_scale: Factor on the published prompt lengths: half, so that more requests fit into the demo's time.
        max_output_tokens: Longer outputs, one in fifty, are cut to this, so that no single answer determines the demo's duration.
        tpot_headroom: Mean TPOT target of the workload over the TPOT at the knee of the engines' throughput curve.
        drain_s: How long to wait for answers after a run's last arrival.
        backlog_requests: Number of requests on which capacity is measured.
    """

    seed: int = 1
    engines: int = 2
    profile: str = "demo-small"
    speed: float = 3.0
    load: float = 0.9
    period_s: float = 6.0
    periods: int = 2
    length_scale: float = 0.5
    context_tokens: int = 8192
    max_output_tokens: int = 512
    tpot_headroom: float = 2.1
    drain_s: float = 20.0
    backlog_requests: int = 600

    @property
    def warmup_s(self) -> float:
        """Length of the warm-up."""
        return self.period_s / 2.0

    @property
    def duration_s(self) -> float:
        """Length of the arrivals, including the warm-up."""
        return self.warmup_s + self.periods * self.period_s

    @property
    def span(self) -> Span:
        """The times of every live run."""
        return Span(warmup_s=self.warmup_s, duration_s=self.duration_s, drain_s=self.drain_s)

    def engine_profile(self) -> Profile:
        """The engines' profile at their speed."""
        return faster(load_profile(self.profile), self.speed)

    def workload(self, *, mean_rps: float, slo_scale: float) -> WorkloadSpec:
        """The arrivals of every live run."""
        return WorkloadSpec(
            arrivals=ArrivalSpec(mean_rps=mean_rps, duration_s=self.duration_s, process="bursty", period_s=self.period_s),
            seed=self.seed,
            slo_scale=slo_scale,
            length_scale=self.length_scale,
            context_tokens=self.context_tokens,
            max_output_tokens=self.max_output_tokens,
        )

    def backlog(self) -> WorkloadSpec:
        """Requests of the same kind for measuring capacity, with a fixed seed, so that capacity does not depend on the run's seed."""
        return WorkloadSpec(
            arrivals=ArrivalSpec(mean_rps=float(self.backlog_requests), duration_s=1.0, process="poisson"),
            seed=0,
            length_scale=self.length_scale,
            context_tokens=self.context_tokens,
            max_output_tokens=self.max_output_tokens,
        )
