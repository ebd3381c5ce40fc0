"""Signal handlers set flags, on which the process acts when it is ready. SIGTERM and SIGINT stop it, SIGHUP reloads."""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
CHANGED = 75
"""Exit code of an agent that ends to be started again with a changed configuration."""


class StopFlags:
    """The flags that stop signals set.

    Attributes:
        stop: Set by the first SIGTERM or SIGINT: finish running work, then end.
        hurry: Set by the second one: end without waiting any longer.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()

    def ask(self, name: str) -> None:
        """Handles one stop signal."""
        if self.stop.is_set():
            log.warning("%s again: not waiting any longer", name)
            self.hurry.set()
        else:
            log.info("%s: stopping", name)
            self.stop.set()


@contextmanager
def stop_flags(on_reload: Callable[[], None] | None = None) -> Iterator[StopFlags]:
    """Installs the handlers on the running loop and removes them at the end.

    Args:
        on_reload: Called in the loop on SIGHUP; an error that it raises is logged and not fatal. Without it SIGHUP is ignored, so that a
            closed terminal does not end the service.
    """
    loop = asyncio.get_running_loop()
    flags = StopFlags()

    def reload() -> None:
        if on_reload is None:
            log.info("SIGHUP: nothing to reload here")
            return
        try:
            on_reload()
        except Exception:
            log.exception("SIGHUP: reload failed; everything stays as it was")

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, flags.ask, number.name)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield flags
    finally:
        for number in (*STOP_SIGNALS, signal.SIGHUP):
            loop.remove_signal_handler(number)
