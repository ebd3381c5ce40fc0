"""The additional details on the card of a language model's artefact: how it is asked, and how its answers are read."""

import msgspec

from hmas.agents.model_store.card import ModelCard
from hmas.agents.perception.lm.answers import BIN_WORDS
from hmas.agents.perception.lm.tokens import LabelTokens
from hmas.agents.perception.reading import TASKS
from hmas.controller.core.errors import ModelError

FORMAT = "transformers"
"""`ModelCard.format` of these artefacts."""
ADAPTER = "adapter"
MERGED = "merged"
"""Folders of the weights inside an artefact; each artefact has one of the two."""


class LmDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The card's `details`.

    Attributes:
        kind: `causal` or `encoder`.
        weights: `adapter` (needs the base) or `merged` (complete).
        base: Folder of the base during training.
        base_fingerprint: Result of `bases.fingerprint`; empty for merged weights.
        tasks: Order of the labels.
        bins: Names of the length bins.
        excerpt_chars, max_tokens: How much of a prompt the model sees.
        tokens: The answer in token ids; None for an encoder.
        task_temperature, length_temperature: Divisors of the logits that calibrate the confidence, fitted on the validation rows.
        rank: Rank of the adapter.
    """

    kind: str
    weights: str
    base: str
    base_fingerprint: str = ""
    tasks: tuple[str, ...] = tuple(task.value for task in TASKS)
    bins: tuple[str, ...] = BIN_WORDS
    excerpt_chars: int
    max_tokens: int
    tokens: LabelTokens | None = None
    task_temperature: float = 1.0
    length_temperature: float = 1.0
    rank: int = 0


def details_of(card: ModelCard) -> LmDetails:
    """Returns the details of a card of this format.

    Raises:
        ModelError: The card has another format, lacks a field, or was made for other task types.
    """
    if card.format != FORMAT:
        raise ModelError(f"card.format is {card.format!r}; allowed here: {FORMAT!r}")
    try:
        details = msgspec.convert(card.details, LmDetails)
    except msgspec.ValidationError as error:
        raise ModelError(f"card.details: {error}") from error
    if details.tasks != tuple(task.value for task in TASKS) or details.bins != BIN_WORDS:
        raise ModelError(f"card.details.tasks is {', '.join(details.tasks)}; allowed: {', '.join(TASKS)}")
    if (details.kind == "causal") is not (details.tokens is not None):
        raise ModelError(f"card.details.kind is {details.kind!r} and tokens are {'missing' if details.tokens is None else 'there'}")
    return details
