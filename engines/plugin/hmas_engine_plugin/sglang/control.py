"""Reads and sets a scheduler's knobs. Runs in the scheduler's process, between two of its steps.

Every feature is detected in the running scheduler, not assumed from its version: a missing feature is reported as absent with the reason,
and the rest works. A knob starts at its highest possible value, because the start-up values determine the size of the runner's buffers.
"""

from collections.abc import Callable
from typing import Any

from ..features import PRIORITY, Knob, refusals, sorted_out, state_of
from ..order import answer

CAP = "pp_max_micro_batch_size"
"""SGLang's name of the concurrency cap; without pipeline parallelism the only micro-batch is the running batch."""


class Control:
    """The live control of one scheduler.

    Args:
        scheduler: SGLang's scheduler, of any version.
        set_stock: Sets one of SGLang's own live settings through its own handler; returns False if that refuses.
        parallel: Returns SGLang's active settings of parallelism.

    Attributes:
        report: The result of the last order, with the order's serial; None before the first.
    """

    def __init__(self, scheduler: Any, set_stock: Callable[[str, int], bool], parallel: Callable[[], Any]) -> None:
        self._scheduler = scheduler
        self._set_stock = set_stock
        self._parallel = parallel
        self.report: dict[str, Any] | None = None
        self.prefill_steps = 0
        self.prefill_tokens = 0
        found = {"n_run": self._concurrency(), "token_budget": _tokens_per_prefill(scheduler, parallel())}
        self.knobs, self.absent = sorted_out(found)
        if not getattr(scheduler, "enable_priority_scheduling", False):
            self.absent[PRIORITY] = "SGLang was started without --enable-priority-scheduling"

    def state(self) -> dict[str, Any]:
        """The state of this scheduler that the GET returns."""
        scheduler = self._scheduler
        counters = {
            "prefill_steps": self.prefill_steps,
            "prefill_tokens": self.prefill_tokens,
            "running": len(scheduler.running_batch.reqs),
            "waiting": len(scheduler.waiting_queue),
        }
        return state_of(self.knobs, self.absent, counters)

    def obey(self, serial: int, knobs: dict[str, int]) -> None:
        """Sets all the knobs, or none if one is refused."""
        refused = refusals(self.knobs, self.absent, knobs) or self._turn(knobs)
        applied = {} if refused else {name: self.knobs[name].read() for name in knobs}
        self.report = {"serial": serial, **answer(applied=applied, refused=refused)}

    def fail(self, serial: int, reason: str) -> None:
        """Reports that an order could not be carried out."""
        self.report = {"serial": serial, **answer(refused={"body": reason})}

    def reopen(self) -> None:
        """Makes the scheduler look for free slots again: after a raised cap it would regard its batch as full until a request ends."""
        scheduler = self._scheduler
        for batch in (scheduler.running_batch, *getattr(scheduler, "running_mbs", ())):
            if batch is not None:
                batch.batch_is_full = False

    def after_prefill(self, plan: Any) -> None:
        """Counts the work of a prefill step."""
        batch = plan.batch_to_run
        if batch is not None:
            self.prefill_steps += 1
            self.prefill_tokens += getattr(batch, "extend_num_tokens", 0) or 0

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
