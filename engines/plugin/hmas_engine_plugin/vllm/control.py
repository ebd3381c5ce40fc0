"""Reads and sets a scheduler's knobs. Runs in the engine core's process, between two of its steps.

Every feature is detected in the running scheduler, not assumed from its version: a missing feature is reported as absent with the reason,
and the rest works. A knob starts at its highest possible value, because the start-up values determine the size of the runner's buffers.
"""

from typing import Any

from ..features import PRIORITY, Knob, refusals, sorted_out, state_of
from ..order import answer

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
        found = {
            "n_run": self._concurrency(capped=capped),
            "token_budget": _tokens_per_step(scheduler),
        }
        self.knobs, self.absent = sorted_out(found)
        if reason := _no_priority(scheduler):
            self.absent[PRIORITY] = reason

    def state(self) -> dict[str, Any]:
        """The state of this engine core that the GET returns."""
        counters = {
            **({"steps": self.steps, "scheduled_tokens": self.scheduled_tokens} if self._counts else {}),
            "running": len(self._scheduler.running),
            "waiting": sum(len(getattr(self._scheduler, name, None) or ()) for name in QUEUES),
        }
        return state_of(self.knobs, self.absent, counters)

    def obey(self, knobs: dict[str, int]) -> dict[str, Any]:
        """Sets all the knobs, or none if one is refused."""
        refused = refusals(self.knobs, self.absent, knobs)
        if refused:
            return answer(refused=refused)
        self._turn(knobs)
        return answer(applied={name: self.knobs[name].read() for name in knobs})

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


def _no_priority(scheduler: Any) -> str:
    """Why the queue is not ordered by the request's priority, empty if it is."""
    policy = getattr(getattr(scheduler, "policy", None), "value", None)
    return "" if policy == "priority" else f"the queue's order is {policy}; start vLLM with --scheduling-policy priority"
