"""Scorers of what the instances have to do already."""

from collections.abc import Sequence
from typing import ClassVar

from hmas.controller.core.placement import InstanceState, Routable

UNMEASURED_MS = 1.0
"""Stands for the time of a token where no instance has measured any: then only the number of tokens counts."""

PREDICTED_WITHIN = 1.5
"""Largest factor by which a predicted time may differ from the measured one of the same instance; beyond it, the nearest within counts."""

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

    Prompts that were sent before take the measured time. The request's own takes the time without load (`times_alone`), and so do its
    output tokens, longer by the share of the window that is in use: a full window is taken to double it. It needs no model of the engine,
    and ranks a fast busy instance beside a slow idle one.
    """

    name: ClassVar[str] = "completion"
    summary: ClassVar[str] = "early predicted end, by prompts ahead, load and the request's times without load"
    uses_times_alone: ClassVar[bool] = True

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:  # noqa: ARG002  likewise
        """See `Scorer.score`."""
        output = entry.estimates.output_tokens
        speeds = filled([instance.prefill_token_ms for instance in instances])
        ends = [
            instance.prefill_tokens * speed + prompt_ms + output * token_ms * (1.0 + instance.sequences / instance.routing_window)
            for instance, speed, prompt_ms, token_ms in zip(instances, speeds, *times_alone(entry, instances), strict=True)
        ]
        least = min(ends)
        return [least / end for end in ends]


def times_alone(entry: Routable, instances: Sequence[InstanceState]) -> tuple[list[float], list[float]]:
    """How long the prompt and an output token of the request take on each instance without any load, milliseconds.

    The prediction for this request counts where there is one, else the measured speeds; an instance with neither counts as the mean of the
    others. A prediction never outranks a measurement: see `PREDICTED_WITHIN`.
    """
    prompt, output, alone = max(1, entry.request.prompt_tokens), entry.estimates.output_tokens, entry.estimates.alone
    prompts = [prompt * instance.prefill_token_ms for instance in instances]
    tokens = [instance.decode_token_ms for instance in instances]
    if alone:
        most = PREDICTED_WITHIN
        for place, predicted in enumerate([alone.get(instance.name) for instance in instances]):
            if predicted is None:
                continue
            prompt_ms, token_ms = predicted
            if prompts[place] and tokens[place]:
                measured_ms, whole_ms = prompts[place] + output * tokens[place], prompt_ms + output * token_ms
                if whole_ms > most * measured_ms or measured_ms > most * whole_ms:
                    nearest_ms = measured_ms * most if whole_ms > measured_ms else measured_ms / most
                    prompt_ms, token_ms = prompt_ms * nearest_ms / whole_ms, token_ms * nearest_ms / whole_ms
            prompts[place], tokens[place] = prompt_ms, token_ms
    return filled(prompts, prompt * UNMEASURED_MS), filled(tokens)


def filled(known: list[float], unknown: float = UNMEASURED_MS) -> list[float]:
    """Values with the mean of the known ones where there is none (0), and `unknown` where there is none at all."""
    some = [value for value in known if value > 0.0]
    if len(some) == len(known):
        return known
    mean = sum(some) / len(some) if some else unknown
    return [value or mean for value in known]
