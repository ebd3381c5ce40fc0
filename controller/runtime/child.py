"""One child process: it has its own session, ends with its parent, and reports through the notify protocol."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hmas.controller.bus.end_with_parent import end_with_parent
from hmas.controller.runtime.ports import passed

_NOTIFY_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A program to run as a child process, and how to supervise it.

    Attributes:
        name: Unique among the children.
        argv: Command line; the first part is the program's path.
        env: Variables in addition to the parent's environment.
        stage: Stop order: all children of a higher stage are stopped before those of the next lower stage.
        grace_s: Time between SIGTERM and SIGKILL.
        essential: Whether the supervisor ends when this child is given up.
        notifies: Whether it reports its readiness by the notify protocol; other children count as ready once started.
        watchdog_s: Longest silence of a ready child before it is killed and restarted; 0 for no limit.
        sockets: Bound sockets that it inherits. They stay open here: connections wait in them while it is started again.
        final_codes: Exit codes after which a restart at once would not help, such as that for an unusable configuration.
        again_codes: Exit codes with which it asks to be started again. That is no crash.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    stage: int = 0
    grace_s: float = 10.0
    essential: bool = False
    notifies: bool = False
    watchdog_s: float = 0.0
    sockets: Sequence[socket.socket] = ()
    final_codes: frozenset[int] = frozenset()
    again_codes: frozenset[int] = frozenset()


class Child:
    """A running process made from a spec. Create it from the main thread: the process ends with the thread that created it.

    Attributes:
        ended: Resolves with the exit code (negative: the signal that ended it) once the process is reaped.
    """

    def __init__(self, spec: ChildSpec, notify_dir: Path, on_message: Callable[[Mapping[str, str]], None]) -> None:
        """Starts the process.

        Raises:
            OSError: It cannot be started.
        """
        self.spec = spec
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._notify_path = notify_dir / f"{spec.name}.sock"
        self._socket = self._open_socket() if spec.notifies else None
        self.ended: asyncio.Future[int] = self._loop.create_future()
        try:
            self._process = subprocess.Popen(
                list(spec.argv),
                env={**os.environ, **spec.env, **passed(spec.sockets), **self._notify_env()},
                pass_fds=[sock.fileno() for sock in spec.sockets],
                stdin=subprocess.DEVNULL,
                # Only the parent writes to stdout.
                stdout=2,
                start_new_session=True,
                preexec_fn=end_with_parent(os.getpid()),  # noqa: PLW1509 - two system calls, no lock or allocation between fork and exec
            )
        except OSError:
            self._close_socket()
            raise
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; SIGKILL goes to the whole session, so that no process that the child started remains."""
        if self.ended.done():
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.pid, number)
            else:
                # Not `send_signal`, which reaps a child that has ended: then nobody would hear of its end.
                signal.pidfd_send_signal(self._pidfd, number)

    def _reap(self) -> None:
        if os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._read_messages()
        self._close_socket()
        # Ends other processes in the child's session; the group id is still the child's, which is not reaped yet.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.ended.set_result(self._process.wait())

    def _notify_env(self) -> dict[str, str]:
        # Empty values keep a child from sending messages to its parent's service manager.
        env = {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "", "WATCHDOG_PID": ""}
        if self._socket is not None:
            env["NOTIFY_SOCKET"] = str(self._notify_path)
            if self.spec.watchdog_s:
                env["WATCHDOG_USEC"] = str(int(self.spec.watchdog_s * 1e6))
        return env

    def _open_socket(self) -> socket.socket:
        self._notify_path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        sock.bind(str(self._notify_path))
        self._loop.add_reader(sock.fileno(), self._read_messages)
        return sock

    def _read_messages(self) -> None:
        if self._socket is None:
            return
        while True:
            try:
                data = self._socket.recv(_NOTIFY_BYTES)
            except OSError:
                return
            parts = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
            self._on_message({key: value for key, equals, value in parts if equals})

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
            self._notify_path.unlink(missing_ok=True)
