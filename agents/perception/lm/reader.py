"""Reads prompts with a trained language model in this process, on the GPU if there is one. torch is imported when a reader is opened."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hmas.agents.perception.lm.answers import reading_of
from hmas.agents.perception.lm.details import LmDetails
from hmas.agents.perception.reading import PromptView, Reading

if TYPE_CHECKING:
    from hmas.agents.perception.lm.scoring import Scorer

log = logging.getLogger(__name__)

BATCH = 32
"""Prompts of one forward pass: about 10,000 tokens."""


class LmReader:
    """A `Reader` on an opened artefact."""

    def __init__(self, scorer: "Scorer", details: LmDetails, name: str, batch: int = BATCH) -> None:
        self._batch = batch
        self.name = name
        self._scorer = scorer
        self._details = details

    def read(self, prompts: Sequence[PromptView]) -> list[Reading]:
        """Returns one reading per prompt. Prompts without text are skipped: the model was trained on texts only."""
        readings = [Reading()] * len(prompts)
        asked = [index for index, view in enumerate(prompts) if view.excerpt.strip()]
        for start in range(0, len(asked), self._batch):
            part = asked[start : start + self._batch]
            for index, reading in zip(part, self._read([prompts[index] for index in part]), strict=True):
                readings[index] = reading
        return readings

    def _read(self, views: Sequence[PromptView]) -> list[Reading]:
        known = self._details
        try:
            labels, lengths = self._scorer.score(views)
        except (RuntimeError, ValueError, IndexError) as error:
            if len(views) > 1:
                # One prompt is at fault, or there are too many for the memory: the others are still read.
                middle = len(views) // 2
                return self._read(views[:middle]) + self._read(views[middle:])
            log.warning("%s could not read a prompt of %d characters: %s", self.name, views[0].prompt_chars, error)
            return [Reading()]
        return [
            reading_of(task, length, task_temperature=known.task_temperature, length_temperature=known.length_temperature)
            for task, length in zip(labels, lengths, strict=True)
        ]


def open_reader(folder: Path, *, base: Path | None = None, batch: int = BATCH) -> LmReader:
    """Opens an artefact, adapter or merged; `base` is the present folder of an adapter's base, by default that during training.

    Raises:
        ModelError: It, or the base it needs, is missing or has changed.
        ImportError: torch, transformers or peft is not installed.
    """
    # The import takes half a minute and gigabytes, so only callers of this function pay for it.
    from hmas.agents.perception.lm.artefact import open_artefact  # noqa: PLC0415

    card, details, scorer = open_artefact(folder, base=base, batch=batch)
    return LmReader(scorer, details, f"{details.kind}-{details.weights}:{card.version or folder.name}", batch)
