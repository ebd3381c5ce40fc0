"""Writes a trained language model as an artefact, and opens one. Needs the extra `train`; import it where it is used."""

import shutil
from pathlib import Path
from typing import Any

import torch

from hmas.agents.model_store.card import ModelCard, read_card, write_card
from hmas.agents.perception.lm.bases import fingerprint, open_base, read_adapter
from hmas.agents.perception.lm.details import ADAPTER, MERGED, LmDetails, details_of
from hmas.agents.perception.lm.scoring import Scorer
from hmas.controller.core.errors import ConfigError, ModelError


def precision() -> torch.dtype:
    """Returns bfloat16 on a GPU that computes in it, float16 on older GPUs, float32 on a CPU."""
    if not torch.cuda.is_available():
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def device() -> torch.device:
    """Returns the first GPU, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def write_artefact(folder: Path, model: Any, tokenizer: Any, card: ModelCard) -> ModelCard:
    """Writes weights, tokenizer and card into a new folder. Returns the card as written.

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
            (model.merge_and_unload() if hasattr(model, "merge_and_unload") else model).save_pretrained(weights)
        else:
            model.save_pretrained(weights)
            # peft's own README is an empty template.
            (weights / "README.md").unlink(missing_ok=True)
        tokenizer.save_pretrained(weights)
        return write_card(folder, card)
    except OSError as error:
        raise ConfigError(f"out is {folder}: {error}; allowed: a folder that can be written, on a disk with room") from error


def open_artefact(folder: Path, *, base: Path | None = None, batch: int = 16) -> tuple[ModelCard, LmDetails, Scorer]:
    """Loads what `write_artefact` wrote, onto the GPU if there is one; `base` is by default the base's folder during training.

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
