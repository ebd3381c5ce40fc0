"""Builds who believes, from the shipped models or an operator's own."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception.lengths import base as length_base
from hmas.agents.perception.lengths.model import LengthModel
from hmas.agents.perception.model import PerceptionModel
from hmas.agents.perception.readers import Opened, ReaderSource
from hmas.agents.perception.reading import PromptView, Reader, Reading
from hmas.agents.prediction.model import PredictionModel
from hmas.agents.prediction.regressor import load_regressor
from hmas.controller.config.schema import AgentsConfig
from hmas.controller.core.messages import RequestNotice
from hmas.controller.core.slo import TargetTable
from hmas_lab.agents.beliefs import Believer, FixedBeliever, Oracle
from hmas_lab.agents.requests import Truth
from hmas_lab.agents.settings import Belief
from hmas_lab.agents.statistics import RulesAndStatistics

TruthOf = Callable[[RequestNotice], Truth | None]
KEPT = 20_000


class ReadOnce:
    """A reader that reads every prompt once: what it makes of a prompt does not depend on when it is asked."""

    def __init__(self, reader: Reader) -> None:
        self.name = reader.name
        self._reader = reader
        self._known: dict[PromptView, Reading] = {}

    def read(self, prompts: Sequence[PromptView]) -> list[Reading]:
        """As `Reader.read`."""
        fresh = list(dict.fromkeys(prompt for prompt in prompts if prompt not in self._known))
        if fresh:
            if len(self._known) > KEPT:
                self._known.clear()
                fresh = list(dict.fromkeys(prompts))
            self._known.update(zip(fresh, self._reader.read(fresh), strict=True))
        return [self._known[prompt] for prompt in prompts]


def make_believer(belief: Belief, truth_of: TruthOf, slo_scale: float, net: str = "", *, most_frequent: bool = False) -> Believer | None:
    """The agents of a belief, as at their start; None where nobody speaks.

    Args:
        belief: Who.
        truth_of: For oracles.
        slo_scale: The table of targets as the installation has it.
        net: Folder of a length model that stands in for the shipped one, such as one that has not seen the prompts of a run.
        most_frequent: As in `PerceptionModel`, for the trained models.

    Raises:
        ModelError: A model cannot be used.
    """
    confidence = AgentsConfig().perception_min_confidence

    def rules() -> RulesAndStatistics:
        return RulesAndStatistics(min_confidence=confidence, slo_scale=slo_scale)

    match belief:
        case "none":
            return None
        case "fixed rules":
            return FixedBeliever(rules(), PredictionModel(None))
        case "rules":
            return Believer(rules(), PredictionModel(None))
        case "rules+targets":
            return Oracle(rules(), PredictionModel(None), truth_of, targets=True, lengths=False)
        case "rules+lengths":
            return Oracle(rules(), PredictionModel(None), truth_of, targets=False, lengths=True)
        case "oracle":
            return Oracle(rules(), PredictionModel(load_regressor()), truth_of, targets=True, lengths=True)
        case "trained" | "private":
            opened = _opened(net)
            perception = PerceptionModel(
                min_confidence=confidence,
                targets=TargetTable(scale=slo_scale),
                reader=opened.reader,
                lengths=LengthModel(opened.lengths),
                most_frequent=most_frequent,
            )
            return Believer(perception, PredictionModel(load_regressor()), shares_prompts=belief != "private")


@lru_cache(maxsize=2)
def _opened(net: str) -> Opened:
    """Opened once a process, and read once a prompt: neither has a memory that a run could leave to the next."""
    opened = ReaderSource(AgentsConfig(perception_reader="shipped"), ModelStore(Path())).open()
    lengths = length_base.load(Path(net)) if net else opened.lengths
    return Opened(name=opened.name, reader=ReadOnce(opened.reader), lengths=lengths)
