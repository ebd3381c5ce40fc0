"""The designed load: which requests tell the coefficients apart, within bounds that a shared engine can bear."""

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
"""Newcomers to a batch that decodes, one after the other; the batch's answers are twice as long, so that most of them come in time."""
KV_SHARE = 0.7
"""Share of the KV cache that a batch may come to fill: no preemption disturbs its steps."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that are sent together.

    Attributes:
        kind: What it is for.
        seqs: How many.
        prompt_tokens: About how long each prompt is; the engine's own count is what the fit takes.
        output_tokens: How long each answer is.
        joiners: Prompts of a single token's answer that are sent one after the other while the others decode.
        joiner_tokens: About how long each of those is.
    """

    kind: Kind
    seqs: int
    prompt_tokens: int
    output_tokens: int
    joiners: int = 0
    joiner_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all of them."""
        return self.seqs * (self.prompt_tokens + self.output_tokens) + self.joiners * (self.joiner_tokens + 1)

    @property
    def held(self) -> int:
        """Tokens that the KV cache holds of it at most."""
        return self.seqs * (self.prompt_tokens + self.output_tokens) + bool(self.joiners) * (self.joiner_tokens + 1)


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine can hold and what may be asked of it.

    Attributes:
        max_model_len: Prompt and output of one request together, tokens.
        kv_tokens: Tokens its KV cache holds.
        max_num_seqs: Sequences that may run at once.
        concurrency: Numbers of sequences that decode together; those the engine cannot run at once are left out.
        repeats: How often each prompt length and each batch is taken.
        max_tokens: Tokens in all; what comes after is not sent.
    """

    max_model_len: int
    kv_tokens: int
    max_num_seqs: int
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    repeats: int = 3
    max_tokens: int = 400_000


def plan(bounds: Bounds) -> list[Batch]:
    """The batches in the order in which they are sent.

    Prompt lengths double from 16 to 4096, or to half of what the engine takes. Decoding is measured with short prompts at each
    concurrency, and with long ones at the least and the greatest that fit, which tells the price of reading the cache from that of a
    sequence. At the least and the greatest concurrency newcomers join, short ones and longer ones: what they cost those that decode. Every
    repeat goes through all of it before the next begins, so that a probe cut short has seen everything once, and a slow spell of the
    machine does not fall on one kind alone.
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
