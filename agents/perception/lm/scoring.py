"""Prompts as token ids for training and reading, and a loaded model's scores of labels and length bins.

Needs the extra `train`; import it where it is used.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmas.agents.perception.lm.answers import BIN_WORDS, beside, bin_of, cut, facts, question
from hmas.agents.perception.lm.details import LabelTokens, LmDetails
from hmas.agents.perception.reading import TASKS, PromptView

IGNORED = -100
"""Label of positions that the loss ignores."""
_SMALLEST = 16
"""Excerpts with fewer characters are not cut further."""

Scores = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Logits of the labels [rows, 13] and of the length bins [rows, 20], before any temperature."""


def render(tokenizer: Any, view: PromptView, *, kind: str, excerpt_chars: int, max_tokens: int, side_chars: int = 0) -> list[int]:
    """Returns the token ids that the model sees of a prompt; its texts are shortened until there are at most `max_tokens`.

    The whole text is tokenised at once, as in an engine that receives the text.
    """
    chars, side = excerpt_chars, side_chars
    while True:
        text = question(view, chars, side) if kind == "causal" else f"{facts(view)}\n{cut(view.excerpt, chars)}\n{beside(view, side)}"
        ids: list[int] = tokenizer(text)["input_ids"]
        if len(ids) <= max_tokens or chars < _SMALLEST:
            # If the excerpt cannot be shortened, the end is kept, because the answer begins there.
            return ids[-max_tokens:]
        share = min(0.9, 0.9 * max_tokens / len(ids))
        chars, side = int(chars * share), int(side * share)


def causal_row(prompt: Sequence[int], task: int, output_tokens: int, tokens: LabelTokens) -> dict[str, list[int]]:
    """Returns a prompt with its answer; the loss covers only the answer. If the length is not known (0), the answer ends before it."""
    answer = [*tokens.labels[task], *tokens.middle]
    if output_tokens:
        answer += [tokens.bins[bin_of(output_tokens)], *tokens.closing]
    return {"input_ids": [*prompt, *answer], "labels": [IGNORED] * len(prompt) + answer}


def encoder_row(prompt: Sequence[int], task: int, output_tokens: int) -> dict[str, list[int]]:
    """Returns a prompt with its task, and its length bin if the length is known (not 0)."""
    return {"input_ids": list(prompt), "labels": [task, bin_of(output_tokens) if output_tokens else IGNORED]}


def left_padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids and attention mask, rows aligned at their ends."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in rows], dtype=torch.long)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], dtype=torch.long)
    return ids, mask


def positions(mask: torch.Tensor) -> torch.Tensor:
    """Returns positions counted from each row's first real token."""
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)


class CausalCollator:
    """Builds batches with rows aligned at their ends, where all answers are: only the logits of that end are computed.

    Otherwise the logits of 8 prompts of 500 tokens over 152,000 words would take 2.4 GB.

    Args:
        accepts: Names of the model's forward arguments.
    """

    def __init__(self, pad: int, longest_answer: int, accepts: frozenset[str]) -> None:
        self._pad = pad
        self._keep = longest_answer + 1
        self._accepts = accepts

    def __call__(self, rows: Sequence[dict[str, list[int]]]) -> dict[str, Any]:
        """Returns the batch in the model's format."""
        ids, mask = left_padded([row["input_ids"] for row in rows], self._pad)
        labels, _ = left_padded([row["labels"] for row in rows], IGNORED)
        batch: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        if "position_ids" in self._accepts:
            batch["position_ids"] = positions(mask)
        if "logits_to_keep" in self._accepts and ids.shape[1] > self._keep:
            batch["logits_to_keep"] = self._keep
            batch["labels"] = labels[:, -self._keep :]
        return batch


class EncoderCollator:
    """Builds batches for an encoder, with rows padded at their ends."""

    def __init__(self, pad: int) -> None:
        self._pad = pad

    def __call__(self, rows: Sequence[dict[str, list[int]]]) -> dict[str, Any]:
        """Returns the batch in the model's format; labels have shape [rows, 2]: task, length bin."""
        longest = max(len(row["input_ids"]) for row in rows)
        ids = [row["input_ids"] + [self._pad] * (longest - len(row["input_ids"])) for row in rows]
        mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
        return {
            "input_ids": torch.tensor(ids, dtype=torch.long),
            "attention_mask": torch.tensor(mask, dtype=torch.long),
            "labels": torch.tensor([row["labels"] for row in rows], dtype=torch.long),
        }


def encoder_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Cross-entropy of the task, and of the length bin if it is known; the mean over the rows."""
    tasks = outputs.logits.shape[-1] - len(BIN_WORDS)
    logits = outputs.logits.float()
    total = torch.nn.functional.cross_entropy(logits[:, :tasks], labels[:, 0], reduction="sum")
    total = total + torch.nn.functional.cross_entropy(logits[:, tasks:], labels[:, 1], ignore_index=IGNORED, reduction="sum")
    # With gradient accumulation, the trainer passes the count of labels over all passes of a step.
    return total / (labels.ne(IGNORED).sum() if num_items_in_batch is None else num_items_in_batch)


def accepted(model: Any) -> frozenset[str]:
    """Returns the names of a model's forward arguments, through any adapter around it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return frozenset(inspect.signature(inner.forward).parameters)


class Scorer:
    """Scores labels and length bins for prompts, `batch` of them in one forward pass of the model with its adapter."""

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
        limits = {"excerpt_chars": known.excerpt_chars, "max_tokens": known.max_tokens, "side_chars": known.side_chars}
        return render(self._tokenizer, view, kind=known.kind, **limits)

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
