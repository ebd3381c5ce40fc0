"""The result of a training run."""

from dataclasses import dataclass
from pathlib import Path

from hmas.agents.model_store.card import ModelCard


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a run.

    Attributes:
        card: Card of the artefact in `folder`; None if the run was interrupted.
        folder: `TrainSettings.out`.
        checkpoint: Checkpoint from which an interrupted run resumes; empty for a finished run.
    """

    card: ModelCard | None
    folder: Path
    checkpoint: str = ""
