"""Computes a loaded model's scores of the labels and length bins. Needs the extra `train`; import it where it is used."""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmas.agents.perception.lm.details import LmDetails
from hmas.agents.perception.lm.examples import left_padded, positions, render
from hmas.agents.perception.reading import TASKS, PromptView

Scores = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Logits of the labels [rows, 13] and of the length bins [rows, 20], before any temperature."""


def accepted(model: Any) -> frozenset[str]:
    """Returns the names of a model's forward arguments, through any adapter around it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return frozenset(inspect.signature(inner.forward).parameters)


class Scorer:
    """Scores labels and length bins for batches of prompts.

    Args:
        batch: Rows of one forward pass.

    Attributes:
        model: The model with its adapter.
    """

    def __init__(self, model: Any, tokenizer: Any, details: LmDetails, *, batch: int = 16) -> None:
        self.model = model.eval()
        self._tokenizer = tokenizer
        self._details = details
        self._batch = batch
        self._accepts = accepted(model)
        self._device = next(model.parameters()).device
        tokens = details.tokens
        self._firsts = torch.tensor(tokens.firsts if tokens else (), device=self._device)
        self._bins = torch.tensor(tokens.bins if tokens else (), device=self._device)

    def score(self, views: Sequence[PromptView]) -> Scores:
        """Returns logits of the labels and of the length bins, in the order of the prompts."""
        rows = [self._render(view) for view in views]
        # Prompts of similar length go together, because padding is wasted work.
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        labels = np.zeros((len(rows), len(TASKS)))
        lengths = np.zeros((len(rows), len(self._details.bins)))
        for start in range(0, len(order), self._batch):
            chosen = order[start : start + self._batch]
            part = [rows[index] for index in chosen]
            with torch.inference_mode():
                labels[chosen], lengths[chosen] = self._causal(part) if self._details.kind == "causal" else self._encoder(part)
        return labels, lengths

    def _render(self, view: PromptView) -> list[int]:
        known = self._details
        return render(self._tokenizer, view, kind=known.kind, excerpt_chars=known.excerpt_chars, max_tokens=known.max_tokens)

    def _encoder(self, rows: Sequence[Sequence[int]]) -> Scores:
        longest = max(len(row) for row in rows)
        pad = self._tokenizer.pad_token_id
        ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=self._device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=self._device)
        logits = self.model(input_ids=ids, attention_mask=mask).logits
        return _numbers(logits[:, : len(TASKS)]), _numbers(logits[:, len(TASKS) :])

    def _causal(self, rows: Sequence[Sequence[int]]) -> Scores:
        """Runs one pass over the prompts for the labels, then a few more tokens, those of the likeliest label, for the length."""
        assert self._details.tokens is not None
        ids, mask = (tensor.to(self._device) for tensor in left_padded(rows, self._tokenizer.pad_token_id))
        first = self.model(**self._inputs(ids, mask, positions(mask)), use_cache=True, **self._only_last())
        labels = first.logits[:, -1].index_select(-1, self._firsts)
        said = [(*self._details.tokens.labels[row], *self._details.tokens.middle) for row in labels.argmax(dim=-1).tolist()]
        longest = max(map(len, said))
        more = torch.tensor([[*row, *[self._tokenizer.pad_token_id] * (longest - len(row))] for row in said], device=self._device)
        # The padding comes after the position that is read, and attention looks back only.
        whole = torch.cat((mask, torch.ones_like(more)), dim=-1)
        inputs = self._inputs(more, whole, positions(whole)[:, mask.shape[1] :])
        second = self.model(**inputs, past_key_values=first.past_key_values, use_cache=True)
        ends = torch.tensor([len(row) - 1 for row in said], device=self._device)
        lengths = second.logits[torch.arange(len(said), device=self._device), ends].index_select(-1, self._bins)
        return _numbers(labels), _numbers(lengths)

    def _inputs(self, ids: torch.Tensor, mask: torch.Tensor, at: torch.Tensor) -> dict[str, torch.Tensor]:
        inputs = {"input_ids": ids, "attention_mask": mask}
        return inputs | {"position_ids": at} if "position_ids" in self._accepts else inputs

    def _only_last(self) -> dict[str, int]:
        return {"logits_to_keep": 1} if "logits_to_keep" in self._accepts else {}


def _numbers(values: torch.Tensor) -> NDArray[np.float64]:
    return np.asarray(values.float().cpu().numpy(), dtype=np.float64)
