"""What arrives: the paper's scenarios as workloads of the catalogue, their loads as multiples of the fleet's capacity for such requests.

The paper gives rates in requests per second on its own stack; here they are placed by what its engine baseline does at them. Under Eq. 13
with lambda_0 = 40 that baseline recovers nothing in a third phase whose mean is 40 requests/s (Table 4: drop 100 %, recovery 0): 40 is at
its capacity. So 30, 40 and 50 requests/s are 0.75, 1.0 and 1.25 of the measured capacity. Where the paper gives no rate but says what share
of requests its engine baseline served in time, the load is that at which our engine default does so (`hmas_lab.paper.placing`).
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

AT_CAPACITY_RPS = 40.0
"""The paper's rate that stands for the whole capacity."""
LOW_LOAD = 0.3
TRACE = Path("arrivals/azure_llm_2023_conv.csv.gz")
"""Within the folder of the public data."""
TRACE_RPS = 5.94
"""The trace's own mean rate."""
TRACE_S = 2276.0
STRESS_S = 600.0
"""Length of the paper's stress tests; it does not say how long it holds a fixed rate, which decides how far a queue grows."""
LATER_S = 0.1
"""Each further seed begins so much of a lap later in the trace."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario.

    Attributes:
        kind: The workload's name in the catalogue.
        words: What it is, with where the paper has it.
        load: Mean arrival rate over the capacity for such requests, where the paper's engine baseline does not place it.
        placed_as: Scenario at whose load this one runs, too; empty for its own.
        span_s: Length of the arrivals; a tenth of it is a warm-up.
        mix: Scenarios with the same requests share a measured capacity.
        options: Further options of the workload.
        phases: Equal parts that the robustness figures tell apart.
        shifts: Whether the workload changes its nature half-way: there a choice should pay.
        tuned_as: Scenario whose tuned windows and screened policies serve here, too; empty for its own.
    """

    kind: str
    words: str
    load: float = 1.0
    placed_as: str = ""
    span_s: float = 240.0
    mix: str = "mixed"
    options: str = ""
    phases: int = 1
    shifts: bool = False
    tuned_as: str = ""

    @property
    def recorded(self) -> bool:
        """Whether it replays a trace that the project does not carry."""
        return self.kind == "azure"

    def workload(self, *, rate_rps: float, span_s: float, slo_scale: float, data: str, seed: int) -> str:
        """The catalogue's text for it; `data` is the folder of the public data, whose trace gives the times where there is one."""
        length = f"phase={span_s / self.phases!r}" if self.kind in {"phases", "semantic"} else f"duration={span_s!r}"
        settings = f"rate={rate_rps!r},{length},slo_scale={slo_scale!r}{self.options}"
        lap_s = TRACE_S * TRACE_RPS / rate_rps
        if self.kind == "semantic" and data:
            return f"{self.kind}:{Path(data) / TRACE}?{settings},laps={int(span_s / lap_s) + 2}"
        if not self.recorded:
            return f"{self.kind}:{settings}"
        start_s = round(seed * LATER_S * lap_s, 3)
        laps = int((start_s + span_s) / lap_s) + 2
        return f"{self.kind}:{Path(data) / TRACE}?{settings},start={start_s!r},laps={laps}"


def _paper_load(rps: float) -> float:
    return rps / AT_CAPACITY_RPS


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "low": Scenario(kind="poisson", words="low load, Poisson arrivals", load=LOW_LOAD),
        "load-30": Scenario(kind="poisson", words="30 requests/s of Fig. 5 and 7", load=_paper_load(30), span_s=STRESS_S),
        "load-40": Scenario(kind="poisson", words="40 requests/s of Fig. 5", load=_paper_load(40), span_s=STRESS_S),
        "load-50": Scenario(kind="poisson", words="50 requests/s of Fig. 5 and 7, the top load", load=_paper_load(50), span_s=STRESS_S),
        "azure-300": Scenario(kind="azure", words="Azure replay of 300 s, Fig. 6", span_s=300.0, mix="azure", placed_as="azure-1200"),
        "azure-600": Scenario(
            kind="azure", words="Azure replay of 600 s, Fig. 6", span_s=600.0, mix="azure", placed_as="azure-1200", tuned_as="azure-300"
        ),
        "azure-1200": Scenario(kind="azure", words="Azure replay of 1200 s, Fig. 6", span_s=1200.0, mix="azure", tuned_as="azure-300"),
        "phases": Scenario(
            kind="phases", words="time-varying stress, Eq. 13, Fig. 8b, Table 4 A", load=1.0, span_s=STRESS_S, phases=3, shifts=True
        ),
        "semantic": Scenario(
            kind="semantic", words="semantic shift, Fig. 8a, Table 4 B", span_s=STRESS_S, mix="semantic", phases=3, shifts=True
        ),
        "burst": Scenario(kind="burst", words="fast slice, Table 1"),
        "drift": Scenario(kind="drift", words="medium slice, Table 1", mix="drift", shifts=True),
        "shift": Scenario(kind="shift", words="slow slice, Table 1", mix="shift", shifts=True),
    }
)
"""Every scenario, in the page's order."""
SLICES = ("burst", "drift", "shift")
TOP_LOAD = "load-50"
"""Where the paper gives its ratios of ESG."""
FEW = ("load-50", "phases", "semantic", "burst", "drift", "shift")
"""Scenarios for the models that are compared more briefly."""
ABLATED = ("phases",)
"""Where parts are taken out: the stress test of 600 s, which has all of the paper's time scales in it."""
