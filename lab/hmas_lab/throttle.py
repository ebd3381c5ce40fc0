"""Makes an engine slow: its processes are stopped and continued many times a second, so that they run for a share of the time only.

SIGSTOP and SIGCONT need no privilege, unlike a CPU quota of a control group, and work in any container. A step of the engine then takes
longer in proportion, as on a slower processor. A process of its own does it (`python -m hmas_lab.throttle`), so that no other work of this
one delays it.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from hmas.planning import StudyError
from hmas_lab.processes import stop

PERIOD_S = 0.03
"""Short beside a step of an engine that takes 50 ms or more, long beside the time that it takes to stop and continue a hundred threads."""
NICE = -10


class Turns:
    """How long the next turn of running and of being stopped has to be. Pure.

    A turn ends late where the machine is busy. What was run too long or too briefly is made up for in the next turns, so that the share
    holds over time.

    Args:
        share: Of the time in which the processes may run, above 0 and below 1.
        period_s: Length of a turn of running and one of being stopped together.
    """

    def __init__(self, share: float, period_s: float = PERIOD_S) -> None:
        self._share = share
        self._period_s = period_s
        self._owed_s = 0.0

    def run_s(self) -> float:
        """How long to run now; 0 if too much was run before."""
        return min(self._period_s, max(0.0, self._share * self._period_s + self._owed_s))

    def stop_s(self, ran_s: float) -> float:
        """How long to stand still after having run for so long."""
        return min(self._period_s, max(0.0, self._period_s - ran_s))

    def ended(self, ran_s: float, stood_s: float) -> None:
        """Notes a turn. At most one period is owed or ahead: a pause of the machine must not be followed by a burst."""
        owed_s = self._owed_s + self._share * (ran_s + stood_s) - ran_s
        self._owed_s = min(self._period_s, max(-self._period_s, owed_s))


@asynccontextmanager
async def throttled(group: int, share: float) -> AsyncIterator[None]:
    """Lets a process group run for a share of the time until the block ends, then as before.

    Args:
        group: Number of the process group.
        share: Above 0 and below 1.

    Raises:
        StudyError: The helper process ended before the block did, so that the processes were not slow for all of it.
    """
    words = (sys.executable, "-m", "hmas_lab.throttle", str(group), str(share))
    process = await asyncio.create_subprocess_exec(*words, start_new_session=True)
    try:
        yield
        if process.returncode is not None:
            raise StudyError(f"the process that throttles group {group} ended with status {process.returncode}")
    finally:
        await stop(process)
        # Whoever is still stopped does not hear a signal to end.
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)


def throttle(group: int, share: float) -> None:
    """Stops and continues the group until it is gone, SIGTERM comes, or the process that started this one has ended; continues it then."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    with suppress(PermissionError):
        os.nice(NICE)
    starter = os.getppid()
    turns = Turns(share)
    with suppress(ProcessLookupError):
        try:
            while not told and os.getppid() == starter:
                begun_s = time.monotonic()
                if (run_s := turns.run_s()) > 0.0:
                    os.killpg(group, signal.SIGCONT)
                    time.sleep(run_s)
                    os.killpg(group, signal.SIGSTOP)
                stopped_s = time.monotonic()
                time.sleep(turns.stop_s(stopped_s - begun_s))
                turns.ended(stopped_s - begun_s, time.monotonic() - stopped_s)
        finally:
            os.killpg(group, signal.SIGCONT)


def main(words: Sequence[str]) -> None:
    """Throttles the group that the first word names to the share that the second one names."""
    throttle(int(words[0]), float(words[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
