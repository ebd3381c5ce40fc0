"""Another model answers for one that no engine can serve, where the configuration says which."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from hmas.controller.config.section import ModelConfig
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.instances.circuit_breaker import LONGEST_WAIT_S, CircuitBreaker
from hmas.controller.gateway.instances.monitor import Fleet
from hmas.controller.observability.observer import Observers


class Failover:
    """Chooses the model that serves a new request: the one it names, or the first of that model's `failover` with an engine that answers.

    A model with no closed circuit gets one request when a circuit becomes half open, as its probe, and another if that tells nothing for
    `LONGEST_WAIT_S`. The others take the rest. Each change, per model, is an event `model.failover`.
    """

    def __init__(self, models: Mapping[str, ModelConfig], fleet: Fleet, observer: Observers) -> None:
        self._fleet = fleet
        self._observer = observer
        self._others: dict[str, Sequence[str]] = {}
        self._serving: dict[str, str] = {}
        self._probed_s: dict[str, float] = {}
        self.reload(models)

    def reload(self, models: Mapping[str, ModelConfig]) -> None:
        """Takes the rules of another configuration."""
        self._others = {name: model.failover for name, model in models.items() if model.failover}

    def model_for(self, model: str) -> str:
        """The model that serves a request for `model`.

        Raises:
            ApiError: As `Fleet.require_model` for `model` itself, if none of the others can serve it either.
        """
        others = self._others.get(model, ())
        try:
            self._fleet.require_model(model)
        except ApiError as error:
            if not (found := self._able(others)):
                raise
            self._tell(model, found, error.message)
            return found
        if not others:
            return model
        breakers = self._fleet.breakers(model)
        if any(breaker.state == "closed" for breaker in breakers):
            self._tell(model, model, "")
        elif (found := self._able(others)) and not self._probes(model, breakers):
            self._tell(model, found, "its engines have failed, and get one request at a time as a probe")
            return found
        return model

    def _probes(self, model: str, breakers: Sequence[CircuitBreaker]) -> bool:
        """Whether a new request is to be a probe."""
        now_s = self._fleet.now_s()
        half_open_s = max((breaker.changed_s for breaker in breakers if breaker.state == "half-open"), default=float("-inf"))
        if half_open_s == float("-inf") or self._probed_s.get(model, float("-inf")) > max(half_open_s, now_s - LONGEST_WAIT_S):
            return False
        self._probed_s[model] = now_s
        return True

    def model_on(self, model: str, holder: str) -> str:
        """The model that serves what continues a response: the first of the model and its `failover` that the response's holder serves.

        The holder is empty if it is not known.

        Raises:
            ApiError: 404 if the holder serves none of them, and as `Fleet.require_model`.
        """
        kept_by = self._fleet.instances.get(holder)
        if kept_by is None:
            self._fleet.require_model(model)
            return model
        found = next((name for name in (model, *self._others.get(model, ())) if kept_by.serves(name)), None)
        if found is None:
            text = f"engine {holder}, which keeps the previous response, does not serve model {model[:100]!r}"
            raise ApiError(404, "model_not_found", text, param="model")
        return found

    def _able(self, models: Sequence[str]) -> str:
        """The first of the models that an engine can serve, empty if there is none."""
        for model in models:
            with suppress(ApiError):
                self._fleet.require_model(model)
                return model
        return ""

    def _tell(self, model: str, serves: str, reason: str) -> None:
        before = self._serving.get(model, model)
        if before != serves:
            self._serving[model] = serves
            self._observer.note(
                "model.failover",
                model,
                before=before,
                after=serves,
                reason=reason or "its engines answer",
                severity="info" if serves == model else "warning",
            )
