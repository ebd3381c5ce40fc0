"""The page that `GET /metrics` answers with, and the figures of tenants in it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hmas.controller.observability.completions import Recent
from hmas.controller.observability.tenant_figures import TenantFigures, tenant_figures

if TYPE_CHECKING:
    from hmas.controller.gateway.app import Gateway

PAGE_S = 1.0
"""How long a page is given again: it needs no key, and a new one costs the loop a tenth of a second where ten thousand requests wait."""


class MetricsPage:
    """Reads all parts of a gateway when Prometheus asks, at most once in `PAGE_S`."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._made_s = float("-inf")
        self._page = b"", ""

    def read(self) -> tuple[bytes, str]:
        """The page, at most `PAGE_S` old, and its content type."""
        now_s = self._gateway.clock.now_s()
        if now_s - self._made_s >= PAGE_S:
            self._page, self._made_s = self._make(now_s), now_s
        return self._page

    def _make(self, now_s: float) -> tuple[bytes, str]:
        gateway = self._gateway
        health, metrics = gateway.bus.health, gateway.metrics
        metrics.fair(gateway.completions.fairness(gateway.control.weight_of))
        # The page shows what waits and runs. Of those that have ended it needs the names alone.
        metrics.tenants(figures_of(gateway, dict.fromkeys(gateway.completions.labels(), Recent())))
        metrics.agents(gateway.agents.scores.standings())
        return metrics.exposition(
            gateway.scheduler.snapshot(now_s, gateway.name),
            passing={name: instance.passing for name, instance in gateway.fleet.instances.items()},
            held_s=gateway.scheduler.held_while_idle_s,
            bus_connected=health.connected,
            bus_dropped=health.dropped,
        )


def figures_of(gateway: "Gateway", recent: Mapping[str, Recent]) -> list[TenantFigures]:
    """The figures of each tenant now, with those of `recent`, by label. O(waiting + running)."""
    directives = gateway.control.directives
    return tenant_figures(
        recent,
        gateway.scheduler.tenants(gateway.clock.now_s()),
        label_of=gateway.metrics.tenant_label,
        weight_of=gateway.control.weight_of,
        configured={*directives.weights, *directives.limits},
    )
