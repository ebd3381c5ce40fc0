"""Port helpers on real sockets."""

import socket

import pytest

from controller.runtime.ports import bind_error, free_port, free_ports, wait_for_port


def test_a_free_port_can_be_had_and_a_taken_one_says_why():
    port = free_port()
    assert bind_error("127.0.0.1", port) == ""
    with socket.create_server(("127.0.0.1", port)):
        assert "in use" in bind_error("127.0.0.1", port)
    assert bind_error("127.0.0.1", 0) == ""
    assert bind_error("192.0.2.1", 0) != ""


def test_several_ports_are_different():
    assert len(set(free_ports(50))) == 50


@pytest.mark.parametrize("listens", [True, False])
async def test_waiting_for_a_port(listens):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if listens:
            assert await wait_for_port("127.0.0.1", port, 5.0)
    if not listens:
        assert not await wait_for_port("127.0.0.1", port, 0.05)
