"""The operators' view and controls of a gateway: implements the `Operations` of the admin API for it."""

import contextlib
import os
from collections.abc import Sequence
from math import ceil
from typing import Any

from msgspec import to_builtins

from hmas.controller.config.cross_checks import advice
from hmas.controller.config.derived import AGENT_NAMES, running_agents
from hmas.controller.config.override_format import document_of
from hmas.controller.config.plugins import POLICY_PLUGINS, ROUTER_PLUGINS, SCORER_PLUGINS, ExtensionPoint
from hmas.controller.control.agent_scores import Standing
from hmas.controller.control.overrides import Override, conflicts
from hmas.controller.control.resolve import KNOBS, Setting
from hmas.controller.core.errors import AdminError, SchedulingError
from hmas.controller.core.messages import VIEWS, InstanceView, LongView, ShortView
from hmas.controller.core.types import OutcomeKind
from hmas.controller.gateway.app import Gateway
from hmas.controller.gateway.instances.monitor import Instance
from hmas.controller.gateway.metrics_page import figures_of
from hmas.controller.observability.completions import goodput
from hmas.controller.observability.metrics import package_version
from hmas.controller.observability.request_report import trace_report, unknown
from hmas.controller.routing.registry import ROUTERS, SCORERS, WEIGHTS, read_router, summary_of
from hmas.controller.scheduling.admission.quotas import NO_LIMITS
from hmas.controller.scheduling.policies.registry import BUILT_IN, COMMON_PARAMETERS, POLICIES
from hmas.controller.scheduling.policy_base.queue_entry import QueuePolicy

POSITION_UP_TO = 10_000
"""Number of waiting requests up to which an exact position is computed on request: 1 ms."""
LONG_VIEW_S = 5.0
"""Longest time between two long views of qos."""
VIEWS_MOST = 200
SHOWN_IDS = 3
"""Most decisions that are listed if an id is ambiguous."""


class GatewayOperations:
    """Implements `hmas.controller.admin.operations.Operations`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def status(self) -> dict[str, Any]:
        """See `Operations.status`."""
        gateway = self._gateway
        now_s = gateway.clock.now_s()
        snapshot = gateway.scheduler.snapshot(now_s, gateway.name)
        reasons = gateway.readiness()
        return {
            "version": package_version(),
            "gateway": gateway.name,
            "started_s": gateway.started_s,
            "uptime_s": now_s - gateway.started_s,
            "ready": not reasons,
            "not_ready_because": reasons,
            "draining": gateway.draining,
            "policy": self._policy_now(),
            "routers": self._routers_now(),
            "queue": {
                "queued": snapshot.queued,
                "queued_tokens": snapshot.queued_tokens,
                "overdue": snapshot.overdue,
                "oldest_wait_ms": snapshot.oldest_wait_ms,
                "limit": gateway.scheduler.settings.queue_limit,
                "models": {
                    model: {"queued": queued, "retry_after_s": retry_after_s}
                    for model, (queued, retry_after_s) in gateway.scheduler.models(now_s).items()
                },
            },
            "instances": self._instances(snapshot.instances, now_s),
            "agents": self._agents(now_s),
            "on_defaults": gateway.on_defaults.recent(now_s),
            "models": gateway.model_reports.documents(),
            "bus": self._bus(),
            "mqtt": None if gateway.mqtt is None else gateway.mqtt(),
            "config": self._config(),
            "overrides": self.overrides(),
            "counts": self._counts(),
            "goodput": self._goodput(),
            "fairness": to_builtins(gateway.completions.fairness(gateway.control.weight_of)),
            "tenants": self._tenants(now_s),
        }

    def policy(self) -> dict[str, Any]:
        """See `Operations.policy`."""
        return {
            **self._policy_now(),
            "available": [described(policy) for policy in POLICIES.values()],
            "refused": _refused(POLICY_PLUGINS),
        }

    def routers(self) -> dict[str, Any]:
        """See `Operations.routers`."""
        routers, scorers = (_origins(point) for point in (ROUTER_PLUGINS, SCORER_PLUGINS))
        return {
            **self._routers_now(),
            "available": [
                {"name": name, "summary": summary_of(name), "weights": dict(WEIGHTS.get(name, {})), "from": routers.get(name, "")}
                for name in ROUTERS
            ],
            "scorers": [{"name": name, "summary": kind.summary, "from": scorers.get(name, "")} for name, kind in SCORERS.items()],
            "refused": [*_refused(ROUTER_PLUGINS), *_refused(SCORER_PLUGINS)],
        }

    def knobs(self) -> dict[str, Any]:
        """See `Operations.knobs`."""
        return {"instances": [{key: item[key] for key in ("name", *KNOBS, "ceiling", "control")} for item in self.engines()]}

    def engines(self) -> list[dict[str, Any]]:
        """See `Operations.engines`."""
        now_s = self._gateway.clock.now_s()
        return self._instances(self._gateway.scheduler.snapshot(now_s, self._gateway.name).instances, now_s)

    def events(self, limit: int) -> list[dict[str, Any]]:
        """See `Operations.events`."""
        return self._gateway.event_log.newest(limit)

    def decisions(self, limit: int, *, changes: bool) -> list[dict[str, Any]]:
        """See `Operations.decisions`."""
        return self._gateway.decisions.newest(limit, changes=changes)

    def decision(self, decision_id: str) -> dict[str, Any]:
        """See `Operations.decision`."""
        found = self._gateway.decisions.find(decision_id)
        if not found:
            raise AdminError(f"decision {decision_id!r} is unknown or no longer kept; `hmas decisions` lists the newest")
        if len(found) > 1:
            ids = ", ".join(one["decision_id"] for one in found[-SHOWN_IDS:])
            raise AdminError(f"decision {decision_id!r} may be any of {len(found)}, the newest of them {ids}; give more of the id")
        return found[0]

    def request(self, request_id: str) -> dict[str, Any]:
        """See `Operations.request`."""
        gateway = self._gateway
        traces, scheduler = gateway.traces, gateway.scheduler
        trace = traces.find(request_id)
        if trace is None:
            raise AdminError(unknown(request_id, traces.kept, traces.kept_s))
        # This alone looks at all waiting requests: if there are too many, it is skipped so that the event loop is not blocked.
        position = scheduler.position(trace.request.id) if scheduler.queued <= POSITION_UP_TO else None
        now_s, label = gateway.clock.now_s(), gateway.metrics.tenant_label(trace.request.tenant)
        tenant = next((one.document() for one in figures_of(gateway, gateway.completions.tenants()) if one.name == label), None)
        report = trace_report(trace, traces, position=position, bound_to=scheduler.bound_to(trace.request.id), now_s=now_s)
        return {**report, "tenant_now": tenant}

    def overrides(self) -> dict[str, Any]:
        """See `Operations.overrides`."""
        watch = self._gateway.watch
        held = [watch.held[name] for name in sorted(watch.held)]
        return {
            "directory": str(watch.path),
            "overrides": [{"id": override.id, "expires_s": override.expires_s, "document": document_of(override)} for override in held],
            "refused": [{"file": file, "message": message} for file, message in sorted(watch.errors.items())],
            "conflicts": [
                {"setting": conflict.setting, "winner": conflict.winner, "losers": list(conflict.losers)}
                for conflict in conflicts(held, self._gateway.clock.now_s())
            ],
            "forced": list(self._gateway.control.directives.forced),
        }

    async def views(self) -> dict[str, Any]:
        """See `Operations.views`."""
        gateway = self._gateway
        now_s = gateway.clock.now_s()
        found: dict[str, Any] = {"short": None, "long": None}
        # A long view comes every few seconds, so this many messages contain one.
        for view in await gateway.bus.latest(VIEWS, min(VIEWS_MOST, 2 + ceil(LONG_VIEW_S / gateway.config.scheduler.tick_s))):
            if isinstance(view, ShortView | LongView):
                figures = {name: getattr(view, name) for name in view.__struct_fields__ if name not in ("recent", "instances")}
                place = "short" if isinstance(view, ShortView) else "long"
                found[place] = {**to_builtins(figures), "age_s": max(0.0, now_s - view.sent_s)}
        return found

    def instance_names(self) -> list[str]:
        """See `Operations.instance_names`."""
        return list(self._gateway.fleet.instances)

    def check_override(self, override: Override) -> None:
        """See `Operations.check_override`."""
        self._gateway.watch.check(override)

    async def put_override(self, override: Override) -> None:
        """See `Operations.put_override`."""
        await self._gateway.watch.put(override)

    async def remove_override(self, override_id: str) -> bool:
        """See `Operations.remove_override`."""
        return await self._gateway.watch.remove(override_id)

    def _policy_now(self) -> dict[str, Any]:
        control, now_s = self._gateway.control, self._gateway.clock.now_s()
        setting = control.directives.policy
        return {
            "name": self._gateway.scheduler.policy,
            "parameters": dict(self._gateway.scheduler.parameters),
            "cost_threshold_now": (self._gateway.scheduler.queued and self._gateway.scheduler.cost_threshold) or None,
            "source": setting.source,
            "reason": setting.reason,
            "changed_because": control.since.policy_reason,
            "decision_id": setting.decision_id,
            "since_s": control.since.policy_s,
            "for_s": now_s - control.since.policy_s,
        }

    def _routers_now(self) -> dict[str, Any]:
        models = []
        for model, setting in sorted(self._gateway.control.directives.routers.items()):
            name, weights = read_router(setting.value)
            models.append({"model": model, "name": name, "weights": weights, "source": setting.source, "reason": setting.reason})
        faults, fault = self._gateway.scheduler.router_fault
        return {"models": models, "faults": faults, "fault": fault}

    def _instances(self, views: Sequence[InstanceView], now_s: float) -> list[dict[str, Any]]:
        fleet, good_rps = self._gateway.fleet, self._gateway.completions.good_rps()
        return [self._instance(fleet.instances[view.name], view, now_s, good_rps.get(view.name, 0.0)) for view in views]

    def _instance(self, instance: Instance, view: InstanceView, now_s: float, good_rps: float) -> dict[str, Any]:
        directive = self._gateway.control.directives.instances[instance.name]
        snapshot = instance.snapshot
        return {
            "name": instance.name,
            "url": instance.config.url,
            "kind": instance.engine.capabilities.kind,
            "version": instance.engine.capabilities.version,
            "healthy": instance.healthy,
            "detail": snapshot.detail if snapshot is not None else "not reached yet",
            # None: it has never answered.
            "down_for_s": None if instance.down_since_s == 0.0 else instance.down_for_s(now_s),
            "circuit": instance.breaker.state,
            "answers": instance.answers,
            "control": instance.engine.capabilities.control,
            "draining": instance.draining,
            "models": sorted(instance.models or ()),
            "in_flight": view.in_flight,
            "queued": view.queued,
            "sequences": view.occupied,
            "in_flight_tokens": view.in_flight_tokens,
            "passing_through": instance.passing,
            "ceiling": {"n_run": instance.ceiling.n_run, "token_budget": instance.ceiling.token_budget or None},
            "n_run": self._knob(instance, "n_run", directive.controls.n_run, directive.n_run),
            "token_budget": self._knob(instance, "token_budget", directive.controls.token_budget, directive.token_budget),
            "guard": self._knob(instance, "guard", directive.controls.guard, directive.guard, guard_enabled=view.guard_enabled),
            "first_token_overhead_ms": view.first_token_overhead_ms,
            "kv_usage": snapshot.kv_usage if snapshot is not None else None,
            "kv_committed": view.kv_committed,
            "engine_running": snapshot.running if snapshot is not None else 0,
            "engine_waiting": snapshot.waiting if snapshot is not None else 0,
            "preemptions_total": snapshot.preemptions_total if snapshot is not None else 0,
            "good_rps": good_rps,
            "cost_per_hour": instance.config.cost_per_hour,
            "cost_per_1000_good": instance.config.cost_per_hour / 3.6 / good_rps if good_rps else None,
            "kv_events": None if self._gateway.kv_events is None else self._gateway.kv_events.report(instance.name),
        }

    def _tenants(self, now_s: float) -> list[dict[str, Any]]:
        """The figures of each tenant, its limits, which of them operators set, and what is left of its quotas."""
        control, scheduler = self._gateway.control, self._gateway.scheduler
        directives, notice = control.directives, control.notice
        return [
            {
                **one.document(),
                **to_builtins(directives.limits.get(one.name, NO_LIMITS)),
                "held": [*(["weight"] if one.name in notice.tenant_weights else []), *notice.tenant_limits.get(one.name, {})],
                "quotas": to_builtins(scheduler.rates(one.name, now_s)),
            }
            for one in figures_of(self._gateway, self._gateway.completions.tenants())
        ]

    def _knob(self, instance: Instance, name: str, value: float | None, setting: Setting, *, guard_enabled: bool = True) -> dict[str, Any]:
        """One knob with its source and where it takes effect: in the engine itself, in the gateway's window or guard, or nowhere."""
        if name == "guard":
            acts = "TPOT guard" if guard_enabled else "nowhere: the TPOT guard is off"
        elif name in instance.engine.capabilities.live_knobs and name not in instance.refused:
            acts = "engine and window" if name == "n_run" else "engine"
        else:
            acts = "window" if name == "n_run" else "nowhere: the engine has no such live knob"
        return {
            "value": value,
            "source": setting.source,
            "reason": setting.reason,
            "decision_id": setting.decision_id,
            "since_s": self._gateway.control.since.knobs_s.get((instance.name, name), self._gateway.started_s),
            "acts": acts,
            "engine_refused": instance.refused.get(name, ""),
        }

    def _agents(self, now_s: float) -> dict[str, Any]:
        """How old each agent's last message is and may be (`AgentState`), and the scores of its answers."""
        gateway, config = self._gateway, self._gateway.config.agents
        running = running_agents(config)
        states = gateway.liveness.states(AGENT_NAMES, running, now_s, started_s=gateway.started_s, stale_after_s=config.stale_after_s)
        agents: dict[str, Any] = {
            one.name: {
                **to_builtins(one),
                "runs": one.name in running,
                "answers": [_standing(score) for score in gateway.agents.scores.standings() if score.agent == one.name],
            }
            for one in states
        }
        agents["enabled"] = config.enabled
        return agents

    def _config(self) -> dict[str, Any]:
        """What `hmas doctor` needs of the configuration that this process runs with, and what is probably not intended in it."""
        config = self._gateway.config
        return {
            "preset": config.preset,
            "engines": len(config.engines),
            "tenants": len(config.tenants),
            "no_auth": config.gateway.no_auth,
            "advice": advice(config, os.environ),
        }

    def _bus(self) -> dict[str, Any]:
        health = self._gateway.bus.health
        return {
            "connected": health.connected,
            "detail": health.detail,
            "dropped": health.dropped,
            "rejected": health.rejected,
            "taken_by": self._gateway.bus_watch.holder or None,
        }

    def _counts(self) -> dict[str, Any]:
        scheduler = self._gateway.scheduler
        counts = scheduler.counts()
        conserved = False
        with contextlib.suppress(SchedulingError):
            scheduler.check_conservation()
            conserved = counts.queued + counts.running == len(self._gateway.manager.active)
        return {
            "arrived": counts.arrived,
            "queued": counts.queued,
            "running": counts.running,
            "dispatched": counts.dispatched,
            "ended": {kind.value: counts.ended.get(kind, 0) for kind in OutcomeKind},
            "conserved": conserved,
        }

    def _goodput(self) -> dict[str, Any]:
        recent, uptime_s = self._gateway.completions.recent(), self._gateway.clock.now_s() - self._gateway.started_s
        window_s = max(1.0, min(recent.window_s, uptime_s))
        return goodput(recent, window_s)


def described(policy: type[QueuePolicy]) -> dict[str, Any]:
    """A policy as shown to operators: its purpose, its inputs and its guarantees."""
    return {
        "name": policy.name,
        "summary": policy.summary,
        "parameters": dict(policy.default_parameters),
        "parameter_ranges": dict(policy.parameter_ranges),
        "common_parameters": dict(COMMON_PARAMETERS),
        "signals": [{"name": one.name, "freshness": one.freshness, "fallback": one.fallback} for one in policy.signals],
        "starvation": policy.starvation,
        "complexity": policy.complexity,
        "source": policy.source,
        "from": "" if policy in BUILT_IN else f"{policy.__module__}.{policy.__qualname__}",
    }


def _refused(point: ExtensionPoint[Any]) -> list[dict[str, str]]:
    """The plugins of an extension point that were refused, and why."""
    return [
        {"entry_point": f"{plugin.name} = {plugin.value}", "distribution": plugin.distribution, "reason": plugin.refused}
        for plugin in point.load()
        if plugin.refused
    ]


def _origins(point: ExtensionPoint[Any]) -> dict[str, str]:
    """Where the plugins of an extension point are from, by name."""
    return {plugin.name: plugin.value for plugin in point.load() if not plugin.refused}


def _standing(one: Standing) -> dict[str, Any]:
    """The score of one kind of an agent's answers, next to that of the default that they replace."""
    return {
        "answers": one.answers,
        "used": one.used,
        "set_aside": one.contest.aside,
        "scored": one.contest.scored,
        "loss": one.contest.agent_loss,
        "default_loss": one.contest.default_loss,
        "words": one.words,
    }
