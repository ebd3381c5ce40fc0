"""Reports the progress of a training run and stops it on request. Needs the extra `train`; import it where it is used."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from hmas.controller.runtime.clock import Clock

Say = Callable[[str], None]
"""Takes one line of text for people."""
MINUTE_S = 60.0


class Progress(TrainerCallback):  # type: ignore[misc]  # transformers is not there for the type checker
    """Reports loss, tokens per second and the remaining time, and every validation result."""

    def __init__(self, say: Say, clock: Clock) -> None:
        self._say = say
        self._clock = clock
        self._from: tuple[float, int, float] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the callback's signature
        """Starts the timer; a resumed run already has steps and tokens."""
        self._from = (self._clock.now_s(), state.global_step, float(state.num_input_tokens_seen))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Reports one line per log entry."""
        if logs is None or self._from is None:
            return
        if "loss" in logs:
            self._say(self._line(state, logs["loss"]))
        elif "eval_loss" in logs:
            best = state.best_metric
            told = f"validation loss {logs['eval_loss']:.4f} at step {state.global_step}"
            self._say(told if best is None or best >= logs["eval_loss"] else f"{told} (best {best:.4f})")

    def _line(self, state: Any, loss: float) -> str:
        assert self._from is not None
        start_s, first_step, first_tokens = self._from
        took_s = max(1e-9, self._clock.now_s() - start_s)
        done = state.global_step - first_step
        left_s = (state.max_steps - state.global_step) * took_s / max(1, done)
        left = f"{left_s:.0f} s" if left_s < MINUTE_S else f"{left_s / MINUTE_S:.0f} min"
        rate = (float(state.num_input_tokens_seen) - first_tokens) / took_s
        return f"step {state.global_step} of {state.max_steps}, loss {loss:.4f}, {rate:.0f} tokens/s, about {left} left"


class Stopper(TrainerCallback):  # type: ignore[misc]  # transformers is not there for the type checker
    """Ends a run after its current step, with a checkpoint, once `asked` is set."""

    def __init__(self) -> None:
        self.asked = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - the callback's signature
        """Saves and stops if that was requested."""
        if self.asked:
            control.should_save = True
            control.should_training_stop = True
        return control


@contextlib.contextmanager
def stopping_on_signals(stopper: Stopper, say: Say) -> Iterator[None]:
    """SIGINT and SIGTERM request a stop with a checkpoint; a second signal ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        stopper.asked = True
        say("stopping after this step, with a checkpoint; once more stops at once")
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
