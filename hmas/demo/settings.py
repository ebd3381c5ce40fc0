"""The settings of the demo, and its requests: questions, lengths and times of the workload, in the bodies of real clients."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from hmas.controller.core.types import Slo
from hmas.engines.sim.profile import Profile, faster, load_profile
from hmas.loadgen.arrivals import ArrivalSpec
from hmas.loadgen.client_load import Clients, Terms
from hmas.loadgen.dataset import Mixture, PromptData
from hmas.loadgen.prompts import PromptWriter
from hmas.loadgen.streams import stream
from hmas.loadgen.workload import Arrival, WorkloadSpec, generate, pick

FORM_SHARES: Mapping[str, float] = MappingProxyType(
    {"chat-1": 0.3, "chat-3": 0.25, "chat-9": 0.15, "completion": 0.1, "tools": 0.08, "not-streamed": 0.07, "system-2000": 0.05}
)
TENANTS = ("aurora", "birch")
"""The two tenants; requests of the workload's other tenants are assigned to them in turn."""
UNDECLARED = Slo(ttft_ms=2000.0, tpot_ms=60.0)
"""Targets for requests that declare none: what a user of a chat window accepts. They are the same for every run."""


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


def demo_arrivals(spec: WorkloadSpec, mixture: Mixture, prompts: PromptData) -> list[Arrival]:
    """Draws a workload, half of it without `max_tokens` and half of it without declared targets, from two tenants.

    Times, questions and answer lengths are those of the specification; a history or tools make a prompt longer than its question.
    """
    plain = generate(spec, mixture, prompts)
    names = sorted({tenant for kind in mixture.kinds.values() for tenant in kind.tenants})
    owner = {name: TENANTS[place % len(TENANTS)] for place, name in enumerate(names)}
    clients = Clients([a.messages[0].content for a in plain], PromptWriter(prompts), seed=spec.seed)
    draws = stream(spec.seed, "client-forms").random((len(plain), 3)).tolist()
    found = []
    for index, (arrival, (form, caps, declares)) in enumerate(zip(plain, draws, strict=True)):
        cap, declared = arrival.max_tokens if caps < 0.5 else 0, declares < 0.5
        sent = clients.send(arrival, index, pick(FORM_SHARES, form), Terms(cap, declared, arrival.slo if declared else UNDECLARED))
        long = sent.prompt_tokens + sent.output_tokens >= mixture.long_total_tokens
        found.append(msgspec.structs.replace(sent, tenant=owner[arrival.tenant], size="long" if long else "short"))
    return found
