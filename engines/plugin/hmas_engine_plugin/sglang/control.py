"""Reads and sets a scheduler's knobs. Runs in the scheduler's process, between two of its steps.

Every feature is detected in the running scheduler, not assumed from its version: a missing feature is reported as absent with the reason,
and the rest works. A knob starts at its highest possible value, because the start-up values determine the size of the runner's buffers.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from ..features import Knob, refusals, sorted_out, state_of
from ..order import answer

log = logging.getLogger("sglang.srt.hmas_control")

CAP = "pp_max_micro_batch_size"
"""SGLang's name of the concurrency cap; without pipeline parallelism the only micro-batch is the running batch."""


class Control:
    """The live control of one scheduler.

    Args:
        scheduler: SGLang's scheduler, of any version.
        set_stock: Sets one of SGLang's own live settings through its own handler; returns False if that refuses.
        parallel: Returns SGLang's active settings of parallelism.
        hooked: Whether `after_prefill` is called in every step; otherwise nothing can be evicted.
    """

    def __init__(self, scheduler: Any, set_stock: Callable[[str, int], bool], parallel: Callable[[], Any], *, hooked: bool) -> None:
        self._scheduler = scheduler
        self._set_stock = set_stock
        self._parallel = parallel
        self._pending: list[str] = []
        self._priorities: dict[str, int] = {}
        self._report: dict[str, Any] | None = None
        self.prefill_steps = 0
        self.prefill_tokens = 0
        self.evictions = 0
        found = {"n_run": self._concurrency(), "token_budget": _tokens_per_prefill(scheduler, parallel())}
        self.knobs, self.absent = sorted_out(found)
        for action, reason in (("reprioritize", _no_reprioritize(scheduler)), ("evict", _no_evict(scheduler, parallel(), hooked=hooked))):
            if reason:
                self.absent[action] = reason

    def state(self) -> dict[str, Any]:
        """The state of this scheduler that the GET returns."""
        scheduler = self._scheduler
        counters = {
            "prefill_steps": self.prefill_steps,
            "prefill_tokens": self.prefill_tokens,
            "evictions": self.evictions,
            "running": len(scheduler.running_batch.reqs),
            "waiting": len(scheduler.waiting_queue),
        }
        return state_of(self.knobs, self.absent, counters)

    def report(self) -> dict[str, Any] | None:
        """The result of the last order. It is read after the order's step: an eviction that has not happened by then is cancelled."""
        self._pending.clear()
        return self._report

    def obey(self, serial: int, knobs: dict[str, int], priorities: dict[str, int], evict: list[str]) -> None:
        """Carries out the whole order, or nothing of it if a field is refused; evictions follow in the next step.

        A priority given together with an eviction applies once the evicted request waits. So one call can lower the cap, evict requests,
        and set the order in which they return.
        """
        self._pending.clear()
        self._report = {"serial": serial, **answer()}
        refused = refusals(self.knobs, self.absent, knobs, priorities=bool(priorities), evict=bool(evict))
        if not refused:
            refused = self._turn(knobs)
        if refused:
            self._report["refused"] = refused
            return
        self._report["applied"] = {name: self.knobs[name].read() for name in knobs}
        self._report["reprioritized"] = self._reprioritize(priorities)
        self._pending, self._priorities = list(evict), priorities

    def fail(self, serial: int, reason: str) -> None:
        """Reports that an order could not be carried out."""
        self._pending.clear()
        self._report = {"serial": serial, **answer(refused={"body": reason})}

    def reopen(self) -> None:
        """Makes the scheduler look for free slots again: after a raised cap it would regard its batch as full until a request ends."""
        scheduler = self._scheduler
        for batch in (scheduler.running_batch, *getattr(scheduler, "running_mbs", ())):
            if batch is not None:
                batch.batch_is_full = False

    def after_prefill(self, plan: Any) -> None:
        """Counts the work of a prefill step, and carries out the pending evictions.

        This is the earliest point of a step at which requests can leave the running batch as in SGLang's own retraction. If steps overlap,
        their last results are still in flight; they are dropped, because the requests cannot run again before the next step.
        """
        batch = plan.batch_to_run
        if batch is not None:
            self.prefill_steps += 1
            self.prefill_tokens += getattr(batch, "extend_num_tokens", 0) or 0
        if self._pending:
            wanted, self._pending = frozenset(self._pending), []
            try:
                self._evict(plan.running_batch, wanted)
            except Exception as error:
                self.absent["evict"] = f"failed once and is shut since: {type(error).__name__}: {error}"
                log.exception("eviction failed; no more is tried")

    def _concurrency(self) -> Knob | str:
        high = getattr(self._scheduler, "max_running_requests", None)
        parallel = self._parallel()
        if not isinstance(high, int) or not isinstance(getattr(parallel, CAP, None), int):
            return f"this version of SGLang states no {CAP}"
        if reason := _several(parallel):
            return reason

        def write(value: int) -> None:
            if not self._set_stock(CAP, value):
                raise ValueError(f"SGLang refused {CAP} = {value}")
            self.reopen()

        return Knob(1, high, getattr(parallel, CAP), lambda: int(getattr(self._parallel(), CAP)), write)

    def _turn(self, knobs: dict[str, int]) -> dict[str, str]:
        """Sets the knobs. If one cannot be set, the others are set back, and that one is reported as refused."""
        before = {name: self.knobs[name].read() for name in knobs}
        for name, value in knobs.items():
            try:
                self.knobs[name].write(value)
            except ValueError as error:
                for earlier, old in before.items():
                    if self.knobs[earlier].read() != old:
                        self.knobs[earlier].write(old)
                return {f"knobs.{name}": str(error)}
        return {}

    def _reprioritize(self, priorities: dict[str, int]) -> list[str]:
        """Changes priorities of waiting requests. Every step that takes from the queue sorts it anew, so setting the value is enough."""
        changed = []
        if priorities:
            for request in self._scheduler.waiting_queue:
                if request.rid in priorities:
                    request.priority = priorities[request.rid]
                    changed.append(request.rid)
        return changed

    def _evict(self, batch: Any, wanted: Iterable[str]) -> None:
        scheduler = self._scheduler
        chosen = [index for index, request in enumerate(batch.reqs) if request.rid in wanted and _can_return(request)]
        released: list[int] = []
        try:
            for index in chosen:
                # The second argument is the number of requests that keep running, for which SGLang reserves memory at once.
                batch.release_req(index, len(batch.reqs) - len(released) - 1)
                released.append(index)
        finally:
            if released:
                requests = [batch.reqs[index] for index in released]
                gone = frozenset(released)
                batch.filter_batch(keep_indices=[index for index in range(len(batch.reqs)) if index not in gone])
                batch.batch_is_full = False
                for request in requests:
                    request.priority = self._priorities.get(request.rid, request.priority)
                    scheduler._add_request_to_queue(request, is_retracted=True)  # noqa: SLF001 - it has no public name
                self.evictions += len(requests)
                if self._report is not None:
                    names = [request.rid for request in requests]
                    self._report["evicted"] = names
                    self._report["reprioritized"] += [name for name in names if name in self._priorities]
                _count(scheduler, requests)


def _can_return(request: Any) -> bool:
    """Whether an eviction leaves a request's answer unchanged: SGLang loses the state of penalties when it computes a request again."""
    if request.finished() or request.to_finish is not None or getattr(request, "beam_group", None) is not None:
        return False
    without = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "min_new_tokens": 0}
    return all(getattr(request.sampling_params, name, value) == value for name, value in without.items())


def _count(scheduler: Any, requests: list[Any]) -> None:
    """Counts evictions as retractions in SGLang's metrics."""
    try:
        reporter = scheduler.metrics_reporter
        if reporter.enable_metrics:
            reporter.metrics_collector.increment_retracted_reqs(
                num_retracted_reqs=len(requests),
                num_retracted_input_tokens=sum(len(request.origin_input_ids) for request in requests),
                num_retracted_output_tokens=sum(len(request.output_ids) for request in requests),
            )
    except Exception:
        log.exception("evictions are missing in the metrics")


def _several(parallel: Any) -> str:
    """Why one value cannot apply to this engine: it has several schedulers or several running batches. Empty if it has one of each."""
    ranks, stages = int(getattr(parallel, "num_dp_ranks", 1) or 1), int(getattr(parallel, "pp_size", 1) or 1)
    return f"{ranks} data-parallel ranks and {stages} pipeline stages; live only with one of each" if ranks * stages > 1 else ""


def _tokens_per_prefill(scheduler: Any, parallel: Any) -> Knob | str:
    start = getattr(scheduler, "chunked_prefill_size", None)
    if not isinstance(start, int) or start < 1:
        return "SGLang was started without chunked prefill"
    if reason := _several(parallel):
        return reason
    if getattr(scheduler, "dllm_config", None) is not None or getattr(scheduler, "dynamic_chunk_sizer", None) is not None:
        return "this engine sizes its chunks itself"
    supports_mamba = getattr(getattr(scheduler, "tree_cache", None), "supports_mamba", None)
    if supports_mamba is None or supports_mamba() or getattr(scheduler, "kv_shard_widening", 1) != 1:
        return "this model's state cuts its prompts on a grid of its own"
    page = int(getattr(scheduler, "page_size", 1) or 1)
    # A prompt would wait for ever if its chunk were cut to zero tokens: by the alignment of deterministic inference, or by the tokens of
    # decoding requests that share the step.
    least = max(page, int(getattr(scheduler, "truncation_align_size", None) or 1))
    if getattr(scheduler, "is_mixed_chunk", False):
        least += int(scheduler.max_running_requests)
    least = -(-least // page) * page
    if least > start:
        return f"SGLang was started with {start}, the fewest with which every request gets on"

    def write(value: int) -> None:
        scheduler.chunked_prefill_size = value

    return Knob(least, start, start, lambda: int(scheduler.chunked_prefill_size), write, step=page)


def _no_reprioritize(scheduler: Any) -> str:
    """Why priorities in the queue cannot be changed, empty if they can."""
    if not isinstance(getattr(scheduler, "waiting_queue", None), list):
        return "this version of SGLang keeps its queue otherwise"
    if not getattr(scheduler, "enable_priority_scheduling", False):
        return "SGLang was started without --enable-priority-scheduling"
    return ""


def _no_evict(scheduler: Any, parallel: Any, *, hooked: bool) -> str:
    """Why running requests cannot be put back into the queue, empty if they can."""
    batch = getattr(scheduler, "running_batch", None)
    parts = (getattr(batch, "release_req", None), getattr(batch, "filter_batch", None), getattr(scheduler, "_add_request_to_queue", None))
    if not hooked or None in parts:
        return "this version of SGLang retracts requests otherwise"
    if reason := _several(parallel):
        return reason
    speculative = getattr(scheduler, "spec_algorithm", None)
    if speculative is None or not speculative.is_none():
        return "not with speculative decoding"
    if getattr(getattr(scheduler, "disaggregation_mode", None), "value", "null") != "null":
        return "not with prefill and decode on different engines"
    others = ("dllm_config", "decode_offload_manager", "hisparse_coordinator")
    if present := [name for name in others if getattr(scheduler, name, None) is not None]:
        return f"not with {', '.join(present)}"
    return ""
