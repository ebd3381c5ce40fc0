"""Which instances are alike, so that routing compares their loads by one window: a window that an agent sets follows from the load."""

import math
from collections.abc import Collection, Iterable

from hmas.controller.scheduling.instances.instance import Instance

DECODE_LIKE, PREFILL_LIKE, KV_LIKE = 1.25, 1.5, 1.05
"""Largest ratio of the measured times of instances that are alike, and of their KV caches. The time of a prompt token varies more: it
depends on the prompts."""


def pool_windows(instances: Iterable[Instance]) -> None:
    """Sets the `routing_window` of instances whose windows agents set: the mean window of those that are alike. O(n log n).

    Alike are instances with the same ceiling and models, about the same KV cache (an engine sizes it by what memory it finds free), and
    about the same measured speed. If each were filled in proportion to its own window, an instance with the larger window would get more
    load, show that it bears it, and keep the larger window.
    """
    groups: dict[tuple[int, int, frozenset[str] | None], list[Instance]] = {}
    for instance in instances:
        if instance.advised:
            groups.setdefault((instance.capacity_n_run, _kv_size(instance), instance.models), []).append(instance)
    for group in groups.values():
        group.sort(key=_decode_ms)
        alike: list[Instance] = []
        for instance in group:
            if alike and not _are_alike(alike[0], instance):
                _pool(alike)
                alike = []
            alike.append(instance)
        _pool(alike)


def _kv_size(instance: Instance) -> int:
    """The step of its KV cache's size on a scale of 5 %."""
    return round(math.log(max(1, instance.kv_capacity_tokens)) / math.log(KV_LIKE))


def _decode_ms(instance: Instance) -> float:
    return instance.decode_token_ms


def _are_alike(one: Instance, other: Instance) -> bool:
    """Whether their speeds are alike; a speed that was not measured yet is alike any other."""
    decode, prefill = (one.decode_token_ms, other.decode_token_ms), (one.prefill_token_ms, other.prefill_token_ms)
    return max(decode) <= DECODE_LIKE * (min(decode) or max(decode)) and max(prefill) <= PREFILL_LIKE * (min(prefill) or max(prefill))


def _pool(alike: Collection[Instance]) -> None:
    mean = sum(instance.n_run for instance in alike) / len(alike)
    for instance in alike:
        instance.routing_window = mean
