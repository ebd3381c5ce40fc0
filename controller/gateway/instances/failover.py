"""Another model answers for one that no engine can serve, where the configuration says which."""

from collections.abc import Mapping, Sequence

from hmas.controller.config.section import ModelConfig
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.instances.monitor import Fleet
from hmas.controller.observability.observer import Observers


class Failover:
    """Chooses the model that serves a new request: the one it names, or the first of that model's `failover` with an engine that answers.

    Each change, per model, is an event `model.failover`.
    """

    def __init__(self, models: Mapping[str, ModelConfig], fleet: Fleet, observer: Observers) -> None:
        self._fleet = fleet
        self._observer = observer
        self._others: dict[str, Sequence[str]] = {}
        self._serving: dict[str, str] = {}
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
            found = next((other for other in others if self._can(other)), "")
            if not found:
                raise
            self._tell(model, found, error.message)
            return found
        if others:
            self._tell(model, model, "")
        return model

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

    def _can(self, model: str) -> bool:
        try:
            self._fleet.require_model(model)
        except ApiError:
            return False
        return True

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
