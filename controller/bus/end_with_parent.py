"""Makes a child process end with its parent. It lies here because `runtime`, which has child processes too, may import `bus`."""

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def end_with_parent(parent: int) -> Callable[[], None]:
    """Returns the `preexec_fn` of a process that gets SIGTERM once the thread that created it ends. `parent`: the id of this process."""

    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have died before the line above took effect.
        if os.getppid() != parent:
            raise ProcessLookupError("the parent is gone")

    return prepare
