"""vLLM's own scheduler with its live control: `--scheduler-cls hmas_engine_plugin.vllm.scheduler.HmasScheduler`."""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from .control import Control


class HmasScheduler(AsyncScheduler):  # type: ignore[misc]  # vLLM is not installed where the types are checked
    """Decides as its base class does; enforces the cap in versions that have no field for one, and counts steps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hmas_control = Control(self, capped=True)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedules one step; see the base class."""
        self.hmas_control.before_step()
        output = super().schedule(*args, **kwargs)
        self.hmas_control.after_step(output)
        return output
