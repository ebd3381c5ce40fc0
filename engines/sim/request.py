"""Inputs and outputs of an engine model: requests and tokens."""

import msgspec


class SimRequest(msgspec.Struct, frozen=True):
    """A request as the engine receives it.

    Attributes:
        id: Unique among the requests in the engine.
        prompt_tokens: 1 or more.
        output_tokens: Tokens it will produce, 1 or more; only the engine knows this.
        priority: LOWER goes first; used only under the queue order `priority`.
        arrival_s: When it reached the engine; orders equal priorities.
        block_hashes: One hash per `hash_tokens` tokens of its prompt, from the start; equal leading hashes are a shared prefix.
        hash_tokens: Prompt tokens per hash: a multiple of the profile's block size.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    arrival_s: float = 0.0
    block_hashes: tuple[int, ...] = ()
    hash_tokens: int = 512


class TokenEvent(msgspec.Struct, frozen=True, gc=False):
    """One token, available at the step's end.

    Attributes:
        tokens_so_far: Output tokens of this request including this one.
        finished: Whether it was the last.
        first: Whether it was the first.
        cached_tokens: Prompt tokens that were found cached; only a request's first and last tokens say so.
    """

    id: str
    tokens_so_far: int
    finished: bool
    first: bool
    cached_tokens: int = 0


class StepResult(msgspec.Struct, frozen=True):
    """The result of one step; its tokens are available at `end_s`.

    Attributes:
        produced: One event per sequence that gets a token.
        preempted: Ids of sequences that were preempted in this step.
        prefill_tokens: Prompt tokens computed, including recomputed ones.
        decode_seqs: Sequences that decoded one token.
    """

    end_s: float
    produced: list[TokenEvent]
    preempted: list[str]
    prefill_tokens: int
    decode_seqs: int
