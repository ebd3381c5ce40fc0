"""TCP ports of this machine: finds free ones, checks whether one is in use, binds sockets, and takes over those of the parent process."""

import contextlib
import os
import socket
from collections.abc import MutableMapping, Sequence

BACKLOG = 1024
"""Connections that may wait to be accepted."""
PASSED = "HMAS_LISTEN_FDS"
"""Variable with the numbers of the bound sockets that `hmas up` gives to the gateway, with commas between."""
_FIRST_OF_SYSTEMD = 3


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now. Another process may take it before you do; prefer port 0 if possible."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different free ports, as `free_port` finds them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket(family, socket.SOCK_STREAM)) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def bind_error(host: str, port: int) -> str:
    """The system's error if a server cannot listen on this address, else an empty text. Port 0 is always free."""
    try:
        for sock in bound_sockets(host, port):
            sock.close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to all addresses of a host, as a server binds them. They refuse connections until a process listens on them.

    Raises:
        OSError: An address is not available.
    """
    found: list[socket.socket] = []
    try:
        places = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(places):
            sock = socket.socket(family, socket.SOCK_STREAM)
            found.append(sock)
            # As a server does: connections of an earlier process in TIME_WAIT do not block the port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
    except OSError:
        for sock in found:
            sock.close()
        raise
    return found


def passed(sockets: Sequence[socket.socket]) -> dict[str, str]:
    """The variables for a child process that gets these sockets. They hide those that the parent itself may have got."""
    return {PASSED: ",".join(str(sock.fileno()) for sock in sockets), "LISTEN_FDS": "", "LISTEN_PID": ""}


def inherited_sockets(env: MutableMapping[str, str]) -> list[socket.socket]:
    """The bound sockets that this process was started with, by `hmas up` or by a socket unit of systemd (sd_listen_fds).

    Removes the variables that name them, so that they are taken once.

    Raises:
        OSError: A number names no socket.
    """
    numbers = [int(number) for number in env.pop(PASSED, "").split(",") if number.isdigit()]
    count, pid = env.pop("LISTEN_FDS", ""), env.pop("LISTEN_PID", "")
    if count.isdigit() and pid == str(os.getpid()):
        numbers += range(_FIRST_OF_SYSTEMD, _FIRST_OF_SYSTEMD + int(count))
    found = [socket.socket(fileno=number) for number in numbers]
    for sock in found:
        sock.set_inheritable(False)
    return found
