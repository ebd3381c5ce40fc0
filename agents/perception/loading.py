"""Loads perception's models in a thread beside its work: the active one, and the one in shadow mode."""

import logging
from collections.abc import Sequence

import msgspec

from hmas.agents.model_store.comparison import Comparison
from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception.lengths.model import LengthModel
from hmas.agents.perception.model import PerceptionModel
from hmas.agents.perception.readers import KIND, Opened, ReaderSource
from hmas.agents.perception.shadow import Shadow
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ModelError
from hmas.controller.core.messages import Completion

log = logging.getLogger(__name__)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The result of loading.

    Attributes:
        wanted: Name of the model that should be active.
        opened: This model, if it differs from the previous one and could be opened.
        model: A perception model around it that has learnt from recent completions, if its length model is another one.
        error: Why it could not be opened; empty if it could.
        shadow: The model in shadow mode; None for none. `shadow_error` likewise.
    """

    wanted: str = ""
    opened: Opened | None = None
    model: PerceptionModel | None = None
    error: str = ""
    shadow: Shadow | None = None
    shadow_error: str = ""


class Loader:
    """Opens models by configuration and store.

    Args:
        config: The agents' section names the reader; its table of targets and the confidence floor apply to every model.
        store: The store of the versions.
    """

    def __init__(self, config: Config, store: ModelStore) -> None:
        self._config = config
        self._store = store
        self.source = ReaderSource(config.agents, store)

    def model(self, opened: Opened | None = None, lengths: LengthModel | None = None) -> PerceptionModel:
        """Returns a perception model around what was opened; by default one that works by the rules."""
        agents = self._config.agents
        return PerceptionModel(
            min_confidence=agents.perception_min_confidence,
            targets=self._config.slo.targets(),
            most_frequent=agents.perception_unknown == "most-frequent",
            reader=None if opened is None else opened.reader,
            lengths=LengthModel(None if opened is None else opened.lengths) if lengths is None else lengths,
        )

    def load(self, have: Opened | None, shadow: Shadow | None, recent: Sequence[Completion]) -> Loaded:
        """Opens what is not open yet. Never raises: if a model is broken, the active one stays.

        Args:
            have: The active model.
            shadow: The model in shadow mode.
            recent: Completions from which a fresh length model learns first.
        """
        wanted, error = "", ""
        opened: Opened | None = None
        model: PerceptionModel | None = None
        try:
            wanted = self.source.wanted()
            if have is None or have.name != wanted:
                if shadow is not None and shadow.name == wanted:
                    # It ran in shadow mode, so it takes over with what it has learnt.
                    model = shadow.model
                    opened = Opened(name=wanted, reader=model.reader, lengths=model.lengths.base)
                else:
                    opened = self.source.open()
                    if have is None or opened.lengths is not have.lengths:
                        model = self._taught(opened, recent)
        except Exception as failure:  # noqa: BLE001 - a model's files and packages may fail in any way; the agent continues without it
            error = _words(failure)
        tried, shadow_error = self._shadow(shadow, wanted, recent)
        return Loaded(wanted=wanted, opened=opened, model=model, error=error, shadow=tried, shadow_error=shadow_error)

    def _shadow(self, shadow: Shadow | None, in_force: str, recent: Sequence[Completion]) -> tuple[Shadow | None, str]:
        try:
            version = self._store.choice(KIND).shadow
            if not version or version == in_force:
                return None, ""
            if shadow is not None and shadow.name == version:
                return shadow, ""
            agents = self._config.agents
            comparison = Comparison(margin=agents.model_shadow_margin, least=agents.model_shadow_completions)
            return Shadow(version, self._taught(self.source.open_version(version), recent), comparison), ""
        except Exception as failure:  # noqa: BLE001 - as above
            return None, _words(failure)

    def _taught(self, opened: Opened, recent: Sequence[Completion]) -> PerceptionModel:
        model = self.model(opened)
        for completion in recent:
            model.learn(completion)
        return model


def _words(failure: Exception) -> str:
    if not isinstance(failure, ModelError):
        log.error("a perception model could not be opened", exc_info=failure)
    return str(failure) or type(failure).__name__
