"""The `slo` section: targets of requests that declare none."""

from typing import Annotated

from msgspec import Meta

from hmas.controller.config.section import Section
from hmas.controller.core.slo import TargetTable
from hmas.controller.scheduling.settings import SHIPPED


class SloConfig(Section, frozen=True):
    """Targets of requests that declare none."""

    scale: Annotated[float, Meta(gt=0, le=100, description="stretches H-MAS Table 6 to this installation's operating point")] = 1.0
    ttft_most_ms: Annotated[
        float,
        Meta(
            ge=1,
            le=3_600_000,
            description="highest TTFT target of a request that declares none, where Table 6 would allow 4 to 13 s",
        ),
    ] = 2000.0

    headroom: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="a target that a request does not declare is at least this many times what an engine takes for a request "
            "alone, so that slow engines are not held to what they cannot do; 0 leaves Table 6 as it is",
        ),
    ] = SHIPPED.headroom

    def targets(self) -> TargetTable:
        """The table of targets that the scheduler uses."""
        return TargetTable(scale=self.scale, ttft_most_ms=self.ttft_most_ms)
