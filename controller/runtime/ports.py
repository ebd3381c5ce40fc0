"""TCP ports of this machine: finds free ports, and checks whether a port is in use."""

import contextlib
import socket


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now. Another process may take it before you do; prefer port 0 if possible."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different free ports, as `free_port` finds them."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket(_family(host), socket.SOCK_STREAM)) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def bind_error(host: str, port: int) -> str:
    """The system's error if a server cannot listen on this address, else an empty text. Port 0 is always free."""
    try:
        with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
            # As a server does: connections of an earlier process in TIME_WAIT do not block the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
