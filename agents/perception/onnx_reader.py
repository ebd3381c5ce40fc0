"""The shipped reader: H-MAS's own small transformer, run by onnxruntime on one core. No torch.

A model is a folder with its card (`hmas.agents.model_store.card`, format `onnx`), `words.txt` with the known words, one per line, and
`model.onnx`, which maps the output of `hmas.agents.perception.encoder` for a prompt to probabilities and length quantiles.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hmas.agents.model_store.card import CARD, ModelCard, verified
from hmas.agents.model_store.ranges import RangeCounter
from hmas.agents.perception.encoder import DENSE, Encoder
from hmas.agents.perception.reading import TASKS, PromptView, Reading
from hmas.agents.perception.text import Vocabulary
from hmas.controller.core.errors import ModelError
from hmas.controller.core.lengths import LEVELS

FORMAT = "onnx"
MODEL_FILE, WORDS_FILE = "model.onnx", "words.txt"
BATCH = 16
"""Prompts per run of the network; larger batches gain nothing, because their tables exceed the CPU cache."""


class OnnxDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the card's details that define the form of a model; other entries are for people.

    Attributes:
        tasks, levels, dense: As in its training; they must equal those here.
        known, unknown, pairs: Sizes of its `Vocabulary`.
        ranges: Lowest and highest value of each of `dense` in its training.
    """

    tasks: list[str]
    levels: list[float]
    dense: list[str]
    known: int
    unknown: int
    pairs: int
    ranges: dict[str, tuple[float, float]]


class OnnxReader:
    """Implements `hmas.agents.perception.reading.Reader`. `ranges` has each dense input's range in training, and counts inputs outside."""

    def __init__(self, folder: Path) -> None:
        """Loads and verifies a model folder.

        Raises:
            ModelError: A file is missing, changed, or of another version of H-MAS; or onnxruntime is not installed.
        """
        self.card = verified(folder)
        details = _details(folder, self.card)
        words = read_words(folder / WORDS_FILE)
        if len(words) != details.known:
            raise ModelError(f"{folder / WORDS_FILE}: holds {len(words)} words; {CARD} says {details.known}")
        self.name = f"tagger {self.card.version or self.card.sha256[MODEL_FILE][:8]}"
        known = {word: index + 1 for index, word in enumerate(words)}
        self.ranges = RangeCounter(details.ranges)
        self._encoder = Encoder(Vocabulary(known, unknown=details.unknown, pairs=details.pairs), self.ranges)
        self._session = _session(folder / MODEL_FILE)

    def read(self, prompts: Sequence[PromptView]) -> list[Reading]:
        """Reads a batch, in its order; prompts of similar length go through the network together."""
        if len(prompts) <= 1:
            return self._run(prompts) if prompts else []
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index].excerpt))
        readings: list[Reading] = [Reading()] * len(prompts)
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            for index, reading in zip(chosen, self._run([prompts[index] for index in chosen]), strict=True):
                readings[index] = reading
        return readings

    def _run(self, prompts: Sequence[PromptView]) -> list[Reading]:
        probabilities, lengths = self._session.run(None, self._encoder.encode(prompts))
        return [
            Reading(probabilities=tuple(row), log_lengths=tuple(quantiles)) if math.isfinite(sum(row)) else Reading()
            for row, quantiles in zip(probabilities.tolist(), lengths.tolist(), strict=True)
        ]


def open_reader(folder: Path) -> OnnxReader:
    """Returns the reader in a folder.

    Raises:
        ModelError: As `OnnxReader` does.
    """
    return OnnxReader(folder)


def read_words(path: Path) -> list[str]:
    r"""Returns the known words of a model folder. A line break is a word too; it is written as `\\n`."""
    return [line.replace("\\n", "\n") for line in path.read_text(encoding="utf-8").split("\n")]


def write_words(path: Path, words: Sequence[str]) -> None:
    """Writes what `read_words` reads."""
    path.write_text("\n".join(word.replace("\n", "\\n") for word in words), encoding="utf-8")


def _details(folder: Path, card: ModelCard) -> OnnxDetails:
    try:
        details = msgspec.convert(card.details, OnnxDetails)
    except msgspec.ValidationError as error:
        raise ModelError(f"{folder / CARD}: details: {error}") from None
    missing = sorted({MODEL_FILE, WORDS_FILE} - card.sha256.keys())
    if card.format != FORMAT or missing:
        raise ModelError(
            f"{folder / CARD}: format {card.format!r} without {missing}; allowed: {FORMAT}, with {MODEL_FILE} and {WORDS_FILE}"
        )
    if (details.tasks, details.levels, details.dense) != ([task.value for task in TASKS], list(LEVELS), list(DENSE)):
        raise ModelError(f"{folder / CARD}: details: tasks, levels or dense are of another version of H-MAS; train it again")
    if tuple(details.ranges) != DENSE or not all(low <= high for low, high in details.ranges.values()):
        raise ModelError(f"{folder / CARD}: details: ranges must name {', '.join(DENSE)} in this order, each with its lower bound first")
    return details


def _session(path: Path) -> Any:
    try:
        # The import takes a tenth of a second and 40 MB, so processes without this model skip it.
        import onnxruntime  # noqa: PLC0415
    except ImportError as error:
        raise ModelError(f"the shipped perception model needs onnxruntime, which cannot be imported: {error}") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # Spinning threads would take a CPU core from the gateway on the same machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - onnxruntime raises its own bare exceptions for a broken file
        raise ModelError(f"{path}: onnxruntime cannot load it: {error}") from None
