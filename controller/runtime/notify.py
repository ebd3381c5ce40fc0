"""Readiness, watchdog and status messages to the service manager (the sd_notify protocol of systemd), without libsystemd."""

import contextlib
import os
import socket
from collections.abc import Mapping

STATUS_LIMIT = 400


class Notifier:
    """Sends datagrams to the socket named by NOTIFY_SOCKET; does nothing if there is none.

    A lost message never disturbs the service: errors of the socket are not raised.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        """Reads NOTIFY_SOCKET from `env` (the process's own environment by default)."""
        path = (os.environ if env is None else env).get("NOTIFY_SOCKET", "")
        # A leading @ names a socket in Linux's abstract namespace, which the kernel marks with a null byte.
        self._address = "\0" + path[1:] if path.startswith("@") else path

    def ready(self, status: str = "") -> None:
        """Reports that the service is ready: units that wait for it may start. `status`: for `systemctl status`, cut at 400 characters."""
        line = " ".join(status.split())[:STATUS_LIMIT]
        self._send("READY=1" + (f"\nSTATUS={line}" if line else ""))

    def watchdog(self) -> None:
        """Reports a completed cycle of work; without this the service manager restarts the process after WatchdogSec."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Reports that the service has begun to drain."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.sendto(text.encode(), self._address)
