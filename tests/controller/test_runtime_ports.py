"""Port helpers on real sockets."""

import asyncio
import os
import socket

import pytest
import uvloop

from hmas.controller.gateway.http.server import HttpServer
from hmas.controller.runtime.ports import PASSED, bind_error, bound_sockets, free_port, free_ports, inherited_sockets, passed


def test_a_free_port_can_be_had_and_a_taken_one_says_why():
    port = free_port()
    assert bind_error("127.0.0.1", port) == ""
    with socket.create_server(("127.0.0.1", port)):
        assert "in use" in bind_error("127.0.0.1", port)
    assert bind_error("127.0.0.1", 0) == ""
    assert bind_error("192.0.2.1", 0) != ""


def test_several_ports_are_different():
    assert len(set(free_ports(50))) == 50


def test_a_bound_socket_keeps_its_port_and_refuses_until_somebody_listens():
    (sock,) = bound_sockets("127.0.0.1", 0)
    with sock:
        address = sock.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        sock.listen(1)
        with socket.create_connection(address):
            assert "in use" in bind_error(*address)


def test_sockets_of_hmas_up_are_taken_once():
    (sock,) = bound_sockets("127.0.0.1", 0)
    address = sock.getsockname()
    os.set_inheritable(sock.fileno(), True)
    env = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "3", **passed([sock])}
    sock.detach()
    (taken,) = inherited_sockets(env)
    with taken:
        assert taken.getsockname() == address
        assert not taken.get_inheritable()
    assert env == {}


def test_sockets_of_systemd_are_taken_by_the_process_that_they_are_for():
    assert inherited_sockets({"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "2"}) == []
    assert inherited_sockets({"LISTEN_FDS": "2"}) == []
    assert inherited_sockets({PASSED: "", "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"}) == []
    assert inherited_sockets({}) == []


def test_a_port_that_another_has_taken_meanwhile_is_a_clear_error_under_uvloop_too():
    (first,) = bound_sockets("127.0.0.1", 0)
    port = first.getsockname()[1]
    # Neither listens yet: the system binds both.
    (second,) = bound_sockets("127.0.0.1", port)

    async def never(*_: object) -> None:
        raise AssertionError

    async def serve() -> None:
        limits = {"max_body_bytes": 1000, "max_body_bytes_total": 1000, "max_connections": 4}
        await HttpServer(never, host="127.0.0.1", port=port, sockets=[second], **limits).start()

    with first, second:
        first.listen(1)
        for run in (asyncio.run, uvloop.run):
            with pytest.raises(OSError, match="in use"):
                run(serve())
