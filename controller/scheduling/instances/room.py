"""Whether an engine has capacity to spare by its own figures. Pure; each call is at most O(in flight)."""

from typing import TYPE_CHECKING

from hmas.controller.core.types import Request
from hmas.controller.scheduling.instances.kv_fence import least_tokens
from hmas.controller.scheduling.instances.lateness import is_last_chance
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.engines.base import EngineSnapshot

if TYPE_CHECKING:
    from hmas.controller.scheduling.instances.instance import Instance

KV_FULL = 0.9
"""Share of the KV cache in use from which on an engine counts as having no cache to spare."""
PRESSURE_LOW = 0.75
"""TPOT over its target (90 % quantile of the requests in flight) below which targets are met with a margin."""
_PRESSURE_QUANTILE = 0.9
HALF = 0.5
BLOCK_TOKENS = 64
"""Tokens per sequence by which an engine's count may differ: it counts whole blocks, and a step later or earlier."""


def shows_room(instance: "Instance") -> bool:
    """Whether the engine takes requests, has a free place by its own ceiling, an empty internal queue, and cache to spare."""
    engine = instance.engine
    return _has_place(instance) and (engine is None or engine.kv_usage is None or engine.kv_usage < KV_FULL)


def _has_place(instance: "Instance") -> bool:
    engine = instance.engine
    return (
        instance.available
        and instance.sequences < instance.capacity_n_run
        and instance.in_flight < instance.recovery.limit
        and (engine is None or engine.waiting == 0 or _window_fills(instance, engine))
    )


def _window_fills(instance: "Instance", engine: EngineSnapshot) -> bool:
    """Whether requests queue inside the engine only because an agent's window has lowered how many requests it runs."""
    limit = engine.max_num_seqs
    return instance.advised and limit is not None and limit < instance.capacity_n_run and engine.running >= limit


def tpot_pressure(instance: "Instance", now_s: float) -> float:
    """The 90 % quantile, over the requests in flight, of `Running.tpot_over_slo`; 0 if none has any. O(in flight)."""
    instance.refresh(now_s)
    ratios = sorted(ratio for run in instance.running.values() if (ratio := run.tpot_over_slo(now_s)) is not None)
    return ratios[min(len(ratios) - 1, int(_PRESSURE_QUANTILE * len(ratios)))] if ratios else 0.0


def is_half_empty(instance: "Instance", now_s: float) -> bool:
    """Whether the instance is less than half full by its own figures: places, cache, and TPOT pressure."""
    kv_usage = None if instance.engine is None else instance.engine.kv_usage
    return (
        shows_room(instance)
        and instance.sequences < HALF * instance.capacity_n_run
        and (kv_usage is None or kv_usage < HALF)
        and tpot_pressure(instance, now_s) < PRESSURE_LOW
    )


def has_cache_for(instance: "Instance", request: Request) -> bool:
    """Whether the request's prompt fits into the fence beside the tokens that the requests in flight certainly hold."""
    fence = instance.fence
    held = sum(run.entry.request.prompt_tokens + max(1, run.tokens) for run in instance.running.values())
    return not fence.capacity_tokens or held + least_tokens(request) <= fence.limit_tokens


def may_pass_fence(entry: QueueEntry, tokens: int, instance: "Instance", now_s: float, *, spares_work: bool) -> bool:
    """Whether a request that the fence holds back by forecast may join (`overcommit`). Never if the engine reports no cache to spare.

    Args:
        entry: The request.
        tokens: KV tokens that it takes at its upper length.
        instance: The instance.
        now_s: The time.
        spares_work: Whether most requests that become late are never served (`GivenUp`).
    """
    engine = instance.engine
    if engine is None or engine.kv_usage is None or not instance.in_flight:
        return False
    redone_ms = instance.pace.prefill_ms(instance.in_flight_tokens // instance.in_flight, entry.estimates.ttft_ms)
    unreported = instance.preemptions.unreported_tokens
    has_waited = now_s - entry.request.arrival_s >= instance.preemptions.price_s(redone_ms, instance.in_flight)
    if not has_waited and (spares_work or not is_last_chance(entry, instance.first_token_ms(entry), now_s)):
        return False
    # Per report, one request may rely on others ending early, while less than nine tenths are in use; any more have to fit into the free
    # cache.
    free_tokens = (1.0 - engine.kv_usage) * instance.fence.capacity_tokens
    spared = unreported + tokens <= free_tokens or (not unreported and engine.kv_usage < KV_FULL)
    return spared and _has_place(instance) and has_cache_for(instance, entry.request)


def correct_fence(instance: "Instance", snapshot: EngineSnapshot) -> None:
    """Corrects the fence by the engine's reported cache use, which counts tokens that requests share once."""
    fence = instance.fence
    if snapshot.kv_usage is None or not fence.capacity_tokens:
        return
    instance.refresh(snapshot.taken_s)
    held = coming = 0
    for run in instance.running.values():
        if run.first_s is not None:
            held += run.entry.request.prompt_tokens + run.tokens
        elif run.streams:
            coming += run.entry.request.prompt_tokens
        else:
            # Nothing is known of its answer before its end: it may hold all that is booked for it.
            coming += fence.booked_tokens(run.entry.request.id)
    slack = BLOCK_TOKENS * instance.sequences
    used_tokens = round(snapshot.kv_usage * (snapshot.kv_capacity_tokens or fence.capacity_tokens))
    if instance.preemptions.waiting and used_tokens < held - slack:
        # What the engine has preempted holds nothing there now, but is to come back: what it has left is not free for others.
        return
    fence.measured(used_tokens, held - slack, held + coming + slack)
