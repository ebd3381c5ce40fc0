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
