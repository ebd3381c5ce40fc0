"""Converts prompts to token ids, for both training and reading. Needs the extra `train`; import it where it is used."""

from collections.abc import Sequence
from typing import Any

import torch

from hmas.agents.perception.lm.answers import BIN_WORDS, cut, facts, question
from hmas.agents.perception.lm.bins import bin_of
from hmas.agents.perception.lm.tokens import LabelTokens
from hmas.agents.perception.reading import PromptView

IGNORED = -100
"""Label of positions that the loss ignores."""
_SMALLEST = 16
"""Excerpts with fewer characters are not cut further."""


def render(tokenizer: Any, view: PromptView, *, kind: str, excerpt_chars: int, max_tokens: int) -> list[int]:
    """Returns the token ids that the model sees of a prompt; the excerpt is shortened until there are at most `max_tokens`.

    The whole text is tokenised at once, as in an engine that receives the text.
    """
    chars = excerpt_chars
    while True:
        text = question(view, chars) if kind == "causal" else f"{facts(view)}\n{cut(view.excerpt, chars)}"
        ids: list[int] = tokenizer(text)["input_ids"]
        if len(ids) <= max_tokens or chars < _SMALLEST:
            # If the excerpt cannot be shortened, the end is kept, because the answer begins there.
            return ids[-max_tokens:]
        chars = min(int(chars * 0.9 * max_tokens / len(ids)), int(chars * 0.9))


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
