"""Reads and sets a scheduler's knobs. Runs in the engine core's process, between two of its steps.

Every feature is detected in the running scheduler, not assumed from its version: a missing feature is reported as absent with the reason,
and the rest works. A knob starts at its highest possible value, because the start-up values determine the size of the runner's buffers.
"""

import inspect
import logging
import time
from collections.abc import Iterable
from typing import Any

from ..features import Knob, refusals, sorted_out, state_of
from ..order import answer
from .names import names_of

log = logging.getLogger("vllm.hmas_control")

QUEUES = ("waiting", "kv_holding_waiting", "skipped_waiting")
"""Attributes of the scheduler that hold waiting requests; which of them exist depends on the version."""

SCHEDULER = "hmas_engine_plugin.vllm.scheduler.HmasScheduler"


class Control:
    """The live control of one scheduler.

    Args:
        scheduler: vLLM's scheduler, of any version.
        capped: Whether its class calls `before_step` and `after_step`, which enforce `cap` and count steps.
    """

    def __init__(self, scheduler: Any, *, capped: bool = False) -> None:
        self._scheduler = scheduler
        self._counts = capped
        self.cap: int | None = None
        self.steps = 0
        self.scheduled_tokens = 0
        self.evictions = 0
        found = {
            "n_run": self._concurrency(capped=capped),
            "token_budget": _tokens_per_step(scheduler),
        }
        self.knobs, self.absent = sorted_out(found)
        for action, reason in (("reprioritize", _no_reprioritize(scheduler)), ("evict", _no_evict(scheduler))):
            if reason:
                self.absent[action] = reason

    def state(self) -> dict[str, Any]:
        """The state of this engine core that the GET returns."""
        counters = {
            **({"steps": self.steps, "scheduled_tokens": self.scheduled_tokens} if self._counts else {}),
            "evictions": self.evictions,
            "running": len(self._scheduler.running),
            "waiting": sum(len(queue) for queue in self._queues()),
        }
        return state_of(self.knobs, self.absent, counters)

    def obey(self, knobs: dict[str, int], priorities: dict[str, int], evict: list[str]) -> dict[str, Any]:
        """Carries out the whole order, or nothing of it if a field is refused.

        Knobs come first, then evictions, then priorities. So one call can lower the cap, evict requests, and set their place in the queue.
        """
        refused = refusals(self.knobs, self.absent, knobs, priorities=bool(priorities), evict=bool(evict))
        if refused:
            return answer(refused=refused)
        self._turn(knobs)
        known = self._by_name(evict, priorities)
        evicted = [name for name in evict if self._evict(known.get(name, []))]
        changed = self._reprioritize(priorities, known)
        return answer(applied={name: self.knobs[name].read() for name in knobs}, reprioritized=changed, evicted=evicted)

    def before_step(self) -> None:
        """Enforces a cap for which the scheduler has no field: running requests stay, and none is admitted beyond the cap."""
        if self.cap is not None:
            self._scheduler.max_num_running_reqs = max(len(self._scheduler.running), self.cap)

    def after_step(self, output: Any) -> None:
        """Counts the work of a step."""
        self.steps += 1
        self.scheduled_tokens += getattr(output, "total_num_scheduled_tokens", 0)

    def _concurrency(self, *, capped: bool) -> Knob | str:
        scheduler = self._scheduler
        high = getattr(scheduler, "max_num_running_reqs", None)
        if not isinstance(high, int) or high < 1:
            return "this version of vLLM states no max_num_running_reqs"
        if isinstance(getattr(scheduler, "max_num_active_reqs", None), int):
            return _attribute(scheduler, "max_num_active_reqs", 1, high)
        if not capped:
            return f"this version of vLLM has no cap beside its runner's slots; start it with --scheduler-cls {SCHEDULER}"

        def write(value: int) -> None:
            self.cap = value

        return Knob(1, high, high, lambda: high if self.cap is None else self.cap, write)

    def _turn(self, knobs: dict[str, int]) -> None:
        """Sets the knobs; if one cannot be set, all are set back."""
        before = {name: self.knobs[name].read() for name in knobs}
        try:
            for name, value in knobs.items():
                self.knobs[name].write(value)
        except Exception:
            for name, value in before.items():
                self.knobs[name].write(value)
            raise

    def _by_name(self, *wanted: Iterable[str]) -> dict[str, list[Any]]:
        """The requests of each given name: several if a client asked for several answers in one request."""
        names = {name for part in wanted for name in part}
        found: dict[str, list[Any]] = {}
        if names:
            for request_id, request in self._scheduler.requests.items():
                for name in names_of(request_id):
                    if name in names:
                        found.setdefault(name, []).append(request)
        return found

    def _evict(self, requests: list[Any]) -> bool:
        scheduler = self._scheduler
        running = [request for request in requests if request in scheduler.running and request.status.name == "RUNNING"]
        # With a connector that transfers KV, output in flight is dropped, as in the scheduler's own preemption.
        options = {"drop_stale_output": True} if getattr(scheduler, "requires_kv_delivery", False) else {}
        preempt = scheduler._preempt_request  # noqa: SLF001 - vLLM has no public name for it; `_no_evict` checks its signature
        for request in running:
            scheduler.running.remove(request)
            try:
                preempt(request, time.monotonic(), **options)
            except Exception as error:
                if request.status.name == "RUNNING":
                    scheduler.running.append(request)
                self.absent["evict"] = f"failed once and is shut since: {type(error).__name__}: {error}"
                raise
            # The request may run again in the next step, which must not treat it as one that ran without interruption.
            getattr(scheduler, "prev_step_scheduled_req_ids", set()).discard(request.request_id)
            self.evictions += 1
        return bool(running)

    def _reprioritize(self, priorities: dict[str, int], known: dict[str, list[Any]]) -> list[str]:
        waiting = {id(request): queue for queue in self._queues() for request in list(queue)}
        moved: dict[int, tuple[Any, list[Any]]] = {}
        changed = []
        for name, priority in priorities.items():
            queued = [request for request in known.get(name, []) if id(request) in waiting]
            for request in queued:
                request.priority = priority
                queue = waiting[id(request)]
                moved.setdefault(id(queue), (queue, []))[1].append(request)
            if queued:
                changed.append(name)
        for queue, requests in moved.values():
            queue.remove_requests(requests)
            for request in requests:
                queue.add_request(request)
        return changed

    def _queues(self) -> list[Any]:
        return [queue for name in QUEUES if (queue := getattr(self._scheduler, name, None)) is not None]


def _attribute(owner: Any, name: str, low: int, high: int) -> Knob:
    return Knob(low, high, getattr(owner, name), lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _tokens_per_step(scheduler: Any) -> Knob | str:
    high = getattr(scheduler, "max_num_scheduled_tokens", None)
    if not isinstance(high, int) or high < 1:
        return "this version of vLLM states no max_num_scheduled_tokens"
    return _attribute(scheduler, "max_num_scheduled_tokens", min(high, _least_tokens(scheduler, high)), high)


def _least_tokens(scheduler: Any, high: int) -> int:
    """The smallest token budget with which every request makes progress; with fewer tokens a request could wait for ever."""
    config = scheduler.scheduler_config
    if not getattr(config, "enable_chunked_prefill", True):
        return high
    if getattr(config, "disable_chunked_mm_input", False) and getattr(scheduler, "max_num_encoder_input_tokens", 0):
        return high
    if getattr(scheduler, "need_mamba_block_aligned_split", False):
        return int(getattr(scheduler, "block_size", high))
    return 1 + max(int(getattr(scheduler, name, 0) or 0) for name in ("num_spec_tokens", "num_prefill_lookahead"))


def _no_reprioritize(scheduler: Any) -> str:
    policy = getattr(getattr(scheduler, "policy", None), "value", None)
    if policy != "priority":
        return f"the queue's order is {policy}; start vLLM with --scheduling-policy priority"
    queue = getattr(scheduler, "waiting", None)
    if not (hasattr(queue, "remove_requests") and hasattr(queue, "add_request") and hasattr(scheduler, "requests")):
        return "this version of vLLM keeps its queue otherwise"
    return ""


def _no_evict(scheduler: Any) -> str:
    preempt = getattr(scheduler, "_preempt_request", None)
    if preempt is None or not isinstance(getattr(scheduler, "running", None), list) or not hasattr(scheduler, "requests"):
        return "this version of vLLM preempts otherwise"
    names = list(inspect.signature(preempt).parameters)
    return "" if names[:2] == ["request", "timestamp"] else f"this version of vLLM preempts otherwise: {', '.join(names)}"
