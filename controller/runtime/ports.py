"""TCP ports of this machine: free ones, and whether one is taken."""

import contextlib
import socket


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now. Another process may take it before you do; prefer port 0 where that is possible."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """So many ports as `free_port` finds them, no two the same."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket(_family(host), socket.SOCK_STREAM)) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def bind_error(host: str, port: int) -> str:
    """Why a server could not listen there, in the system's words; empty where it could. Port 0 always can."""
    try:
        with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
            # As a server does it: connections of an earlier process in TIME_WAIT are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
