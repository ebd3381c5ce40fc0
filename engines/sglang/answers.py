"""The parts of SGLang's status documents that the adapter reads. Pure."""

from typing import Any, TypeVar

import msgspec

from hmas.engines.errors import EngineProtocolError
from hmas.engines.openai import read_samples

Form = TypeVar("Form")

RETRACTED = "sglang:num_retracted_requests_total"
TOKENS = "sglang:realtime_tokens_total"
FIRST_TOKENS = "sglang:time_to_first_token_seconds_count"
_RANKS = ("tp_rank", "moe_ep_rank")
"""Labels in which the ranks of one tensor-parallel group differ."""


class Queues(msgspec.Struct, frozen=True):
    """Requests that wait outside the waiting queue. `grammar`: requests whose grammar is being compiled."""

    grammar: int = 0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One scheduler's load, from `/v1/loads`. SGLang updates it every `--load-snapshot-publish-interval` decode steps (default 15).

    Attributes:
        num_running_reqs: Requests in the running batch.
        num_waiting_reqs: Requests in the waiting queue.
        num_used_tokens: Tokens of requests in the KV cache, without cached prefixes that no request uses.
        max_total_num_tokens: Tokens the KV cache holds.
        total_prefill_uncached_tokens: Prompt tokens computed since start, without those found cached.
    """

    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    total_prefill_uncached_tokens: int = 0
    queues: Queues = Queues()


class Loads(msgspec.Struct, frozen=True):
    """`/v1/loads`: one entry per data-parallel rank."""

    loads: list[Load]


class InternalState(msgspec.Struct, frozen=True):
    """One scheduler's active settings."""

    pp_max_micro_batch_size: int | None = None
    effective_max_running_requests_per_dp: int | None = None


class ServerInfo(msgspec.Struct, frozen=True):
    """`/server_info`: SGLang's start-up settings, and the active settings of its schedulers."""

    version: str = ""
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    disable_priority_preemption: bool = False
    chunked_prefill_size: int | None = None
    disable_radix_cache: bool | None = None
    pp_size: int = 1
    internal_states: list[InternalState] = []

    @property
    def single(self) -> bool:
        """Whether there is exactly one scheduler with one running batch, so that one value can be its cap."""
        return self.pp_size == 1 and len(self.internal_states) == 1 and self.cap is not None

    @property
    def several(self) -> str:
        """Why there is no single cap, as text."""
        return f"{len(self.internal_states)} schedulers and {self.pp_size} pipeline stages; a live cap needs one of each"

    @property
    def cap(self) -> int | None:
        """Requests that may run at once, over all schedulers."""
        return self._sum([state.pp_max_micro_batch_size for state in self.internal_states], self.pp_size)

    @property
    def ceiling(self) -> int | None:
        """The highest value of the cap."""
        return self._sum([state.effective_max_running_requests_per_dp for state in self.internal_states], 1)

    @property
    def chunk(self) -> int | None:
        """The most prompt tokens that one step takes; None if prompts are not split into chunks."""
        return self.chunked_prefill_size if self.chunked_prefill_size is not None and self.chunked_prefill_size > 0 else None

    @property
    def raises(self) -> str:
        """When a raised cap takes effect, as text."""
        if self.enable_priority_scheduling and not self.disable_priority_preemption:
            return "a raised cap counts at once"
        return "a raised cap counts when a running request ends"

    def with_cap(self, value: int) -> "ServerInfo":
        """A copy with another active cap."""
        states = [msgspec.structs.replace(state, pp_max_micro_batch_size=value) for state in self.internal_states]
        return msgspec.structs.replace(self, internal_states=states)

    @staticmethod
    def _sum(values: list[int | None], factor: int) -> int | None:
        known = [value for value in values if value is not None]
        return factor * sum(known) if known and len(known) == len(values) else None


class Counters(msgspec.Struct, frozen=True):
    """Totals since start. `output_tokens` counts tokens as they are produced; SGLang's own total counts only requests that have ended.

    `cached_tokens` counts prompt tokens that were found cached, as prompts are processed.
    `live`: whether SGLang reports the tokens of each decode step, which it does only with `--enable-metrics`, and from the first one on.
    """

    output_tokens: int = 0
    cached_tokens: int = 0
    retracted: int = 0
    live: bool = False


def parse_answer(document: Any, form: type[Form], where: str) -> Form:
    """Converts an answer to its type; fields that are not read here may hold anything.

    Raises:
        EngineProtocolError: A field that is read is missing or of another type.
    """
    try:
        return msgspec.convert(document, form)
    except msgspec.ValidationError as error:
        raise EngineProtocolError(f"{where} with what SGLang does not answer: {error}") from error


def parse_counters(metrics: bytes) -> Counters:
    """Reads totals from the metrics, summed over schedulers, ranks of data parallelism and priorities."""
    # Every rank of a tensor-parallel group may report the same work: the lowest counts. With DP attention the groups share one numbering.
    counted: dict[tuple[str, ...], tuple[int, str, dict[str, str], float]] = {}
    for name, labels, value in read_samples(metrics, (RETRACTED, TOKENS, FIRST_TOKENS)):
        rank = labels.get("tp_rank", "0")
        if not rank.isdigit() or not 0.0 <= value < float("inf"):
            continue
        work = name, *(f"{key}={labels[key]}" for key in sorted(labels) if key not in _RANKS)
        if work not in counted or int(rank) < counted[work][0]:
            counted[work] = int(rank), name, labels, value
    decoded = cached = first = retracted = 0.0
    for _rank, name, labels, value in counted.values():
        if name == TOKENS and labels.get("mode") == "decode":
            decoded += value
        elif name == TOKENS and labels.get("mode") == "prefill_cache":
            cached += value
        elif name == FIRST_TOKENS:
            first += value
        elif name == RETRACTED:
            retracted += value
    # A prefill produces one token that does not count as decoded: the request's first, and one after each retraction.
    return Counters(int(decoded + first + retracted), int(cached), int(retracted), decoded > 0.0)
