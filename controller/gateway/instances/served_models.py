"""Which models the instances serve, and whether a request for one can be served."""

from collections.abc import Iterable, Sequence
from typing import Any

from hmas.controller.core.placement import servers_of
from hmas.controller.gateway.errors import ApiError, without_addresses
from hmas.controller.gateway.instances.circuit_breaker import CircuitBreaker
from hmas.controller.gateway.instances.instance import Instance
from hmas.controller.runtime.clock import Clock

ACCEPT_GRACE_S = 2.0
"""How long an instance that has just stopped answering still counts for new requests: most such gaps are one lost connection."""
MAX_MODELS_SHOWN = 20


class ServedModels:
    """Answers what a request needs to know of the instances.

    Which of them serve a model is kept until that changes, so that no request looks at all of them.

    Attributes:
        instances: All instances, by name, in the order of the configuration.
    """

    def __init__(self, clock: Clock) -> None:
        """Starts without instances."""
        self.instances: dict[str, Instance] = {}
        self._clock = clock
        self._avoided: frozenset[str] = frozenset()
        self._by_model: dict[str, list[Instance]] | None = None
        self._any_model: list[Instance] = []
        self._contexts: dict[str, int] = {}

    def now_s(self) -> float:
        """The time used for the state of instances."""
        return self._clock.now_s()

    def require_model(self, model: str) -> None:
        """Checks that a request for `model` can be served.

        Raises:
            ApiError: 404 if no instance serves it, 503 if the instances that serve it are down or drained.
        """
        now_s = self._clock.now_s()
        servers = self._servers(model)
        if not servers:
            names = sorted(self._index())
            more = f" and {len(names) - MAX_MODELS_SHOWN} more" if len(names) > MAX_MODELS_SHOWN else ""
            text = f"model {model[:100]!r} is not served here; models: {', '.join(names[:MAX_MODELS_SHOWN])}{more}"
            raise ApiError(404, "model_not_found", text, param="model")
        if all(instance.draining for instance in servers):
            drained = ", ".join(instance.name for instance in servers)
            raise ApiError(503, "engines_draining", f"every engine that serves this model is being drained: {drained}", retry_after_s=30)
        if all(instance.draining or instance.down_for_s(now_s) > ACCEPT_GRACE_S for instance in servers):
            closed = ", ".join(f"{instance.name} ({'drained' if instance.draining else _detail(instance)})" for instance in servers)
            text = f"no engine that serves this model takes requests: {without_addresses(closed)}"
            raise ApiError(503, "no_healthy_engine", text, retry_after_s=5)

    def breakers(self, model: str) -> list[CircuitBreaker]:
        """The circuit breakers of the instances that count for a new request by `require_model`."""
        now_s = self._clock.now_s()
        able = (one for one in self._servers(model) if not one.draining and one.down_for_s(now_s) <= ACCEPT_GRACE_S)
        return [instance.breaker for instance in able]

    def _servers(self, model: str) -> Sequence[Instance]:
        """The instances that serve a model. One that has never answered counts only where none has: nothing is known of it."""
        return self._index().get(model, self._any_model)

    def _index(self) -> dict[str, list[Instance]]:
        """The servers of each model that any of them names, and in `_any_model` those of all others."""
        if self._by_model is None:
            instances = [instance for instance in self.instances.values() if instance.known] or list(self.instances.values())
            self._by_model = servers_of((instance, instance.models) for instance in instances)
            self._any_model = [instance for instance in instances if instance.models is None]
        return self._by_model

    def _models_changed(self) -> None:
        """Forgets what follows from the models that instances serve: instances, or their models, have changed."""
        self._by_model = None
        self._contexts.clear()

    def only_model(self) -> str:
        """The model of requests that name none: the only one that any instance serves, empty if there are several or none is known."""
        names = self._index()
        return next(iter(names)) if len(names) == 1 else ""

    def down_for_s(self, model: str, tried: Iterable[str] = (), *, only: str = "") -> float:
        """Seconds for which no instance for `model` has answered, except those in `tried`; 0 while one does. `only`: that alone counts.

        An instance that is being drained counts only where all are.
        """
        now_s, left_out = self._clock.now_s(), frozenset(tried)
        able = [one for name, one in self.instances.items() if name not in left_out and only in ("", name) and one.serves(model)]
        able = [one for one in able if not one.draining] or able
        return min((instance.down_for_s(now_s) for instance in able), default=float("inf"))

    def candidates(self, model: str, tried: Iterable[str] = ()) -> list[Instance]:
        """Instances that could take a request for `model` now, except those in `tried`, which have failed it.

        Those that are not avoided come first, of these the ones with the fewest pass-through requests, and then with the fewest of all by
        their last report.
        """
        left_out = frozenset(tried)
        able = [one for one in self._servers(model) if one.passes_through and not (left_out and one.name in left_out)]
        return sorted(able, key=lambda instance: (instance.name in self._avoided, instance.passing, instance.reported))

    def context_tokens(self, model: str) -> int:
        """Largest context, in tokens, of any instance that serves `model`; 0 if one of them does not report it."""
        if model not in self._index():
            # No instance names it, so none reports its context. Such names come from clients, without bound.
            return 0
        if model not in self._contexts:
            found = [instance.context.get(model, 0) for instance in self._servers(model)]
            self._contexts[model] = max(found) if min(found) > 0 else 0
        return self._contexts[model]

    def completion_cap(self, model: str) -> int:
        """The largest `EngineCapabilities.completion_cap` of the instances that serve `model`; 0 if one of them has none."""
        found = [instance.engine.capabilities.completion_cap for instance in self._servers(model)]
        return max(found) if found and min(found) > 0 else 0

    def adapter(self, model: str) -> str:
        """The name of the LoRA adapter that answers for `model`, empty if that is a model of its own: vLLM then names no `parent`."""
        entries = (entry for instance in self.instances.values() for entry in instance.entries if entry["id"] == model)
        entry = next(entries, None)
        return model if entry is not None and entry.get("parent") else ""

    def model_entries(self) -> list[dict[str, Any]]:
        """Entries of all instances for `/v1/models`, each id once."""
        merged: dict[str, dict[str, Any]] = {}
        for instance in self.instances.values():
            for entry in instance.entries:
                merged.setdefault(entry["id"], entry)
        return list(merged.values())


def _detail(instance: Instance) -> str:
    return instance.snapshot.detail if instance.snapshot else "not reached yet"
