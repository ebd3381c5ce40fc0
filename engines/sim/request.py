"""What an engine model is given and what it tells: requests in, tokens out."""

from typing import Literal

import msgspec

PauseMode = Literal["preserve", "discard", "swap"]


class Pause(msgspec.Struct, frozen=True):
    """A tool call in the middle of an answer (InferCept's three ways, as AugServe takes them up).

    Attributes:
        at_tokens: Output tokens after which the request waits for its tool, 1 or more, rising from pause to pause.
        return_tokens: Tokens that the tool's answer adds to the context, 0 or more.
        mode: What becomes of its KV meanwhile: `preserve` keeps it on the GPU, `discard` computes it again, `swap` moves it to the host
            and back, at the profile's `swap_gb_per_s`.
    """

    at_tokens: int
    return_tokens: int = 0
    mode: PauseMode = "preserve"


class SimRequest(msgspec.Struct, frozen=True):
    """A request as the engine sees it.

    Attributes:
        id: Unique among those in the engine.
        prompt_tokens: 1 or more.
        output_tokens: Tokens it will produce, 1 or more; the engine alone knows it.
        priority: LOWER goes first; counts under the queue order `priority` only.
        arrival_s: When it reached the engine; orders equal priorities.
        block_hashes: One hash per `hash_tokens` tokens of its prompt, from the start; equal leading hashes are a shared prefix.
        hash_tokens: Prompt tokens that one hash stands for: a multiple of the profile's block size.
        pauses: Tool calls, in the order in which they come.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    arrival_s: float = 0.0
    block_hashes: tuple[int, ...] = ()
    hash_tokens: int = 512
    pauses: tuple[Pause, ...] = ()


class TokenEvent(msgspec.Struct, frozen=True, gc=False):
    """One token, there at the step's end.

    Attributes:
        tokens_so_far: Output tokens of this request including this one.
        finished: Whether it was the last.
        first: Whether it was the first.
    """

    id: str
    tokens_so_far: int
    finished: bool
    first: bool


class StepResult(msgspec.Struct, frozen=True):
    """What one step does; its tokens are there at `end_s`.

    Attributes:
        produced: One event per sequence that gets a token.
        preempted: Ids that lost their place in the batch in this step.
        prefill_tokens: Prompt tokens computed, recomputed ones too.
        decode_seqs: Sequences that decoded one token.
        paused: Ids that wait for a tool from this step's end on; `EngineModel.resume` brings them back.
    """

    end_s: float
    produced: list[TokenEvent]
    preempted: list[str]
    prefill_tokens: int
    decode_seqs: int
    paused: list[str] = []
