"""Writes a trained language model as an artefact with its README, and opens one. Needs the extra `train`; import it where it is used."""

import shutil
from pathlib import Path
from typing import Any

import torch

from hmas.agents.model_store.card import ModelCard, read_card, write_card
from hmas.agents.perception.lm.bases import fingerprint, open_base, read_adapter
from hmas.agents.perception.lm.details import ADAPTER, MERGED, LmDetails, details_of
from hmas.agents.perception.lm.scoring import Scorer
from hmas.agents.perception.lm.train import VLLM_RANKS
from hmas.controller.core.errors import ConfigError, ModelError

README = "README.md"
_LIMITS = (
    "Rows were held out by prompt, a like share of every source and no twin of a training row: on prompts of sources that were never seen "
    "expect less, and less again in languages and trades that the data do not have."
)


def precision() -> torch.dtype:
    """Returns bfloat16 on a GPU that computes in it, float16 on older GPUs, float32 on a CPU."""
    if not torch.cuda.is_available():
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def device() -> torch.device:
    """Returns the first GPU, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def write_artefact(folder: Path, model: Any, tokenizer: Any, card: ModelCard) -> ModelCard:
    """Writes weights, tokenizer, README and card into a new folder. Returns the card as written.

    Args:
        folder: Target folder; an existing one is replaced.
        model: The model with its adapter; it is merged here if the card's details require that.
        tokenizer: The base's tokenizer.
        card: The card, with `LmDetails` as details.

    Raises:
        ConfigError: The folder cannot be written.
    """
    details = details_of(card)
    weights = folder / details.weights
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if details.weights == MERGED:
            model.merge_and_unload().save_pretrained(weights)
        else:
            model.save_pretrained(weights)
            # peft's own README is an empty template.
            (weights / README).unlink(missing_ok=True)
        tokenizer.save_pretrained(weights)
        (folder / README).write_text(model_card(card, details), encoding="utf-8")
        return write_card(folder, card)
    except OSError as error:
        raise ConfigError(f"out is {folder}: {error}; allowed: a folder that can be written, on a disk with room") from error


def open_artefact(folder: Path, *, base: Path | None = None, batch: int = 16) -> tuple[ModelCard, LmDetails, Scorer]:
    """Loads what `write_artefact` wrote, onto the GPU if there is one.

    Args:
        folder: The artefact.
        base: Present folder of the base; by default its folder during training.
        batch: Rows of one forward pass.

    Raises:
        ModelError: The folder, its card or its weights are not what they should be, or the base is another one.
    """
    card = read_card(folder)
    details = details_of(card)
    try:
        if details.weights == MERGED:
            opened = open_base(folder / MERGED, details.kind, dtype=precision())
            model = opened.model
        else:
            place = base or Path(details.base)
            if (found := fingerprint(place)) != details.base_fingerprint:
                raise ModelError(
                    f"{folder}: its base is not the one in {place} ({found[:12]}..., trained on {details.base_fingerprint[:12]}...); "
                    "allowed: the base that the adapter was trained on"
                )
            opened = open_base(place, details.kind, dtype=precision())
            model = read_adapter(opened, folder / ADAPTER)
    except ConfigError as error:
        raise ModelError(f"{folder}: {error}") from error
    return card, details, Scorer(model.to(device()), opened.tokenizer, details, batch=batch)


def model_card(card: ModelCard, details: LmDetails) -> str:
    """Returns the model card in Markdown."""
    parts = [
        "# Perception model",
        f"Tells which of the {len(details.tasks)} task types of H-MAS (Table 6) a prompt is"
        + (", and how long the answer will be" if "length" in card.metrics else "")
        + f". A {details.kind} model: {_weights(details)}.",
        "## Data",
        "\n".join(f"- `{name}`, sha256 `{digest}`" for name, digest in card.data_sha256.items()),
        "## Figures on held-out rows",
        _figures(card),
        _LIMITS,
        "## Made by",
        f"    {card.command or 'hmas train perception'}",
    ]
    if details.kind == "causal":
        parts += ["## Served by vLLM", _serving(details)]
    return "\n\n".join(parts) + "\n"


def _weights(details: LmDetails) -> str:
    if details.weights == MERGED:
        return f"whole weights in `{MERGED}/`, merged from `{details.base}`"
    return f"a LoRA adapter of rank {details.rank} in `{ADAPTER}/` for the base `{details.base}`"


def _figures(card: ModelCard) -> str:
    rows = []
    task, length = card.metrics.get("task"), card.metrics.get("length")
    if task:
        rows.append(
            f"- task type: accuracy {task['accuracy']:.3f} (the most frequent type: {task['majority_accuracy']:.3f}), "
            f"macro-F1 {task['macro_f1']:.3f}, expected calibration error {task['ece']:.3f}, on {task['n']} rows"
        )
    if length:
        rows.append(
            f"- output length: pinball loss of the log {length['pinball']:.3f} "
            f"(quantiles of the training rows: {length['pinball_of_training_quantiles']:.3f}), on {length['rows']} rows"
        )
    return "\n".join(rows) or "- none: no rows were held out"


def _serving(details: LmDetails) -> str:
    if details.weights == MERGED:
        return f"    vllm serve THIS_FOLDER/{MERGED} --served-model-name perception"
    rank = next(rank for rank in VLLM_RANKS if rank >= details.rank)
    return f"    vllm serve {details.base} --enable-lora --max-lora-rank {rank} --lora-modules perception=THIS_FOLDER/{ADAPTER}"
