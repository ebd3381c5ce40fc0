"""Scorers of what the instances have to do already."""

from collections.abc import Sequence
from typing import ClassVar

from hmas.controller.core.placement import InstanceState, Routable

UNMEASURED_MS = 1.0
"""Stands for the time of a token where no instance has measured any: then only the number of tokens counts."""

SPEED_UNLIKE = 1.5
"""Least ratio of the times per output token of a request alone at which a preference for fast instances begins. Equal instances that are
overloaded from the start measure theirs under load, and look up to a quarter apart."""
SPEED_TOKENS = 2000
"""Prompt tokens that every request counts as for the preference of fast instances: with more of them, what is ahead counts less."""


class Queue:
    """The free share of the window after taking the request."""

    name: ClassVar[str] = "queue"
    summary: ClassVar[str] = "free share of the window"

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:  # noqa: ARG002  the contract's
        """See `Scorer.score`."""
        sequences = entry.request.sequences
        return [max(0.0, 1.0 - (instance.sequences + sequences) / instance.routing_window) for instance in instances]


class KvCache:
    """The share of the KV fence that is free."""

    name: ClassVar[str] = "kv"
    summary: ClassVar[str] = "free share of the KV cache"

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:  # noqa: ARG002  likewise
        """See `Scorer.score`."""
        return [max(0.0, 1.0 - instance.kv_committed) for instance in instances]


class FirstToken:
    """The shortest expected time to the first token, over that of the instance.

    Expected is the time to compute the prompts that were sent before and this one, at the measured speed of the instance; an instance that
    has measured none counts as the mean of those that have.
    """

    name: ClassVar[str] = "first-token"
    summary: ClassVar[str] = "short time to the first token, by prompts ahead and measured speed"

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:  # noqa: ARG002  likewise
        """See `Scorer.score`."""
        prompt = max(1, entry.request.prompt_tokens)
        return _soonest([instance.prefill_tokens + prompt for instance in instances], instances)


def _soonest(tokens: Sequence[int], instances: Sequence[InstanceState]) -> list[float]:
    """The shortest time to compute so many prompt tokens, over that of each instance."""
    speeds = filled([instance.prefill_token_ms for instance in instances])
    waits = [count * ms for count, ms in zip(tokens, speeds, strict=True)]
    least = min(waits)
    return [least / wait for wait in waits]


class Speed:
    """As `FirstToken`, as if every prompt had `SPEED_TOKENS`; and nothing where instances are alike, so that load alone decides there.

    The preference is the same for long and short prompts. If it followed a request's own prompt, the fast instances would get the long
    ones, their KV cache would be full before their window, and the others' window before their cache: the fleet would serve less.

    Instances are alike while the measured times per output token of a request alone differ by no more than `SPEED_UNLIKE`. Those of a
    prompt token do not count: an instance that has had short prompts only shows a longer one.
    """

    name: ClassVar[str] = "speed"
    summary: ClassVar[str] = "fast and with few prompts ahead, where instances differ in speed"

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:  # noqa: ARG002  likewise
        """See `Scorer.score`."""
        known = [ms for instance in instances if (ms := instance.decode_token_ms) > 0.0]
        if not known or max(known) <= SPEED_UNLIKE * min(known):
            return []
        return _soonest([instance.prefill_tokens + SPEED_TOKENS for instance in instances], instances)


class Completion:
    """The shortest predicted time to the last token, over that of the instance.

    The output's tokens take the measured time of a request alone, and longer by the share of the window that is in use: a full window is
    taken to double it. It needs no model of the engine, and ranks a fast busy instance beside a slow idle one.
    """

    name: ClassVar[str] = "completion"
    summary: ClassVar[str] = "early predicted end, by prompts ahead, load and measured speeds"

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:  # noqa: ARG002  likewise
        """See `Scorer.score`."""
        prompt, output = max(1, entry.request.prompt_tokens), entry.estimates.output_tokens
        prefill = filled([instance.prefill_token_ms for instance in instances])
        decode = filled([instance.decode_token_ms for instance in instances])
        ends = [
            (instance.prefill_tokens + prompt) * prefill_ms + output * decode_ms * (1.0 + instance.sequences / instance.routing_window)
            for instance, prefill_ms, decode_ms in zip(instances, prefill, decode, strict=True)
        ]
        least = min(ends)
        return [least / end for end in ends]


def filled(measured: list[float]) -> list[float]:
    """Measured values, with the mean of the known ones where there is none (0)."""
    known = [value for value in measured if value > 0.0]
    if len(known) == len(measured):
        return measured
    mean = sum(known) / len(known) if known else UNMEASURED_MS
    return [value or mean for value in measured]
