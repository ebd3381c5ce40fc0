"""Who sends what in the live comparison: two tenants with a steady load, one that makes all the bursts; short and long requests."""

from collections.abc import Sequence

import msgspec
import numpy as np

from hmas.loadgen.dataset import Mixture, PromptData
from hmas.loadgen.streams import stream
from hmas.loadgen.traces import Trace
from hmas.loadgen.workload import Arrival
from hmas_lab.demo_vllm.load import FieldLoad
from hmas_lab.demo_vllm.settings import FieldSettings

STEADY = ("aurora", "birch")
BURSTING = "cobalt"
TENANTS = (*STEADY, BURSTING)
LONG_SHARE = 0.25
"""Share of the requests that count as long: those with most tokens, prompt and output together."""
_BACKLOG = 1_000_000


class SharedLoad(FieldLoad):
    """The trace's pieces with tenants and classes of their own; times, lengths and texts stay as they are.

    The steady tenants send at the low rate throughout, half of it each. What comes above it, in the high half of each period, is the
    bursting tenant's.
    """

    def __init__(self, trace: Trace, settings: FieldSettings, mixture: Mixture, prompts: PromptData) -> None:
        """As `FieldLoad`.

        Raises:
            TraceError: As `FieldLoad`.
        """
        super().__init__(trace, settings, mixture, prompts)
        totals = [arrival.prompt_tokens + arrival.output_tokens for arrival in super().backlog()]
        self.long_from_tokens = round(float(np.quantile(totals, 1.0 - LONG_SHARE)))

    def backlog(self) -> list[Arrival]:
        """As `FieldLoad.backlog`."""
        return self._shared(super().backlog(), _BACKLOG)

    def piece(self, number: int, *, mean_rps: float, duration_s: float, slo_scale: float) -> list[Arrival]:
        """As `FieldLoad.piece`.

        Raises:
            TraceError: As `FieldLoad.piece`.
        """
        return self._shared(super().piece(number, mean_rps=mean_rps, duration_s=duration_s, slo_scale=slo_scale), number)

    def _shared(self, arrivals: Sequence[Arrival], number: int) -> list[Arrival]:
        settings = self._settings
        draws = stream(settings.seed, "shared-tenants", number).random(len(arrivals))
        half_s = settings.period_s / 2.0
        shared = []
        for arrival, draw in zip(arrivals, draws.tolist(), strict=True):
            high = int(arrival.at_s / half_s) % 2 == 0
            steady_share = settings.low / settings.high if high else 1.0
            place = int(draw / steady_share * len(STEADY))
            total = arrival.prompt_tokens + arrival.output_tokens
            shared.append(
                msgspec.structs.replace(
                    arrival,
                    tenant=STEADY[place] if place < len(STEADY) else BURSTING,
                    size="long" if total >= self.long_from_tokens else "short",
                )
            )
        return shared
