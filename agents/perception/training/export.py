"""A fitted network as a model folder: look-up tables in 8 bits, the rest in ONNX, and the card. Needs torch and onnx."""

import warnings
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from hmas.agents.model_store.card import ModelCard, write_card
from hmas.agents.perception.encoder import DENSE, PATCH
from hmas.agents.perception.onnx_reader import FORMAT, MODEL_FILE, WORDS_FILE, OnnxDetails, write_words
from hmas.agents.perception.reading import TASKS
from hmas.agents.perception.training.feeding import UNKNOWN_BUCKETS
from hmas.agents.perception.training.fitting import PAIR_BUCKETS, Fitted
from hmas.agents.perception.training.network import Network
from hmas.controller.core.lengths import LEVELS

OPSET = 17
BAGS = ("bag", "system", "history")


class _Exported(nn.Module):  # type: ignore[misc]  # torch is not there where types are checked
    """The network over 8-bit tables, one scale a row: a quarter of the file, and the same answers to three digits."""

    def __init__(self, network: Network, temperature: float) -> None:
        super().__init__()
        self.network = network
        self.temperature = temperature
        for name, table in (("words", network.words.weight), ("bag", network.bag.weight)):
            scale = table.detach().abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / 127.0
            self.register_buffer(f"{name}_table", torch.round(table.detach() / scale).to(torch.int8))
            self.register_buffer(f"{name}_scale", scale)

    def forward(self, words: Tensor, bag: Tensor, system: Tensor, history: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.words_table[words].to(torch.float32) * self.words_scale[words]
        bags = [(ids, self.bag_table[ids].to(torch.float32) * self.bag_scale[ids]) for ids in (bag, system, history)]
        logits, lengths = self.network.head(embedded, words, bags, dense)
        return torch.softmax(logits / self.temperature, dim=-1), lengths


def write_model(fitted: Fitted, folder: Path, card: ModelCard) -> ModelCard:
    """Writes the model folder and returns its card.

    Args:
        fitted: What was trained.
        folder: Made where it is not there; files of the same names are replaced.
        card: What is to be said of the model beyond its form: training, data, metrics, licences.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_words(folder / WORDS_FILE, fitted.words)
    bag = torch.ones(2, 9, dtype=torch.int64)
    example = (torch.ones(2, 4 * PATCH, dtype=torch.int64), bag, bag[:, :5], bag[:, :7], torch.zeros(2, len(DENSE)))
    with warnings.catch_warnings():
        # torch calls the exporter by tracing old; of a graph without branches it makes the shorter one, which runs faster.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Exported(fitted.network, fitted.temperature).eval(),
            example,
            str(folder / MODEL_FILE),
            input_names=["words", *BAGS, "dense"],
            output_names=["probabilities", "log_lengths"],
            dynamic_axes={
                "words": {0: "batch", 1: "length"},
                **{name: {0: "batch", 1: f"{name}_features"} for name in BAGS},
                "dense": {0: "batch"},
            },
            opset_version=OPSET,
            dynamo=False,
        )
    form = OnnxDetails(
        tasks=[task.value for task in TASKS],
        levels=list(LEVELS),
        dense=list(DENSE),
        known=len(fitted.words),
        unknown=UNKNOWN_BUCKETS,
        pairs=PAIR_BUCKETS,
        ranges=fitted.ranges,
    )
    details = {**msgspec.to_builtins(form), "temperature": fitted.temperature, **card.details}
    return write_card(folder, msgspec.structs.replace(card, kind="perception", format=FORMAT, details=details))
