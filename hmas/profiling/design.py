"""The designed load: requests that determine all coefficients, within bounds that are acceptable for a shared engine."""

from typing import Literal

import msgspec

Kind = Literal["warm-up", "prefill", "decode", "mixed"]

SHORTEST_PROMPT = 16
LONGEST_PROMPT = 4096
SHORT_PROMPT = 32
LONG_PROMPT = 1024
JOINER_PROMPT = 256
OUTPUT_TOKENS = 48
JOINERS = 12
"""New requests that join a decoding batch one by one; the batch's answers are twice as long, so that most of these come in time."""
KV_SHARE = 0.7
"""Share of the KV cache that a batch may fill, so that no preemption disturbs its steps."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that are sent together.

    Attributes:
        kind: Its purpose.
        seqs: Number of requests.
        prompt_tokens: Approximate length of each prompt; the fit uses the engine's own count.
        output_tokens: Length of each answer.
        joiners: Prompts with answers of one token that are sent one after the other while the others decode.
        joiner_tokens: Approximate length of each of those.
    """

    kind: Kind
    seqs: int
    prompt_tokens: int
    output_tokens: int
    joiners: int = 0
    joiner_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of the whole batch."""
        return self.seqs * (self.prompt_tokens + self.output_tokens) + self.joiners * (self.joiner_tokens + 1)

    @property
    def held(self) -> int:
        """Most tokens of the batch in the KV cache."""
        return self.seqs * (self.prompt_tokens + self.output_tokens) + bool(self.joiners) * (self.joiner_tokens + 1)


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the engine and of the load.

    Attributes:
        max_model_len: Prompt and output of one request together, tokens.
        kv_tokens: Tokens its KV cache holds.
        max_num_seqs: Sequences that may run at once.
        concurrency: Numbers of sequences that decode together; those that the engine cannot run at once are left out.
        repeats: How often each prompt length and each batch is measured.
        max_tokens: Limit of all tokens; batches beyond it are not sent.
    """

    max_model_len: int
    kv_tokens: int
    max_num_seqs: int
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    repeats: int = 3
    max_tokens: int = 400_000


def plan(bounds: Bounds) -> list[Batch]:
    """The batches in the order in which they are sent.

    Prompt lengths double from 16 to 4096, or to half of the engine's context. Decoding is measured with short prompts at each concurrency,
    and with long prompts at the smallest and the largest concurrency that fit, which separates the cost of reading the cache from the cost
    of a sequence. At the smallest and the largest concurrency, short and longer new requests join, which measures their cost for decoding
    ones. Every repeat covers all of this before the next begins, so that a probe that is cut short has measured everything once, and a slow
    period of the machine does not affect one kind alone.
    """
    output = max(4, min(OUTPUT_TOKENS, bounds.max_model_len // 4))
    longest = min(LONGEST_PROMPT, bounds.max_model_len // 2)
    lengths = _doubling(SHORTEST_PROMPT, longest)
    short, long = min(SHORT_PROMPT, longest), min(LONG_PROMPT, longest)
    seqs = sorted({n for n in bounds.concurrency if n <= bounds.max_num_seqs and n * (short + output) <= KV_SHARE * bounds.kv_tokens})
    held = [n for n in seqs if n * (long + output) <= KV_SHARE * bounds.kv_tokens]
    round_of = [Batch(kind="prefill", seqs=1, prompt_tokens=length, output_tokens=2) for length in lengths]
    round_of += [Batch(kind="decode", seqs=n, prompt_tokens=short, output_tokens=output) for n in seqs]
    round_of += [Batch(kind="decode", seqs=n, prompt_tokens=long, output_tokens=output) for n in sorted({*held[:1], *held[-1:]})]
    for n in sorted({*seqs[:1], *seqs[-1:]}):
        for length in sorted({short, min(JOINER_PROMPT, longest)}):
            batch = Batch(kind="mixed", seqs=n, prompt_tokens=short, output_tokens=2 * output, joiners=JOINERS, joiner_tokens=length)
            if n < bounds.max_num_seqs and batch.held <= KV_SHARE * bounds.kv_tokens:
                round_of.append(batch)
    warm_up = [
        Batch(kind="warm-up", seqs=1, prompt_tokens=short, output_tokens=output),
        Batch(kind="warm-up", seqs=max(seqs, default=1), prompt_tokens=short, output_tokens=output),
        Batch(kind="warm-up", seqs=1, prompt_tokens=longest, output_tokens=2),
    ]
    chosen: list[Batch] = []
    left = bounds.max_tokens
    for batch in warm_up + round_of * bounds.repeats:
        left -= batch.tokens
        if left < 0:
            break
        chosen.append(batch)
    return chosen


def _doubling(first: int, last: int) -> list[int]:
    lengths = []
    while first < last:
        lengths.append(first)
        first *= 2
    return [*lengths, last]
