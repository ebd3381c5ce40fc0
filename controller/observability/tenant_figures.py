"""The figures of each tenant: what it asked for and got in the last minute, its share of the service, and why its requests wait. Pure."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from hmas.controller.observability.completions import Recent, goodput
from hmas.controller.scheduling.results import TenantLoad

_NEAR = 0.02
"""A share of the service that exceeds that of the weight by less than this is not above it."""
NO_LOAD = TenantLoad()


class TenantFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one tenant, or of all that share the label `other`.

    Attributes:
        name: The tenant, or `other`.
        weight: Its active weight.
        load: Its requests that wait and run now.
        recent: Its requests that ended in the last minute.
        service_share: Its share of the service that all requests of the last minute got (`service_of`); 0 if there were none.
        weight_share: The share that its weight gives it among the tenants that asked for service; 0 if it did not ask.
        waits_for: Why its requests wait, as text; empty if none waits.
    """

    name: str
    weight: float
    load: TenantLoad
    recent: Recent
    service_share: float
    weight_share: float
    waits_for: str

    def document(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "name": self.name,
            "weight": self.weight,
            **msgspec.structs.asdict(self.load),
            "waits_for": self.waits_for or None,
            "service_share": self.service_share,
            "weight_share": self.weight_share,
            "goodput": goodput(self.recent, self.recent.window_s),
        }


def tenant_figures(
    recent: Mapping[str, Recent],
    loads: Mapping[str, TenantLoad],
    *,
    label_of: Callable[[str], str],
    weight_of: Callable[[str], float],
    configured: Collection[str],
) -> list[TenantFigures]:
    """The figures of all tenants that are configured, or have requests waiting, running, or ended in the last minute, by name.

    `recent` is by label, since tenants beyond a bound share `other`; tenants with an override count as `configured`.
    """
    by_label: dict[str, TenantLoad] = {}
    # Several tenants may share a label.
    weight_under: dict[str, float] = {}
    for tenant, load in loads.items():
        label = label_of(tenant)
        weight_under[label] = weight_under.get(label, 0.0) + weight_of(tenant)
        by_label[label] = by_label[label].plus(load) if label in by_label else load
    names = sorted({*configured, *recent, *by_label})
    asking = {
        name: weight_under.get(name) or weight_of(name) for name in names if name in by_label or (name in recent and recent[name].ended)
    }
    weights = sum(asking.values())
    rates = {name: one.service / one.window_s for name, one in recent.items()}
    served = sum(rates.values())
    others_wait = sum(load.waiting > 0 for load in by_label.values()) > 1
    found = []
    for name in names:
        load = by_label.get(name, NO_LOAD)
        service_share = rates.get(name, 0.0) / served if served else 0.0
        weight_share = asking[name] / weights if name in asking else 0.0
        found.append(
            TenantFigures(
                name=name,
                weight=weight_of(name),
                load=load,
                recent=recent.get(name, Recent()),
                service_share=service_share,
                weight_share=weight_share,
                waits_for=_waits_for(load, service_share, weight_share) if others_wait else load.waits_for,
            )
        )
    return found


def _waits_for(load: TenantLoad, service_share: float, weight_share: float) -> str:
    """Why the requests of a tenant wait while those of another tenant wait, too."""
    if not load.waiting or service_share <= weight_share + _NEAR:
        return load.waits_for
    above = f"it got {service_share:.0%} of the service, its weight gives it {weight_share:.0%} while others wait"
    return f"{above}; {load.waits_for}" if load.waits_for else above
