"""Prometheus metrics of the gateway: prefix `hmas_`, base units, bounded labels, a registry of its own."""

import platform
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from hmas.controller.control.agent_scores import Standing
from hmas.controller.core.fairness import Fairness
from hmas.controller.core.types import OutcomeKind
from hmas.controller.observability import counters
from hmas.controller.observability.counters import Buckets, Count, Counter, Histogram
from hmas.controller.observability.observer import Completion, Directives, Observer, Request, SystemSnapshot
from hmas.controller.observability.tenant_figures import TenantFigures

MAX_TENANT_LABELS = 50
LABEL_KEPT_S = 86_400.0
"""How long a tenant that is not configured keeps its label after its last request, where others have none."""
OTHER = "other"
LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
TPOT_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
OVERHEAD_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class _OfTenant:
    """What is counted for each request of one tenant. Looking up a labelled counter costs more than counting, so these are kept."""

    def __init__(self, label: str, metrics: "Metrics") -> None:
        self.label = label
        self.outcomes: dict[OutcomeKind, Count] = {}
        self.slo_met: Count = metrics.slo_met.labels(label)
        self.prompt: Count = metrics.tenant_tokens.labels(label, "prompt")
        self.output: Count = metrics.tenant_tokens.labels(label, "output")
        self.queue_wait: Buckets = metrics.queue_wait.labels(label)
        self.ttft: Buckets = metrics.ttft.labels(label)
        self.tpot: Buckets = metrics.tpot.labels(label)

    def remove_from(self, metrics: "Metrics") -> None:
        """Removes the tenant's series."""
        for outcome in self.outcomes:
            metrics.requests.remove(self.label, outcome.value)
        for direction in ("prompt", "output"):
            metrics.tenant_tokens.remove(self.label, direction)
        for metric in (metrics.slo_met, metrics.queue_wait, metrics.ttft, metrics.tpot):
            metric.remove(self.label)


class Metrics(Observer):
    """All metrics of one gateway.

    Configured tenants always have a label of their own; of the others the first 50 get one, and the rest share `other`.
    A tenant that has not asked for a day gives its label to the next one that comes.
    """

    def __init__(self, tenants: Collection[str] = ()) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge, histogram = (
            partial(Counter, registry=registry),
            partial(Gauge, registry=registry),
            partial(Histogram, registry=registry),
        )
        _describe_process(registry)
        self._known, self._now_s = set(tenants), 0.0
        self._others: dict[str, float] = {}
        self.requests = counter("hmas_requests", "Requests that ended, by outcome.", ["tenant", "outcome"])
        self.slo_met = counter("hmas_slo_met_requests", "Requests that met both of their targets.", ["tenant"])
        self._refused = counter(
            "hmas_refused_requests",
            "Requests answered with an error of the gateway instead of being sent to an engine, by its code.",
            ["code"],
        )
        self._unread = counter(
            "hmas_unread_connections_closed", "Connections closed because their clients took too little of their answers."
        )
        self.tokens = counter(
            "hmas_tokens",
            "Tokens of requests that got an answer or a part of one, by direction (prompt tokens are estimates).",
            ["direction"],
        )
        self.tenant_tokens = counter(
            "hmas_tenant_tokens",
            "Tokens of requests that got an answer or a part of one, by tenant and direction.",
            ["tenant", "direction"],
        )
        self._of_tenant: dict[str, _OfTenant] = {}
        self.jain = gauge(
            "hmas_fairness_jain_ratio", "Jain's index over tenants' service by weight, newest 1,000 requests of the last minute."
        )
        self.max_min = gauge(
            "hmas_fairness_max_min_ratio", "Worst over best of tenants' service by weight, newest 1,000 requests of the last minute."
        )
        self._prompt_tokens, self._output_tokens = self.tokens.labels("prompt"), self.tokens.labels("output")
        self.ttft = histogram("hmas_ttft_seconds", "Arrival to first token.", ["tenant"], buckets=LATENCY_S)
        self.tpot = histogram("hmas_tpot_seconds", "Time per output token after the first.", ["tenant"], buckets=TPOT_S)
        self.duration = histogram("hmas_request_duration_seconds", "Arrival to end, of completed requests.", buckets=LATENCY_S)
        self.queue_wait = histogram(
            "hmas_queue_wait_seconds",
            "Arrival to the last dispatch, with the time at an engine that failed it.",
            ["tenant"],
            buckets=LATENCY_S,
        )
        self.overhead = histogram(
            "hmas_gateway_overhead_seconds",
            "Time that the gateway itself added from the head of the request to the first byte of the answer, apart from the queue.",
            buckets=OVERHEAD_S,
        )
        self.passed = counter("hmas_passthrough_requests", "Requests that are not queued (such as embeddings), by HTTP status.", ["status"])
        self.passed_s = histogram(
            "hmas_passthrough_duration_seconds", "Arrival to answer of served requests that are not queued.", buckets=LATENCY_S
        )
        self.passed_again_count = counter(
            "hmas_passthrough_retries", "Requests that are not queued, sent a second time because the first failed."
        )
        self.passing = gauge(
            "hmas_passthrough_in_flight_requests", "Requests that are not queued, sent and not answered yet.", ["instance"]
        )
        self.retries = counter("hmas_retries", "Requests that waited for a second send, because the first had failed.")
        self.engine_errors = counter("hmas_engine_errors", "Failures of engines, by instance.", ["instance"])
        self.agent_faults = counter("hmas_agent_messages_rejected", "Messages of agents that were out of range, by agent.", ["agent"])
        self.policy_switches = counter("hmas_policy_switches", "Changes of the queueing policy or its parameters.")
        self.waiting = gauge("hmas_queued_requests", "Waiting requests.")
        self.tenant_waiting = gauge("hmas_tenant_queued_requests", "Waiting requests by tenant.", ["tenant"])
        self.tenant_running = gauge("hmas_tenant_in_flight_requests", "Requests sent and not ended yet, by tenant.", ["tenant"])
        self.tenant_weight = gauge("hmas_tenant_weight", "Active weight of each tenant.", ["tenant"])
        self.oldest = gauge("hmas_oldest_wait_seconds", "Age of the oldest waiting request.")
        self.policy = gauge("hmas_policy_info", "1 for the active policy.", ["policy"])
        self.in_flight = gauge("hmas_in_flight_requests", "Requests sent and not ended yet.", ["instance"])
        self.n_run = gauge("hmas_n_run", "Active dispatch window.", ["instance"])
        self.token_budget = gauge("hmas_token_budget", "Active limit of tokens per engine step; 0 for the engine's own.", ["instance"])
        self.guard = gauge(
            "hmas_tpot_guard_factor", "Factor on the TPOT guard's share; 0 where one share is set for all instances.", ["instance"]
        )
        self.first_token_overhead = gauge(
            "hmas_first_token_overhead_seconds",
            "Time of a first token beyond the prefill of its own prompt, estimated; 0 while unknown.",
            ["instance"],
        )
        self.held = counter(
            "hmas_held_while_idle_seconds",
            "Time for which requests waited beside an engine that showed room, by the reason of the first that waited.",
            ["reason"],
        )
        self._held_s: dict[str, float] = {}
        self.set_aside = gauge("hmas_agent_set_aside", "1 while some of an agent's answers are set aside.", ["agent"])
        self.agent_loss = gauge(
            "hmas_agent_loss",
            "Mean loss over the newest 50 requests, of an agent's answers and of the default that they replace; lower is better.",
            ["agent", "answers", "of"],
        )
        self.up = gauge("hmas_engine_up", "1 while the engine answers and its circuit is not open.", ["instance"])
        self.kv_usage = gauge("hmas_kv_usage_ratio", "Share of KV blocks in use.", ["instance"])
        self.kv_committed = gauge("hmas_kv_committed_ratio", "Share of the admission fence taken.", ["instance"])
        self._of_instance = (
            *(self.passing, self.in_flight, self.n_run, self.token_budget, self.guard),
            *(self.first_token_overhead, self.up, self.kv_usage, self.kv_committed, self.engine_errors),
        )
        self._instances: set[str] = set()
        self.bus_up = gauge("hmas_bus_connected", "1 while the message bus is connected.")
        self.bus_dropped = gauge("hmas_bus_dropped_messages", "Messages dropped because the bus was not connected.")

    def know(self, tenants: Collection[str]) -> None:
        """Gives newly configured tenants a label of their own."""
        self._known.update(tenants)

    def tenant_label(self, tenant: str) -> str:
        """The label of a tenant; beyond the bound it is `other`."""
        if tenant in self._known or tenant in self._others:
            return tenant
        if len(self._others) >= MAX_TENANT_LABELS and not self._free_label():
            return OTHER
        self._others[tenant] = self._now_s
        return tenant

    def _free_label(self) -> bool:
        """Takes the label from the tenant whose last request is the longest ago, if that is long enough."""
        tenant = next(iter(self._others))
        if self._now_s - self._others[tenant] < LABEL_KEPT_S:
            return False
        del self._others[tenant]
        if tenant not in self._known and (found := self._of_tenant.pop(tenant, None)) is not None:
            found.remove_from(self)
        return True

    def sampled(self, snapshot: SystemSnapshot) -> None:
        """See `Observer.sampled`."""
        self._now_s = snapshot.sent_s

    def ended(self, completion: Completion) -> None:
        """See `Observer.ended`."""
        self._now_s = completion.sent_s
        of_tenant = self._of_tenant.get(completion.tenant)
        if of_tenant is None:
            of_tenant = self._counted(completion.tenant)
        if self._others.pop(of_tenant.label, None) is not None:
            # They stay in the order of their last requests.
            self._others[of_tenant.label] = self._now_s
        counter = of_tenant.outcomes.get(completion.outcome)
        if counter is None:
            counter = of_tenant.outcomes[completion.outcome] = self.requests.labels(of_tenant.label, completion.outcome.value)
        counter.inc()
        if completion.slo_met:
            of_tenant.slo_met.inc()
        if completion.queue_ms >= 0:
            of_tenant.queue_wait.observe(completion.queue_ms / 1000.0)
        if completion.ttft_ms >= 0:
            of_tenant.ttft.observe(completion.ttft_ms / 1000.0)
        if completion.tpot_ms >= 0:
            of_tenant.tpot.observe(completion.tpot_ms / 1000.0)
        if completion.outcome is OutcomeKind.COMPLETED:
            self.duration.observe(completion.total_ms / 1000.0)
        if completion.output_tokens:
            self._prompt_tokens.inc(completion.prompt_tokens)
            self._output_tokens.inc(completion.output_tokens)
            of_tenant.prompt.inc(completion.prompt_tokens)
            of_tenant.output.inc(completion.output_tokens)

    def _counted(self, tenant: str) -> _OfTenant:
        """The counters of a tenant; all tenants beyond the bound share those of `other`."""
        label = self.tenant_label(tenant)
        found = self._of_tenant.get(label)
        if found is None:
            found = self._of_tenant[label] = _OfTenant(label, self)
        return found

    def first_token(self, request: Request, instance: str, overhead_s: float, now_s: float) -> None:
        """See `Observer.first_token`."""
        self.overhead.observe(overhead_s)

    def engine_failed(self, request: Request, instance: str, reason: str, now_s: float) -> None:
        """See `Observer.engine_failed`."""
        self.passed_failed(instance)

    def passed_failed(self, instance: str) -> None:
        """See `Observer.passed_failed`."""
        self.engine_errors.labels(instance).inc()
        self._instances.add(instance)

    def retried(self, request: Request, reason: str, now_s: float) -> None:
        """See `Observer.retried`."""
        self.retries.inc()

    def refused(self, code: str) -> None:
        """See `Observer.refused`."""
        self._refused.labels(code).inc()

    def unread(self) -> None:
        """See `Observer.unread`."""
        self._unread.inc()

    def passed_through(self, status: int, took_s: float) -> None:
        """See `Observer.passed_through`."""
        self.passed.labels(str(status)).inc()
        if status < 400:
            self.passed_s.observe(took_s)

    def passed_again(self) -> None:
        """See `Observer.passed_again`."""
        self.passed_again_count.inc()

    def agent_rejected(self, agent: str, reason: str) -> None:
        """See `Observer.agent_rejected`."""
        self.agent_faults.labels(agent).inc()

    def control_changed(self, before: Directives | None, after: Directives, now_s: float) -> None:
        """See `Observer.control_changed`."""
        if before is not None and (before.policy.value, before.parameters) != (after.policy.value, after.parameters):
            self.policy_switches.inc()

    def fair(self, found: Fairness) -> None:
        """Sets the figures of how evenly tenants were served."""
        self.jain.set(found.jain)
        self.max_min.set(found.max_min)

    def tenants(self, figures: Iterable[TenantFigures]) -> None:
        """Sets what each tenant has waiting and in flight, and its weight."""
        for gauge in (self.tenant_waiting, self.tenant_running, self.tenant_weight):
            gauge.clear()
        for one in figures:
            self.tenant_waiting.labels(one.name).set(one.load.waiting)
            self.tenant_running.labels(one.name).set(one.load.running)
            self.tenant_weight.labels(one.name).set(one.weight)

    def agents(self, standings: Iterable[Standing]) -> None:
        """Sets the scores of the agents' answers."""
        aside: dict[str, bool] = {}
        for one in standings:
            aside[one.agent] = aside.get(one.agent, False) or one.contest.aside
            self.agent_loss.labels(one.agent, one.answers, "agent").set(one.contest.agent_loss)
            self.agent_loss.labels(one.agent, one.answers, "default").set(one.contest.default_loss)
        for agent, is_aside in aside.items():
            self.set_aside.labels(agent).set(is_aside)

    def exposition(
        self, snapshot: SystemSnapshot, *, passing: Mapping[str, int], held_s: Mapping[str, float], bus_connected: bool, bus_dropped: int
    ) -> tuple[bytes, str]:
        """The text that Prometheus scrapes, with gauges read at this moment, and its content type.

        Args:
            snapshot: Queue and instances.
            passing: Requests in progress that bypass the queue, by instance.
            held_s: Seconds for which requests waited beside an engine with spare capacity, by reason.
            bus_connected: Whether the bus is connected.
            bus_dropped: Messages dropped because it was not.
        """
        for reason, seconds in held_s.items():
            self.held.labels(reason).inc(max(0.0, seconds - self._held_s.get(reason, 0.0)))
            self._held_s[reason] = seconds
        names = {view.name for view in snapshot.instances}
        for gone in self._instances - names:
            for metric in self._of_instance:
                with suppress(KeyError):
                    metric.remove(gone)
        self._instances = names
        for name, count in passing.items():
            self.passing.labels(name).set(count)
        self.waiting.set(snapshot.queued)
        self.oldest.set(max(0.0, snapshot.oldest_wait_ms) / 1000.0)
        self.policy.clear()
        self.policy.labels(snapshot.policy).set(1)
        for view in snapshot.instances:
            self.in_flight.labels(view.name).set(view.in_flight)
            self.n_run.labels(view.name).set(view.n_run)
            self.token_budget.labels(view.name).set(view.token_budget)
            self.guard.labels(view.name).set(view.guard)
            self.first_token_overhead.labels(view.name).set(view.first_token_overhead_ms / 1000.0)
            self.kv_committed.labels(view.name).set(view.kv_committed)
            engine = view.engine
            self.up.labels(view.name).set(1 if engine is not None and engine.healthy else 0)
            if engine is not None and engine.kv_usage is not None:
                self.kv_usage.labels(view.name).set(engine.kv_usage)
            else:
                with suppress(KeyError):
                    self.kv_usage.remove(view.name)
        self.bus_up.set(1 if bus_connected else 0)
        self.bus_dropped.set(bus_dropped)
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


def package_version() -> str:
    """The installed version, `unknown` in a tree that is not installed."""
    try:
        return version("h-mas")
    except PackageNotFoundError:
        return "unknown"


def _describe_process(registry: CollectorRegistry) -> None:
    """Adds what is running, and Prometheus' own `process_*` metrics: memory, CPU seconds, open files and their limit, start time."""
    ProcessCollector(registry=registry)
    build = Gauge(
        "hmas_build_info",
        "1, with the version, Python's version, and whether the hot path is compiled.",
        ["version", "python", "compiled"],
        registry=registry,
    )
    # The counters are among the files that HMAS_COMPILE=1 compiles.
    compiled = not str(counters.__file__).endswith(".py")
    build.labels(package_version(), platform.python_version(), str(compiled).lower()).set(1)
