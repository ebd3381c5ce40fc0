"""Operator overrides, and the result of merging them. Pure.

Merge order: overrides are applied in the order of their ids (plain text order), so on the same setting the later id wins;
`conflicts` lists what lost. A knob for a named instance wins over one for `*`, whatever the order.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import msgspec

from hmas.controller.core.messages import OverrideNotice
from hmas.engines.base import Knobs


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """One checked override.

    Attributes:
        id: The file's name without `.json`.
        expires_s: When it expires, seconds since the epoch; None for never.
        policy: The forced policy, None if it forces none; `parameters` belong to it.
        knobs: Knobs by instance name, `*` for all instances that are not named.
        tenant_weights: Weight by tenant.
        tenant_limits: Quotas, share and cap by tenant, as fields of `TenantLimits`; fields that are not named stay as they are.
        draining: Engines that get no new requests.
        routers: Router by model, `*` for all models that are not named, each as `make_router` reads it.
    """

    id: str
    author: str
    reason: str
    expires_s: float | None
    version: Literal[1] = 1
    policy: str | None = None
    parameters: dict[str, float] = {}
    knobs: dict[str, Knobs] = {}
    tenant_weights: dict[str, float] = {}
    tenant_limits: dict[str, dict[str, int | float]] = {}
    draining: tuple[str, ...] = ()
    routers: dict[str, str] = {}

    def active(self, now_s: float) -> bool:
        """Whether it has not expired yet."""
        return self.expires_s is None or now_s < self.expires_s

    def settings(self) -> dict[str, Any]:
        """Every forced setting, by path: `policy`, `knobs.*.n_run`, `tenants.NAME.weight` (and the limits), `engines.NAME.drain`,
        `routers.NAME`.
        """
        held: dict[str, Any] = {}
        if self.policy is not None:
            held["policy"] = {"name": self.policy, "parameters": dict(self.parameters)}
        for instance, knobs in self.knobs.items():
            held.update({f"knobs.{instance}.{name}": value for name, value in msgspec.to_builtins(knobs).items()})
        for tenant, part in self.tenants().items():
            held.update({f"tenants.{tenant}.{name}": value for name, value in part.items()})
        held.update({f"engines.{engine}.drain": True for engine in self.draining})
        held.update({f"routers.{model}": router for model, router in self.routers.items()})
        return held

    def tenants(self) -> dict[str, dict[str, int | float]]:
        """Everything that it forces for each tenant, weight and limits, as in the document."""
        held: dict[str, dict[str, int | float]] = {tenant: {"weight": weight} for tenant, weight in self.tenant_weights.items()}
        for tenant, limits in self.tenant_limits.items():
            held.setdefault(tenant, {}).update(limits)
        return held


@dataclass(frozen=True, slots=True)
class Conflict:
    """A setting that several overrides force to different values: that of `winner` is active, those of `losers` are not."""

    setting: str
    winner: str
    losers: tuple[str, ...]


def conflicts(overrides: Iterable[Override], now_s: float) -> list[Conflict]:
    """Settings on which active overrides disagree, in the order of their paths."""
    holders: dict[str, list[tuple[str, Any]]] = {}
    for override in in_force(overrides, now_s):
        for setting, value in override.settings().items():
            holders.setdefault(setting, []).append((override.id, value))
    found = []
    for setting, held in sorted(holders.items()):
        winner, value = held[-1]
        losers = tuple(name for name, other in held[:-1] if other != value)
        if losers:
            found.append(Conflict(setting, winner, losers))
    return found


def effective(overrides: Iterable[Override], now_s: float) -> OverrideNotice:
    """All active overrides merged in the order of their ids; an empty notice if there is none."""
    active = in_force(overrides, now_s)
    policy, parameters = "", dict[str, float]()
    knobs: dict[str, dict[str, int]] = {}
    weights: dict[str, float] = {}
    limits: dict[str, dict[str, int | float]] = {}
    routers: dict[str, str] = {}
    for override in active:
        routers.update(override.routers)
        if override.policy is not None:
            policy, parameters = override.policy, dict(override.parameters)
        for instance, part in override.knobs.items():
            knobs.setdefault(instance, {}).update(msgspec.to_builtins(part))
        weights.update(override.tenant_weights)
        for tenant, held in override.tenant_limits.items():
            limits.setdefault(tenant, {}).update(held)
    ends = [override.expires_s for override in active if override.expires_s is not None]
    return OverrideNotice(
        sent_s=now_s,
        policy=policy,
        parameters=parameters,
        knobs=knobs,
        tenant_weights=weights,
        tenant_limits=limits,
        draining=sorted({engine for override in active for engine in override.draining}),
        routers=routers,
        expires_s=min(ends, default=0.0),
        author=", ".join(dict.fromkeys(override.author for override in active))[:200],
        reason="; ".join(f"{override.id}: {override.reason}" for override in active)[:1000],
        holders={override.id: f"{override.author}: {override.id}: {override.reason}"[:1000] for override in active},
        held_by={setting: override.id for override in active for setting in override.settings()},
    )


def held_because(notice: OverrideNotice, *settings: str) -> str:
    """Author and reason of the override that forces a setting, or the next one if none forces it; of all of them if that is not told."""
    holder = next((notice.held_by[setting] for setting in settings if setting in notice.held_by), "")
    together = f"{notice.author}: {notice.reason}" if notice.author else notice.reason
    return notice.holders.get(holder, "" if notice.held_by else together)


def knobs_for(notice: OverrideNotice, instance: str) -> Knobs:
    """The forced knobs of one instance: its own, and those for `*` for knobs without a value of its own."""
    held = {**notice.knobs.get("*", {}), **notice.knobs.get(instance, {})}
    return Knobs(n_run=held.get("n_run"), token_budget=held.get("token_budget"))


def cli_id(kind: Literal["policy", "knobs", "drain", "router"], subject: str = "") -> str:
    """Id of a setting forced through the admin API: `cli-policy`, `cli-knobs-NAME` (`cli-knobs-_all` for `*`), `cli-drain-NAME`.

    `cli-router-MODEL`: a name that is no part of an id has other characters replaced and its checksum behind it.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", subject)[:56]
    name = "_all" if subject == "*" else subject if plain == subject else f"{plain}-{crc32(subject.encode()):08x}"
    return f"cli-{kind}" + (f"-{name}" if subject else "")


def in_force(overrides: Iterable[Override], now_s: float) -> list[Override]:
    """The overrides that have not expired, in the order of their ids."""
    return sorted((override for override in overrides if override.active(now_s)), key=lambda override: override.id)
