"""Gives a request in a real vLLM a fixed output length, so that a replay has true lengths that the gateway does not know.

Load it into the engine, with this repository's lab/ on PYTHONPATH:

    vllm serve MODEL --logits-processors hmas_lab.forced_length:ForcedLength

and send `"vllm_xargs": {"hmas_output_tokens": N}` in a request's body. The end-of-sequence token is forbidden before the Nth output
token and forced as the Nth, so `usage.completion_tokens` is N (or less if `max_tokens` cuts it). Other requests are unchanged.

This module runs inside vLLM, in vLLM's own environment; nothing else in the project imports it.
"""

from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig

FIELD = "hmas_output_tokens"


def wanted_tokens(params: "SamplingParams") -> int | None:
    """The output length that a request asks for; None if it asks for none.

    Raises:
        ValueError: It is not a whole number of at least 1, or contradicts `ignore_eos` or `min_tokens`; vLLM answers 400.
    """
    value: Any = (params.extra_args or {}).get(FIELD)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"vllm_xargs.{FIELD} {value!r}: allowed is a whole number, 1 or more")
    if params.ignore_eos:
        raise ValueError(f"vllm_xargs.{FIELD} {value} ends with an end-of-sequence token, which ignore_eos would pass over")
    if params.min_tokens > value:
        raise ValueError(f"vllm_xargs.{FIELD} {value}: allowed is min_tokens {params.min_tokens} or more")
    return value


class _Row:
    """One sequence of the batch: its wanted length, its output so far, and its end-of-sequence tokens."""

    __slots__ = ("end", "ends", "output", "wanted")

    def __init__(self, wanted: int, output: list[int], end: int, ends: list[int]) -> None:
        self.wanted = wanted
        self.output = output
        self.end = end
        self.ends = ends


class ForcedLength(LogitsProcessor):  # type: ignore[misc]  # vLLM is not installed where the types are checked
    """A logits processor of vLLM's V1 engine. It costs one masked write per step for all affected rows, and nothing if there are none."""

    @classmethod
    def validate_params(cls, sampling_params: "SamplingParams") -> None:
        """Refuses an impossible length. Raises ValueError."""
        wanted_tokens(sampling_params)

    def __init__(self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool) -> None:  # noqa: ARG002 - vLLM's signature
        self._device = device
        self._rows: dict[int, _Row] = {}
        self._forbidden: tuple[torch.Tensor, torch.Tensor] | None = None
        self._forced: set[int] = set()

    def is_argmax_invariant(self) -> bool:
        """Returns False: the processor changes which token is the most likely."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Updates the rows from the batch before each step; vLLM passes a live reference to each sequence's output tokens."""
        changed = process_dict_updates(self._rows, batch_update, self._row)
        forced = {index for index, row in self._rows.items() if len(row.output) + 1 >= row.wanted}
        if changed or forced != self._forced:
            self._forced = forced
            pairs = [(index, token) for index, row in self._rows.items() if index not in forced for token in row.ends]
            self._forbidden = self._pairs(pairs) if pairs else None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Forbids or forces the end-of-sequence token, in place. `logits` is (batch, vocabulary)."""
        if self._forbidden is not None:
            logits[self._forbidden] = -torch.inf
        if self._forced:
            pairs = self._pairs([(index, self._rows[index].end) for index in sorted(self._forced)])
            logits[pairs[0]] = -torch.inf
            logits[pairs] = 0.0
        return logits

    @staticmethod
    def _row(params: "SamplingParams", _prompt: list[int] | None, output: list[int]) -> _Row | None:
        wanted = wanted_tokens(params)
        ends = sorted(params.all_stop_token_ids)
        if wanted is None or not ends:
            return None
        end = params.eos_token_id if params.eos_token_id is not None else ends[0]
        return _Row(wanted, output, end, ends)

    def _pairs(self, pairs: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        rows, tokens = zip(*pairs, strict=True)
        return torch.tensor(rows, device=self._device), torch.tensor(tokens, device=self._device)
