"""How a training run ended."""

from dataclasses import dataclass
from pathlib import Path

from hmas.agents.model_store.card import ModelCard


@dataclass(frozen=True, slots=True)
class Trained:
    """How a run ended.

    Attributes:
        card: Of the artefact in `folder`; None where the run was interrupted.
        folder: `TrainSettings.out`.
        checkpoint: Where an interrupted run goes on from; empty where it ended.
    """

    card: ModelCard | None
    folder: Path
    checkpoint: str = ""
