"""Port helpers on real sockets."""

import socket

from hmas.controller.runtime.ports import bind_error, free_port, free_ports


def test_a_free_port_can_be_had_and_a_taken_one_says_why():
    port = free_port()
    assert bind_error("127.0.0.1", port) == ""
    with socket.create_server(("127.0.0.1", port)):
        assert "in use" in bind_error("127.0.0.1", port)
    assert bind_error("127.0.0.1", 0) == ""
    assert bind_error("192.0.2.1", 0) != ""


def test_several_ports_are_different():
    assert len(set(free_ports(50))) == 50
